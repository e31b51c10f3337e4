"""Tests private training with Keras features against a plain reimplementation."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from same_weights import assert_same, flat
from small_models import (
    data,
    make_min_sep_plan,
    make_plain_model,
    make_plan,
    make_private_model,
    plan_and_model,
    straight_weights,
)

import tf_bandmf.keras
from tf_bandmf import noise
from tf_bandmf.noise.keys import NoiseKey
from tf_bandmf.strategies import FAMILIES

# One mechanism of each registered mechanism family.
MECHANISMS = [family.examples[0] for family in FAMILIES.values()]


def reference_weights(model, plan, x, y, learning_rate, clip):
    """Recomputes a run with gradients of single examples and the dense noise C^-1 Z."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    variables = model.trainable_variables
    sizes = [int(np.prod(v.shape)) for v in variables]
    generator = noise.NoiseGenerator(plan.strategy, sum(sizes))
    keys = generator.initial_state(NoiseKey.for_testing(plan.test_seed)).step_keys
    z = np.stack(
        [noise.standard_normals(keys[i], sum(sizes)) for i in range(plan.num_steps)]
    )
    correlated = np.linalg.solve(plan.strategy.matrix.to_dense(), z)
    schedule = plan.batches(x, y)
    for step in range(plan.num_steps):
        total = np.zeros(sum(sizes))
        for i in schedule.example_indices(step):
            with tf.GradientTape() as tape:
                value = loss(y[i : i + 1], model(x[i : i + 1]))
            gradients = tape.gradient(value, [v.value for v in variables])
            flat = np.concatenate([g.numpy().ravel() for g in gradients])
            total += flat * min(1.0, clip / np.linalg.norm(flat))
        noisy = (
            total + plan.noise_stddev * correlated[step]
        ) / plan.expected_batch_size
        for variable, part in zip(variables, np.split(noisy, np.cumsum(sizes)[:-1])):
            variable.assign_sub(learning_rate * part.reshape(variable.shape))
    return model.get_weights()


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.slow_cases(but=["identity"])
@pytest.mark.invariant(4)
def test_noise_on_the_clipped_sum_then_a_public_constant(mechanism):
    # Batches have 5 or 6 examples, but each sum is divided by the expected batch size.
    plan = make_plan(mechanism, l2_norm_clip=0.7)
    private = make_private_model(plan)
    private.fit(plan.batches(*data), epochs=2, verbose=0)
    expected = reference_weights(make_plain_model(), plan, *data, 0.1, 0.7)
    assert_same(private, expected, atol=2e-4)


# Batches have 5 or 6 examples. The microbatch sizes divide the batch size, do not
# divide it, or exceed it.
@pytest.mark.parametrize(
    ("microbatch_size", "changes"),
    [
        (None, {"jit_compile": True}),
        (None, {"steps_per_execution": 3}),
        (1, {}),
        (3, {"jit_compile": True}),
        (3, {"jit_compile": "auto", "steps_per_execution": 3}),
        (4, {}),
        (64, {}),
    ],
)
@pytest.mark.slow_cases(but=["3-changes3"])
@pytest.mark.invariant(7)
def test_every_way_to_execute_gives_the_same_weights(microbatch_size, changes):
    plan, usual = make_plan("bsr", epochs=1), straight_weights("bsr", epochs=1)
    model = make_plain_model()
    tf_bandmf.keras.make_private(model, microbatch_size=microbatch_size)
    make_private_model(plan, model=model, **changes)
    model.fit(plan.batches(*data), verbose=0)
    # Noise is drawn once per step, however many microbatches the step has.
    assert model.optimizer.steps_taken == plan.num_steps
    # Noisy sums are rounded to a grid, so sums that differ only by rounding errors can
    # end up one grid step apart.
    assert_same(model, usual, atol=1e-4)


def in_epochs(model, batches):
    model.fit(batches, epochs=1, verbose=0)
    model.fit(batches, initial_epoch=1, epochs=2, verbose=0)


def stopped(model, batches):
    stop = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: setattr(
            model, "stop_training", batch == 1
        )
    )
    model.fit(batches, epochs=1, callbacks=[stop], verbose=0)
    assert model.optimizer.steps_taken == 2
    model.fit(batches, epochs=2, verbose=0)


def interrupted(model, batches):
    def interrupt(batch, logs):
        if model.optimizer.steps_taken == 2:
            raise KeyboardInterrupt

    callback = keras.callbacks.LambdaCallback(on_train_batch_begin=interrupt)
    with pytest.raises(KeyboardInterrupt):
        model.fit(batches, epochs=2, callbacks=[callback], verbose=0)
    assert model.optimizer.steps_taken == 2
    model.fit(batches, epochs=2, verbose=0)


