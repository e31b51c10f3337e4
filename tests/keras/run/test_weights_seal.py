"""Tests that a run detects any change of its weights outside of its private step."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from same_weights import refused
from small_models import (
    compile_model,
    data,
    make_plan,
    make_private_model,
    plan_and_model,
)

from tf_bandmf.keras.run import weights_seal

REFUSED = "not those that the last private step of this run left"


@pytest.mark.invariant(19)
def test_a_plain_model_that_shares_the_weights():
    # If all batches have the same size, the step is traced only once, which saves time.
    plan, model = plan_and_model(batch_size=11, functional=True)
    batches = list(plan.batches(*data))
    model.train_on_batch(batches[0])
    model.train_on_batch(batches[1])
    plain = keras.Model(model.inputs, model.outputs)
    compile_model(plain, "sgd").train_on_batch(*data)
    with refused(model, tf.errors.InvalidArgumentError, REFUSED):
        model.train_on_batch(batches[2])
    with pytest.raises(ValueError, match="reason"):
        model.optimizer.vouch_for_weights(" ")
    model.optimizer.vouch_for_weights("trained on public data")
    model.train_on_batch(batches[2])
    statement = str(model.optimizer.statement())
    assert "Trained on public data." in statement and "vouches" in statement
    # Vouching for one change does not cover later changes.
    model.layers[-1].bias.assign(tf.ones([3]))
    with pytest.raises(tf.errors.InvalidArgumentError, match=REFUSED):
        model.train_on_batch(batches[3])


@pytest.mark.invariant(11)
def test_fit_is_refused_before_anything_runs():
    plan, model = plan_and_model(
        "identity",
        epochs=5,
        batch_size=22,
        inner=keras.optimizers.SGD(0.1, momentum=0.5),
    )
    batches, began = plan.batches(*data), []
    # No later epoch improves val_loss by min_delta, so training stops and restores the
    # weights of the first epoch.
    stops = keras.callbacks.EarlyStopping(
        "val_loss", min_delta=1e9, patience=1, restore_best_weights=True
    )
    begins = keras.callbacks.LambdaCallback(on_train_begin=began.append)
    options = {"epochs": 2, "verbose": 0, "callbacks": [stops, begins]}
    model.fit(batches, validation_data=data, **options)
    assert stops.best_epoch == 0
    taken = model.optimizer.steps_taken
    # Training continues, because the restored weights are from the same run.
    model.fit(batches, epochs=1, verbose=0)
    assert model.optimizer.steps_taken == taken + 1
    model.layers[-1].bias.assign_add([1.0] * 3)
    with pytest.raises(tf.errors.InvalidArgumentError, match=REFUSED) as refusal:
        model.fit(batches, **options)
    assert "Graph execution error" not in str(refusal.value) and len(began) == 1


@pytest.mark.invariant(19)
def test_weights_of_the_runs_own_past(tmp_path):
    plan, model = plan_and_model("identity", epochs=3)
    model.fit(plan.batches(*data), epochs=1, verbose=0)
    model.save_weights(tmp_path / "1.weights.h5")
    early = model.get_weights()
    model.fit(plan.batches(*data), epochs=2, initial_epoch=1, verbose=0)
    model.set_weights(early)
    model.fit(plan.batches(*data), epochs=3, initial_epoch=2, verbose=0)
    assert model.optimizer.steps_taken == plan.num_steps
    assert "vouches that the change" not in str(model.optimizer.statement())


@pytest.mark.invariant(19)
def test_one_bit_and_frozen_weights():
    plan, model = plan_and_model(batch_size=11)
    model.layers[0].trainable = False
    batches = list(plan.batches(*data))
    model.train_on_batch(batches[0])
    for variable in model.weights:
        value = variable.numpy()
        other = value.copy()
        other.flat[0] = np.nextafter(value.flat[0], np.float32(9.0))
        variable.assign(other)
        with pytest.raises(tf.errors.InvalidArgumentError, match=REFUSED):
            model.train_on_batch(batches[1])
        variable.assign(value)
    model.train_on_batch(batches[1])


@pytest.mark.invariant(19)
def test_averages_of_the_run_are_its_own_and_hide_no_other_change():
    plan = make_plan("identity", epochs=3)
    inner = keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.7)
    model = make_private_model(plan, inner)
    swap = keras.callbacks.SwapEMAWeights()
    model.fit(
        plan.batches(*data),
        epochs=2,
        validation_data=data,
        callbacks=[swap],
        verbose=0,
    )
    # The callback has replaced the weights with their moving averages.
    bias = model.layers[0].bias
    average = bias.numpy()
    bias.assign(tf.ones([4]))
    with pytest.raises(tf.errors.InvalidArgumentError, match=REFUSED):
        model.fit(plan.batches(*data), epochs=1, verbose=0)
    bias.assign(average)
    model.fit(plan.batches(*data), epochs=1, verbose=0)
    assert model.optimizer.steps_taken == plan.num_steps
    assert "vouches" not in str(model.optimizer.statement())


def variables():
    rng = np.random.default_rng(0)
    values = [
        rng.normal(size=(7, 5)).astype(np.float32),
        np.zeros(3, np.float32),
        rng.normal(size=3).astype(np.float32),
        np.arange(4, dtype=np.int64),
        np.float32(2.0),
    ]
    actual = [keras.Variable(value, dtype=value.dtype.name) for value in values]
    return [*actual, keras.Variable(np.ones(6), dtype="bfloat16")]


@pytest.mark.parametrize("kind", ["host", "device"])
def test_the_digest_sees_every_change(kind, monkeypatch):
    if kind == "device":
        monkeypatch.setattr(weights_seal, "device_kind", lambda: "GPU")
    weights = variables()
    reference = weights_seal.digest_of(weights)
    assert weights_seal.digest_of(weights) == reference
    for variable in weights:
        value = keras.ops.convert_to_numpy(variable)
        edits = [-value, value + 1]
        if value.size > 1:
            edits += [np.roll(value + np.arange(value.size).reshape(value.shape), 1)]
        for edit in edits:
            if np.array_equal(edit, value) and not np.any(np.signbit(edit)):
                continue
            variable.assign(edit)
            assert weights_seal.digest_of(weights) != reference
        variable.assign(value)
    assert weights_seal.digest_of(weights) == reference
    assert weights_seal.digest_of(weights[::-1]) != reference


@pytest.mark.invariant(19)
def test_a_refused_fit_does_not_vouch_for_what_it_refused():
    plan, model = plan_and_model("identity", epochs=3, batch_size=22)
    model.fit(plan.batches(*data), epochs=1, verbose=0)

    def assign(logs):
        model.layers[-1].bias.assign_add([1.0] * 3)

    callback = keras.callbacks.LambdaCallback(on_train_begin=assign)
    for callbacks in ([callback], []):
        with pytest.raises(tf.errors.InvalidArgumentError, match=REFUSED):
            model.fit(plan.batches(*data), epochs=1, verbose=0, callbacks=callbacks)
    model.optimizer.vouch_for_weights("a constant")
    model.fit(plan.batches(*data), epochs=1, verbose=0)


def test_an_evaluation_within_a_second_fit():
    plan = make_plan("identity", epochs=3, batch_size=22)
    plan = plan.reserve(metrics=0.2, evaluations=2)
    model = make_private_model(plan)
    actual = []
    evaluate = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: actual.append(model.evaluate_privately(*data))
    )
    for _ in range(2):
        model.fit(plan.batches(*data), epochs=1, verbose=0, callbacks=[evaluate])
    assert len(actual) == 2
