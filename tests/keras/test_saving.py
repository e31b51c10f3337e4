"""Saving, loading and copying: no secret in any file, no way to train on unnoticed."""

import copy
import pathlib
import pickle

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_bandmf.keras


@pytest.fixture
def trained(data, make_plan, make_private_model):
    plan = make_plan("bsr", bands=3, test_seed=None)
    model = make_private_model(plan)
    model.fit(plan.batches(*data), epochs=1, verbose=0)
    return model, plan


def test_invariant_10_no_file_holds_a_secret(trained, secrets_of, contains, tmp_path):
    model, _ = trained
    secrets = secrets_of(model)

    def checkpoint(path):
        tf.train.Checkpoint(model=model, optimizer=model.optimizer).write(str(path))

    writers = {
        "model.keras": lambda path: model.save(path),
        "no_optimizer.keras": lambda path: model.save(path, include_optimizer=False),
        "model.h5": lambda path: model.save(path),
        "model.weights.h5": lambda path: model.save_weights(path),
        "export": lambda path: model.export(path, verbose=False),
        "saved_model": lambda path: tf.saved_model.save(model, str(path)),
        "checkpoint/all": checkpoint,
        "model.pickle": lambda path: path.write_bytes(pickle.dumps(model)),
        "plan.json": lambda path: model.optimizer.plan.save(str(path)),
    }
    for name, write in writers.items():
        path = tmp_path / pathlib.Path(name).stem / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path)
        assert not contains(path.parent, secrets), name
    # The search finds what is there.
    found = tmp_path / "control"
    found.write_bytes(b"x" + secrets[0] + b"y")
    assert contains(found, secrets)


def test_invariant_10_repr_and_copies_hide_the_state(trained):
    model, _ = trained
    state = model.optimizer._secret_state
    assert "secret" in repr(state)
    for leak in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="secret"):
            leak(state)


def reload_keras(model, path):
    model.save(path / "m.keras")
    return keras.models.load_model(path / "m.keras")


def reload_keras_after_h5(model, path):
    # Keras' legacy writer removes the optimizer from the compile config it is given.
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


def reload_h5(model, path):
    model.save(path / "m.h5")
    return keras.models.load_model(path / "m.h5")


@pytest.mark.parametrize("functional", [False, True])
@pytest.mark.parametrize(
    "reload",
    [
        reload_keras,
        reload_keras_after_h5,
        reload_uncompiled,
        reload_pickle,
        reload_deepcopy,
        reload_h5,
    ],
)
def test_invariant_11_a_reloaded_model_does_not_train_on(
    reload, functional, data, make_plan, make_private_model, tmp_path
):
    plan = make_plan("lambda_cgd", test_seed=None)
    model = make_private_model(plan, functional=functional)
    model.fit(plan.batches(*data), epochs=1, verbose=0)
    with pytest.raises(Exception) as refusal:
        again = reload(model, tmp_path)
        again.fit(plan.batches(*data), epochs=1, verbose=0)
    assert isinstance(
        refusal.value, (tf.errors.InvalidArgumentError, TypeError, ValueError)
    ), refusal.value


def test_invariant_11_the_refusal_says_what_to_do(
    data, make_plan, make_private_model, tmp_path
):
    plan = make_plan("lambda_cgd", test_seed=None)
    model = make_private_model(plan)
    model.fit(plan.batches(*data), epochs=1, verbose=0)
    again = reload_keras(model, tmp_path)
    assert isinstance(again.optimizer, tf_bandmf.keras.PrivateOptimizer)
    assert again.optimizer.plan.fingerprint == plan.fingerprint
    before = again.get_weights()
    with pytest.raises(tf.errors.InvalidArgumentError, match="files hold no noise key"):
        again.fit(plan.batches(*data), epochs=1, verbose=0)
    for a, b in zip(again.get_weights(), before):
        np.testing.assert_array_equal(a, b)


def test_a_reloaded_model_predicts(trained, data, tmp_path):
    model, _ = trained
    again = reload_keras(model, tmp_path)
    np.testing.assert_allclose(again(data[0]), model(data[0]), atol=1e-6)


def test_clone_model_is_private_too(trained, data, make_plain_model):
    model, _ = trained
    clone = keras.models.clone_model(model)
    clone.compile("sgd", "sparse_categorical_crossentropy")
    if isinstance(clone, tf_bandmf.keras.PrivateTraining):
        with pytest.raises(TypeError, match="PrivateOptimizer"):
            clone.fit(*data, verbose=0)


def test_an_optimizer_of_another_shape_does_not_load(trained, make_private_model):
    model, plan = trained
    store = {}
    model.optimizer.save_own_variables(store)
    other = make_private_model(plan, keras.optimizers.SGD(0.1, momentum=0.9))
    other.optimizer.build(other.trainable_variables)
    with pytest.raises(ValueError, match="belongs to another"):
        other.optimizer.load_own_variables(store)
