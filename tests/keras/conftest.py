"""A small private problem that all Keras tests share."""

import functools
import pathlib
import sys

import keras
import numpy as np
import pytest
from small_plans import planned

import tf_bandmf
import tf_bandmf.keras
from tf_bandmf.files.journal import Journal
from tf_bandmf.keras.run import known_runs

# Makes `hub_models`, `largest_contribution` and `same_weights` importable.
sys.path.insert(0, str(pathlib.Path(__file__).parent))

NUM_EXAMPLES, FEATURES, CLASSES = 22, 5, 3

# The seed is for layers that test files make when they are imported.
keras.utils.set_random_seed(0)


@pytest.fixture(autouse=True)
def as_if_alone():
    """Forgets earlier runs, since tests share a process and data, and fixes the seed.

    With random weights and masks, a rectifier's input could be so near to 0 that
    rounding would decide its gradient.
    """
    known_runs.forget()
    keras.utils.set_random_seed(0)


@pytest.fixture(scope="session")
def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(NUM_EXAMPLES, FEATURES)).astype(np.float32)
    return x, rng.integers(0, CLASSES, NUM_EXAMPLES).astype(np.int32)


@pytest.fixture(scope="session")
def make_plan():
    def make(mechanism="lambda_cgd", **changes):
        arguments = {
            "epsilon": 4.0,
            "delta": 1e-5,
            "num_examples": NUM_EXAMPLES,
            "batch_size": 6,
            "epochs": 2,
            "test_seed": 0,
            **changes,
        }
        return planned(mechanism, **arguments)

    return make


@pytest.fixture(scope="session")
def make_min_sep_plan():
    def make(num_steps=6, **changes):
        return planned(
            "identity",
            epsilon=4.0,
            delta=1e-5,
            num_steps=num_steps,
            sampling=tf_bandmf.MinSep(3),
            batch_size=4,
            **{"test_seed": 0, **changes},
        )

    return make


@pytest.fixture(scope="session")
def make_plain_model():
    def make(functional=False, hidden=True):
        keras.utils.set_random_seed(0)
        inputs = keras.Input((FEATURES,))
        if not hidden:
            return keras.Sequential([inputs, keras.layers.Dense(CLASSES)])
        hidden = keras.layers.Dense(4, activation="tanh")
        outputs = keras.layers.Dense(CLASSES)
        if functional:
            return keras.Model(inputs, outputs(hidden(inputs)))
        return keras.Sequential([inputs, hidden, outputs])

    return make


@pytest.fixture(scope="session")
def compile_model():
    def run(model, optimizer, **changes):
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(**{"optimizer": optimizer, "loss": loss, **changes})
        return model

    return run


@pytest.fixture(scope="session")
def make_private_model(make_plain_model, compile_model):
    def make(
        plan,
        inner=None,
        functional=False,
        additional_run=False,
        hidden=True,
        model=None,
        clipping="flat",
        **changes,
    ):
        model = make_plain_model(functional, hidden) if model is None else model
        if not isinstance(model, tf_bandmf.keras.extending.PrivateTraining):
            tf_bandmf.keras.make_private(model)
        optimizer = tf_bandmf.keras.PrivateOptimizer(
            inner or keras.optimizers.SGD(0.1),
            plan,
            clipping=clipping,
            additional_run=additional_run,
        )
        return compile_model(model, optimizer, **changes)

    return make


# Options of `plan_and_model` that are for the model; all others are for the plan.
OF_MODEL = {"inner", "functional", "additional_run", "hidden", "loss", "metrics"}
OF_MODEL |= {"jit_compile", "run_eagerly", "steps_per_execution", "model", "clipping"}


@pytest.fixture(scope="session")
def plan_and_model(make_plan, make_private_model):
    """Makes a plan, and a private model that is compiled for it."""

    def make(*mechanism, **changes):
        of_model = {name: changes.pop(name) for name in OF_MODEL & set(changes)}
        plan = make_plan(*mechanism, **changes)
        return plan, make_private_model(plan, **of_model)

    return make


@pytest.fixture(scope="session")
def straight_weights(data, make_plan, make_private_model):
    """Returns the weights after one `fit` with all steps, as read-only arrays."""

    @functools.cache
    def run(mechanism="lambda_cgd", epochs=2, **changes):
        plan = make_plan(mechanism, epochs=epochs, **changes)
        model = make_private_model(plan)
        model.fit(plan.batches(*data), epochs=epochs, verbose=0)
        assert model.optimizer.steps_taken == plan.num_steps
        weights = tuple(map(np.array, model.get_weights()))
        for weight in weights:
            weight.flags.writeable = False
        return weights

    return run


@pytest.fixture(scope="session")
def written_steps():
    """Returns the steps in the entries of a private state file, in order."""

    def read(path):
        _, entries = Journal(str(path)).read()
        return [int.from_bytes(entry[:8], "little") for entry in entries]

    return read
