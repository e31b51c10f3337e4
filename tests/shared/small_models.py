"""Small private models, with plans and examples, for most Keras tests."""

import contextlib
import functools

import keras
import numpy as np
from small_plans import planned

import tf_bandmf
import tf_bandmf.keras
from tf_bandmf.files.journal import Journal
from tf_bandmf.keras.run.secrets import SecretState
from tf_bandmf.noise.keys import NoiseKey

NUM_EXAMPLES, FEATURES, CLASSES = 22, 5, 3
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def examples(size=NUM_EXAMPLES, features=FEATURES):
    """Returns the same random inputs and classes in each call."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(size, features)).astype(np.float32)
    return x, rng.integers(0, CLASSES, size).astype(np.int32)


data = examples()


class Custom(keras.layers.Layer):
    """A layer that applies a function to its input."""

    def __init__(self, function, **options):
        super().__init__(**options)
        self.function = function

    def call(self, x):
        return self.function(x)


def centred(x):
    """Subtracts the mean of the batch, which mixes the examples."""
    return x - keras.ops.mean(x, axis=0, keepdims=True)


def make_plan(mechanism="lambda_cgd", **changes):
    sizes = {"num_examples": NUM_EXAMPLES, "batch_size": 6, "epochs": 2}
    return planned(mechanism, **{**sizes, "test_seed": 0, **changes})


def make_min_sep_plan(num_steps=6, **changes):
    """Makes a plan with MinSep sampling, for which tests make the batches."""
    use = {"num_steps": num_steps, "sampling": tf_bandmf.MinSep(3), "batch_size": 4}
    return planned("identity", **{**use, "test_seed": 0, **changes})


@contextlib.contextmanager
def dtype_policy(name):
    """Sets Keras' dtype policy within the `with` block."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def make_plain_model(functional=False, hidden=True):
    keras.utils.set_random_seed(0)
    inputs, outputs = keras.Input((FEATURES,)), keras.layers.Dense(CLASSES)
    layers = [keras.layers.Dense(4, activation="tanh")] if hidden else []
    if functional:
        return keras.Model(inputs, outputs(layers[0](inputs)))
    return keras.Sequential([inputs, *layers, outputs])


def compile_model(model, optimizer, **changes):
    model.compile(**{"optimizer": optimizer, "loss": LOSS, **changes})
    return model


def make_private_model(
    plan,
    inner=None,
    functional=False,
    hidden=True,
    model=None,
    clipping="flat",
    additional_run=False,
    loss_scale_factor=None,
    settings=None,
    **changes,
):
    """Makes a model private, and compiles it for a plan.

    Args:
      plan: the plan.
      inner: the optimizer that gets the noisy gradients; by default SGD.
      functional: whether the default model is functional.
      hidden: whether the default model has a hidden layer.
      model: a model, or the layers of one; by default a small classifier.
      clipping: argument of `PrivateOptimizer`.
      additional_run: argument of `PrivateOptimizer`.
      loss_scale_factor: argument of `PrivateOptimizer`.
      settings: arguments of `make_private`.
      **changes: arguments of `compile`.
    """
    if isinstance(model, list):
        keras.utils.set_random_seed(0)
        model = keras.Sequential(model)
    model = make_plain_model(functional, hidden) if model is None else model
    if not isinstance(model, tf_bandmf.keras.extending.PrivateTraining):
        tf_bandmf.keras.make_private(model, **(settings or {}))
    optimizer = tf_bandmf.keras.PrivateOptimizer(
        inner or keras.optimizers.SGD(0.1),
        plan,
        clipping=clipping,
        additional_run=additional_run,
        loss_scale_factor=loss_scale_factor,
    )
    return compile_model(model, optimizer, **changes)


def built(model, weights=None, key=None):
    """Builds a model's optimizer, as `fit` does; can also set the weights and the key.

    Args:
      model: a private model.
      weights: path of a checkpoint.
      key: the secret of another run, to simulate a fork or a copied machine.
    """
    model.optimizer.build(model.trainable_variables)
    if key is not None:
        run = model.optimizer.run
        run.adopt(SecretState(run.noising, NoiseKey(key), run.plan))
    if weights is not None:
        model.load_weights(weights)
    return model


# Options that `plan_and_model` passes to the model; it passes all others to the plan.
OF_MODEL = {"inner", "functional", "additional_run", "hidden", "loss", "metrics"}
OF_MODEL |= {"jit_compile", "run_eagerly", "steps_per_execution", "model", "clipping"}


def plan_and_model(*mechanism, **changes):
    """Makes a plan, and a private model compiled for this plan."""
    of_model = {name: changes.pop(name) for name in OF_MODEL & set(changes)}
    plan = make_plan(*mechanism, **changes)
    return plan, make_private_model(plan, **of_model)


@functools.cache
def straight_weights(mechanism="lambda_cgd", epochs=2, **changes):
    """Returns the read-only final weights of a model that ran its plan in one `fit`."""
    plan = make_plan(mechanism, epochs=epochs, **changes)
    model = make_private_model(plan)
    model.fit(plan.batches(*data), epochs=epochs, verbose=0)
    assert model.optimizer.steps_taken == plan.num_steps
    weights = tuple(map(np.array, model.get_weights()))
    for weight in weights:
        weight.flags.writeable = False
    return weights


def backup_in(folder):
    """Returns a callback that saves the model after each step."""
    return keras.callbacks.BackupAndRestore(
        folder, save_freq=1, delete_checkpoint=False
    )


class Crash(BaseException):
    """An exception that no `except Exception` catches."""


class CrashAfter(keras.callbacks.Callback):
    def __init__(self, step):
        super().__init__()
        self._step = step

    def on_train_batch_end(self, batch, logs=None):
        if self.model.optimizer.steps_taken == self._step:
            raise Crash


def written_steps(path):
    """Returns the step number of each entry in a private state file, in order."""
    _, entries = Journal(str(path)).read()
    return [int.from_bytes(entry[:8], "little") for entry in entries]
