"""Tests that saved or copied models hold no secrets and never train without privacy."""

import copy
import pickle

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_models import compile_model, data, make_plan, make_private_model

import tf_bandmf.keras
from tf_bandmf.keras.run import admission


def reload_keras(model, path):
    model.save(path / "m.keras")
    return keras.models.load_model(path / "m.keras")


def reload_keras_after_h5(model, path):
    # As a side effect, Keras' H5 writer removes the optimizer from the compile config.
    model.save(path / "m.h5")
    return reload_keras(model, path)


def reload_uncompiled(model, path):
    model.save(path / "m.keras")
    again = keras.models.load_model(path / "m.keras", compile=False)
    again.compile("sgd", "sparse_categorical_crossentropy")
    return again


def reload_pickle(model, path):
    return pickle.loads(pickle.dumps(model))


def reload_deepcopy(model, path):
    return copy.deepcopy(model)


def reload_clone(model, path):
    return keras.models.clone_model(model)


def reload_clone_with_its_weights(model, path):
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    # A clone of a functional model is private, and would be a separate run with its own
    # key.
    clone.optimizer.build(clone.trainable_variables)
    for mine, other in zip(clone.optimizer.variables, model.optimizer.variables):
        mine.assign(other)
    return clone


# InvalidArgumentError is raised inside a graph, and the other errors by Python code.
REFUSALS = (tf.errors.InvalidArgumentError, TypeError, ValueError, RuntimeError)
RELOADS = [
    reload_keras,
    reload_keras_after_h5,
    reload_uncompiled,
    reload_pickle,
    reload_deepcopy,
    reload_clone,
    reload_clone_with_its_weights,
]


def ways_to_train(model, plan, data):
    """Returns named functions that train on the plan's batches or on plain data."""
    x, y = data
    first = next(iter(plan.batches(x, y)))
    stream = tf.data.Dataset.from_tensor_slices(data).batch(6)
    return {
        "schedule": lambda: model.fit(plan.batches(x, y), epochs=1, verbose=0),
        "arrays": lambda: model.fit(x, y, epochs=1, verbose=0),
        "stream": lambda: model.fit(stream, epochs=1, verbose=0),
        "batch of the plan": lambda: model.train_on_batch(first),
        "batch of arrays": lambda: model.train_on_batch(x, y),
    }


def assert_trains_with_privacy_or_not_at_all(model, plan, data):
    """Asserts that each way to train is private or refused; returns the private ways.

    A way is given by its key in `ways_to_train`.
    """
    trained = []
    for name, train in ways_to_train(model, plan, data).items():
        before = [weight.copy() for weight in model.get_weights()]
        steps = getattr(model.optimizer, "steps_taken", 0)
        try:
            train()
        except REFUSALS:
            after = model.get_weights()
            assert all(map(np.array_equal, before, after)), name
        else:
            # Only a noisy step advances the step counter.
            assert isinstance(model, tf_bandmf.keras.extending.PrivateTraining), name
            assert isinstance(model.optimizer, tf_bandmf.keras.PrivateOptimizer), name
            assert model.optimizer.plan.fingerprint == plan.fingerprint
            assert model.optimizer.steps_taken > steps, name
            trained.append(name)
    return trained


@pytest.fixture(scope="module", params=[False, True], ids=["sequential", "functional"])
def halfway(request):
    """Returns a model that was trained for one epoch; tests must not change it."""
    admission.forget()
    plan = make_plan("lambda_cgd", test_seed=None)
    model = make_private_model(plan, functional=request.param)
    model.fit(plan.batches(*data), epochs=1, verbose=0)
    return model


def note_run(model):
    """Registers the model's run again, since other tests clear the register."""
    run = model.optimizer.run
    admission.record(run, run.schedule_id)


@pytest.mark.parametrize("reload", RELOADS)
@pytest.mark.slow_cases(
    but=["sequential-reload_uncompiled", "sequential-reload_clone_with_its_weights"]
)
@pytest.mark.invariant(11)
def test_a_reloaded_model_does_not_train_without_privacy(reload, halfway, tmp_path):
    optimizer, plan = halfway.optimizer, halfway.optimizer.plan
    note_run(halfway)
    again = reload(halfway, tmp_path)
    trained = assert_trains_with_privacy_or_not_at_all(again, plan, data)
    # Clones of functional models do not train either, because they would start a second
    # run.
    assert trained == []
    assert optimizer.steps_taken == plan.num_steps // 2


@pytest.mark.slow_cases("functional")
@pytest.mark.invariant(11)
def test_uncompiled_and_with_a_new_private_optimizer(halfway, tmp_path):
    model, plan = halfway, halfway.optimizer.plan
    note_run(model)
    model.save(tmp_path / "m.keras")
    again = keras.models.load_model(tmp_path / "m.keras", compile=False)
    compile_model(again, tf_bandmf.keras.PrivateOptimizer("sgd", plan))
    assert assert_trains_with_privacy_or_not_at_all(again, plan, data) == []
    new = tf_bandmf.keras.PrivateOptimizer("sgd", plan, additional_run=True)
    compile_model(again, new)
    trained = assert_trains_with_privacy_or_not_at_all(again, plan, data)
    # The second run is announced, so it may train, with its own key and budget.
    assert trained == ["schedule"]
    keys = [m.optimizer.run.secrets.key.secret_bytes() for m in (model, again)]
    assert keys[0] != keys[1]


def settings_of(model):
    return model._settings


@pytest.mark.parametrize(
    "settings",
    [
        {"microbatch_size": 2, "alone": ["words"]},
        {"tables": ["words"]},
    ],
    ids=["groups", "lazy"],
)
@pytest.mark.parametrize("functional", [False, True], ids=["sequential", "functional"])
@pytest.mark.invariant(11)
def test_copies_keep_the_settings_of_the_step_or_do_not_train(
    settings, functional, tmp_path
):
    inputs = keras.Input((2,), dtype="int32")
    words = keras.layers.Embedding(9, 2, name="words")
    layers = [words, keras.layers.Flatten(), keras.layers.Dense(3)]
    model = keras.Sequential([inputs, *layers])
    if functional:
        model = keras.Model(inputs, model(inputs))
    tf_bandmf.keras.make_private(model, **settings)
    plan = make_plan()
    make_private_model(plan, model=model)
    config = keras.saving.serialize_keras_object(model)
    copies = [keras.saving.deserialize_keras_object(config)]
    copies += [reload_keras(model, tmp_path)]
    clone = keras.models.clone_model(model)
    if functional:
        copies += [clone]
    else:
        given = np.zeros((len(data[0]), 2), "int32"), data[1]
        assert assert_trains_with_privacy_or_not_at_all(clone, plan, given) == []
    for other in copies:
        assert settings_of(other) == settings_of(model)


def test_an_optimizer_of_another_shape_does_not_load(halfway):
    store = {}
    halfway.optimizer.save_own_variables(store)
    inner = keras.optimizers.SGD(0.1, momentum=0.9)
    other = make_private_model(halfway.optimizer.plan, inner)
    other.optimizer.build(other.trainable_variables)
    with pytest.raises(ValueError, match="inner optimizers or models differ"):
        other.optimizer.load_own_variables(store)