def a_loop(model, batches):
    for batch in batches:
        model.train_on_batch(batch)


def a_loop_after_fit(model, batches):
    model.fit(batches, epochs=1, verbose=0)
    for batch in batches.dataset(model.optimizer.steps_taken):
        with pytest.raises(RuntimeError, match="inside a tf"):
            tf.function(model.private_gradients, autograph=False)(batch)
        model.optimizer.apply_noisy(model.private_gradients(batch))


@pytest.mark.parametrize(
    "train", [in_epochs, stopped, interrupted, a_loop, a_loop_after_fit]
)
@pytest.mark.parametrize("mechanism", ["lambda_cgd", "bsr"])
@pytest.mark.slow_cases("bsr-*", "lambda_cgd-stopped")
@pytest.mark.invariant(8, 9)
def test_a_run_in_parts_or_by_hand_is_the_straight_run(train, mechanism):
    plan, whole = make_plan(mechanism), straight_weights(mechanism, epochs=2)
    model = make_private_model(plan)
    train(model, plan.batches(*data))
    assert model.optimizer.steps_taken == plan.num_steps
    # On some processors, TensorFlow fuses operations differently in `fit` and in custom
    # loops.
    assert_same(model, whole, **({"atol": 1e-6} if "loop" in train.__name__ else {}))


def test_metrics_validation_and_callbacks(tmp_path):
    plan, model = plan_and_model(inner=keras.optimizers.SGD(0.0), metrics=["accuracy"])
    history = model.fit(
        plan.batches(*data),
        epochs=2,
        validation_data=data,
        callbacks=[
            keras.callbacks.EarlyStopping("val_loss", patience=5),
            keras.callbacks.CSVLogger(tmp_path / "log.csv"),
        ],
        verbose=0,
    ).history
    assert set(history) == {"loss", "accuracy", "val_loss", "val_accuracy"}
    assert model.optimizer.steps_taken == int(model.optimizer.iterations) == 8
    # At learning rate 0, weights stay constant, so training and validation metrics
    # agree.
    for name in ("loss", "accuracy"):
        np.testing.assert_allclose(history[name], history[f"val_{name}"], rtol=1e-5)
    model.optimizer.learning_rate = 0.25
    assert float(model.optimizer.inner_optimizer.learning_rate) == 0.25


@pytest.mark.invariant(8)
def test_variables_of_equal_shape_get_different_noise():
    layers = [keras.layers.Dense(3, use_bias=False) for _ in range(2)]
    model = keras.Sequential([keras.Input((3,)), *layers])
    model = make_private_model(make_min_sep_plan(), model=model, loss="mse")
    before = model.get_weights()
    # All sample weights are zero, so only noise moves the model weights.
    model.train_on_batch(np.ones((2, 3)), np.ones((2, 3)), sample_weight=np.zeros(2))
    first, second = (a - b for a, b in zip(model.get_weights(), before))
    assert np.all(first != 0.0)
    assert np.all(first != second)


@pytest.mark.invariant(5)
def test_an_empty_batch_still_takes_a_noisy_step():
    inner = [keras.layers.Conv1D(2, 3), keras.layers.Flatten()]
    layers = [keras.Input((5, 1)), *inner, keras.layers.Dense(3)]
    model = make_private_model(make_min_sep_plan(), model=layers, metrics=["accuracy"])
    before = flat(model)
    model.train_on_batch(np.zeros((0, 5, 1), np.float32), np.zeros((0,), np.int32))
    assert model.optimizer.steps_taken == 1
    assert np.all(np.isfinite(flat(model))) and np.all(flat(model) != before)


@pytest.mark.slow
def test_weight_regularizers_act_beside_the_noise():
    weights = []
    factor = np.array([[0.3, 0.4]], np.float32)
    for penalty in (None, lambda kernel: tf.reduce_sum(factor * kernel**2)):
        dense = keras.layers.Dense(2, None, True, "ones", kernel_regularizer=penalty)
        model = make_private_model(
            make_min_sep_plan(),
            keras.optimizers.SGD(1.0),
            model=[keras.Input((3,)), dense],
            loss="mse",
        )
        model.train_on_batch(np.ones((4, 3)), np.ones((4, 2)))
        weights.append(model.get_weights()[0])
    difference = weights[0] - weights[1]
    np.testing.assert_allclose(difference, [[0.6, 0.8]] * 3, atol=1e-5)
