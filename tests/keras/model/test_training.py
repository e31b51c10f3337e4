"""Private training against a plain re-implementation, and in all of Keras' ways."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_bandmf
import tf_bandmf.keras
from tf_bandmf import noise
from tf_bandmf.noise.keys import NoiseKey
from tf_bandmf.strategies import FAMILIES

# Whatever is registered must train.
MECHANISMS = [family.examples[0] for family in FAMILIES.values()]


def reference_weights(model, plan, x, y, learning_rate, clip):
    """The same run by batch-of-one gradients, NumPy and a dense C^-1 Z."""
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
def test_noise_on_the_clipped_sum_then_a_public_constant(
    mechanism, data, make_plan, make_plain_model, make_private_model
):
    # 22 examples in batches of 5 and 6: the realized batch size is not used.
    plan = make_plan(mechanism, l2_norm_clip=0.7)
    private = make_private_model(plan)
    private.fit(plan.batches(*data), epochs=2, verbose=0)
    expected = reference_weights(make_plain_model(), plan, *data, 0.1, 0.7)
    for actual, wanted in zip(private.get_weights(), expected):
        np.testing.assert_allclose(actual, wanted, atol=2e-4)


@pytest.mark.slow_cases("steps_per_execution", "xla")
@pytest.mark.parametrize(
    "changes",
    [{"jit_compile": True}, {"steps_per_execution": 3}],
    ids=["xla", "steps_per_execution"],
)
def test_every_way_to_execute_gives_the_same_weights(
    changes, data, make_plan, make_private_model, straight_weights
):
    plan, usual = make_plan("bsr", epochs=1), straight_weights("bsr", epochs=1)
    other = make_private_model(plan, **changes)
    other.fit(plan.batches(*data), verbose=0)
    # Sums that differ in last bits may be rounded to neighbors on the grid.
    for a, b in zip(usual, other.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)


@pytest.mark.parametrize("mechanism", ["lambda_cgd", "bsr"])
@pytest.mark.slow_cases("bsr")
@pytest.mark.invariant(9)
def test_a_split_run_is_the_straight_run_bit_for_bit(
    mechanism, data, make_plan, make_private_model, straight_weights
):
    plan, whole = make_plan(mechanism), straight_weights(mechanism, epochs=2)
    split = make_private_model(plan)
    split.fit(plan.batches(*data), epochs=1, verbose=0)
    split.fit(plan.batches(*data), initial_epoch=1, epochs=2, verbose=0)
    for a, b in zip(whole, split.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_an_interruption_within_an_epoch_continues_at_the_right_batch(
    data, make_plan, make_private_model, straight_weights
):
    plan, whole = make_plan("lambda_cgd"), straight_weights("lambda_cgd", epochs=2)
    cut = make_private_model(plan)

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = batch == 1

    cut.fit(plan.batches(*data), epochs=1, callbacks=[Stop()], verbose=0)
    assert cut.optimizer.steps_taken == 2
    cut.fit(plan.batches(*data), epochs=2, verbose=0)
    assert cut.optimizer.steps_taken == plan.num_steps
    for a, b in zip(whole, cut.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_custom_loop_over_train_on_batch(
    data, make_plan, make_private_model, straight_weights
):
    plan, usual = make_plan("lambda_cgd"), straight_weights("lambda_cgd", epochs=2)
    loop = make_private_model(plan)
    for batch in plan.batches(*data):
        loop.train_on_batch(batch)
    # Two graphs: on some processors TensorFlow fuses other operations in one of them.
    for a, b in zip(usual, loop.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


@pytest.mark.parametrize(
    "inner",
    [
        lambda: keras.optimizers.Adam(0.01, weight_decay=0.01, use_ema=True),
        lambda: keras.optimizers.SGD(
            keras.optimizers.schedules.CosineDecay(0.1, 8), momentum=0.9
        ),
    ],
    ids=["adam", "schedule"],
)
@pytest.mark.slow_cases("adam")
def test_any_inner_optimizer_with_metrics_validation_and_callbacks(
    inner, data, plan_and_model, tmp_path
):
    plan, model = plan_and_model(inner=inner(), metrics=["accuracy"])
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
    assert model.optimizer.steps_taken == 8
    assert int(model.optimizer.iterations) == 8


def test_learning_rate_is_that_of_the_inner_optimizer(make_plan, make_private_model):
    model = make_private_model(make_plan())
    model.optimizer.learning_rate = 0.25
    assert float(model.optimizer.inner_optimizer.learning_rate) == 0.25


def test_training_loss_is_the_mean_over_the_epoch(data, plan_and_model):
    plan, model = plan_and_model("identity", epochs=1, inner=keras.optimizers.SGD(0.0))
    loss = model.fit(plan.batches(*data), verbose=0).history["loss"][0]
    np.testing.assert_allclose(loss, model.evaluate(*data, verbose=0), rtol=1e-5)


@pytest.mark.invariant(8)
def test_fresh_keys_and_distinct_noise(data, make_plan, make_private_model):
    plan = make_plan("identity", epochs=1, test_seed=None, batch_size=22)
    weights = []
    for additional_run in (False, True):
        model = make_private_model(plan, additional_run=additional_run)
        model.fit(plan.batches(*data), verbose=0)
        weights.append(np.concatenate([w.ravel() for w in model.get_weights()]))
    # Independent numbers of float32: one may be equal by chance, not two.
    assert np.sum(weights[0] == weights[1]) <= 1


@pytest.mark.invariant(8)
def test_variables_of_equal_shape_get_different_noise(make_min_sep_plan, compile_model):
    plan = make_min_sep_plan()
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(3, use_bias=False) for _ in range(2)]
    model = keras.Sequential([keras.Input((3,)), *layers])
    before = tf_bandmf.keras.make_private(model).get_weights()
    optimizer = tf_bandmf.keras.PrivateOptimizer(keras.optimizers.SGD(1.0), plan)
    compile_model(model, optimizer, loss="mse")
    # Examples of weight zero: what moves the weights is noise alone.
    model.train_on_batch(np.ones((2, 3)), np.ones((2, 3)), sample_weight=np.zeros(2))
    first, second = (a - b for a, b in zip(model.get_weights(), before))
    assert np.all(first != 0.0)
    assert np.all(first != second)


@pytest.mark.invariant(5)
def test_an_empty_batch_still_takes_a_noisy_step(make_min_sep_plan, make_private_model):
    model = make_private_model(make_min_sep_plan())
    before = model.get_weights()
    model.train_on_batch(np.zeros((0, 5), np.float32), np.zeros((0,), np.int32))
    assert model.optimizer.steps_taken == 1
    for a, b in zip(model.get_weights(), before):
        assert np.all(np.isfinite(a)) and np.all(a != b)


@pytest.mark.invariant(5)
def test_a_non_finite_example_contributes_zero(
    data, make_min_sep_plan, make_private_model
):
    x, y = data[0][:4], data[1][:4]
    poisoned = x.copy()
    poisoned[2] = np.nan
    with_poison = make_private_model(make_min_sep_plan())
    # What it is compared with needs no graph.
    without = make_private_model(make_min_sep_plan())
    with_poison.train_on_batch(poisoned, y)
    without.train_on_batch(np.delete(x, 2, axis=0), np.delete(y, 2))
    for a, b in zip(with_poison.get_weights(), without.get_weights()):
        np.testing.assert_allclose(a, b, atol=1e-6)


@pytest.mark.slow
def test_weight_regularizers_act_beside_the_noise(make_min_sep_plan, compile_model):
    weights = []
    for strength in (0.0, 0.3):
        keras.utils.set_random_seed(0)
        dense = keras.layers.Dense(
            2, kernel_regularizer=keras.regularizers.L2(strength)
        )
        model = tf_bandmf.keras.make_private(
            keras.Sequential([keras.Input((3,)), dense])
        )
        kernel = model.get_weights()[0]
        optimizer = tf_bandmf.keras.PrivateOptimizer(
            keras.optimizers.SGD(1.0), make_min_sep_plan()
        )
        compile_model(model, optimizer, loss="mse")
        model.train_on_batch(np.ones((4, 3)), np.ones((4, 2)))
        weights.append(model.get_weights()[0])
    np.testing.assert_allclose(weights[0] - weights[1], 0.6 * kernel, atol=1e-5)


def test_dropout_has_other_masks_in_each_step(data, make_plan, compile_model):
    plan = make_plan("identity", batch_size=len(data[0]), epochs=4)
    layers = [keras.Input((5,)), keras.layers.Dropout(0.5), keras.layers.Dense(3)]
    model = tf_bandmf.keras.make_private(keras.Sequential(layers))
    still = tf_bandmf.keras.PrivateOptimizer(keras.optimizers.SGD(0.0), plan)
    history = compile_model(model, still).fit(plan.batches(*data), epochs=4, verbose=0)
    assert len(set(history.history["loss"])) == 4
