"""Scale-then-privatize: where scales come from, and what is noised and divided."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_bandmf
import tf_bandmf.keras
from tf_bandmf.keras import scaling
from tf_bandmf.keras.batch_contents import as_drawn
from tf_bandmf.keras.clipping import clipped_gradient_sums


@pytest.fixture
def make_scaled(make_plain_model, compile_model):
    def make(plan, inner=None, self_check=False, **changes):
        model = make_plain_model()
        tf_bandmf.keras.make_private(model, self_check=self_check)
        optimizer = tf_bandmf.keras.PrivateOptimizer(
            inner or keras.optimizers.Adam(0.05), plan, additional_run=True, **changes
        )
        return compile_model(model, optimizer)

    return make


def scales_of(moments):
    roots = [np.sqrt(m) for m in moments]
    everything = np.concatenate([r.ravel() for r in roots])
    root = np.sqrt(np.mean(everything**2))
    return [1.1 * root / (r + 0.1 * root) for r in roots]


def test_scales_are_a_function_of_the_second_moments(make_plan, make_scaled, data):
    plan = make_plan(epochs=1)
    model = make_scaled(plan, scaling="second_moment")
    optimizer = model.optimizer
    model.build((None, data[0].shape[1]))
    optimizer.build(model.trainable_variables)
    for scale in optimizer.scales():
        np.testing.assert_array_equal(scale, np.ones(scale.shape))
    model.fit(plan.batches(*data), verbose=0)
    moments = [np.asarray(m) for m in optimizer.inner_optimizer._velocities]
    for found, expected in zip(optimizer.scales(), scales_of(moments), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        assert np.all(found > 0) and np.all(found <= 11.0 * (1 + 1e-6))


def test_moments_that_are_not_finite_scale_by_one():
    optimizer = keras.optimizers.Adam()
    optimizer.build([keras.Variable(np.zeros(3, "f4"))])
    for values in ([0, 0, 0], [np.nan, 1, 1], [np.inf, 1, 1], [3e38, 3e38, 3e38]):
        optimizer._velocities[0].assign(np.array(values, "f4"))
        (scale,) = scaling.second_moment_scales(optimizer)
        assert np.all(np.isfinite(scale)) and np.all(scale > 0)


@pytest.mark.parametrize("mechanism", ["identity", "lambda_cgd"])
def test_a_step_is_the_scaled_sum_with_noise_divided_by_the_scales(
    mechanism, make_plan, make_scaled, data
):
    plan = make_plan(mechanism, epochs=1)
    scaled, plain = make_scaled(plan, scaling="second_moment"), make_scaled(plan)
    batches = list(plan.batches(*data).dataset(0))
    for model in (scaled, plain):
        model.build((None, data[0].shape[1]))
        model.optimizer.build(model.trainable_variables)
    for batch in batches[:2]:
        scales = [np.asarray(s) for s in scaled.optimizer.scales()]
        plain.set_weights(scaled.get_weights())
        plain.optimizer.vouch_for_weights("copied")
        x, y, weight, _ = as_drawn(batch)
        options = {"sample_weight": weight, "l2_norm_clip": plan.l2_norm_clip}
        clipped = clipped_gradient_sums(scaled, x, y, **options)
        of_scaled = clipped_gradient_sums(scaled, x, y, scales=scales, **options)
        first = scaled.private_gradients(batch)
        second = plain.private_gradients(batch)
        # The noise is the same: of one test seed.
        size = plan.expected_batch_size
        for a, b, s, plain_sum, scaled_sum in zip(
            first.gradients,
            second.gradients,
            scales,
            clipped.sums,
            of_scaled.sums,
            strict=True,
        ):
            noise = b - plain_sum / size
            np.testing.assert_allclose(
                a, (scaled_sum / size + noise) / s, rtol=1e-4, atol=1e-6
            )
        scaled.optimizer.apply_noisy(first)
        plain.optimizer.apply_noisy(second)
    assert any(np.any(np.asarray(s) != 1) for s in scaled.optimizer.scales())


def test_saved_and_loaded_with_its_scaling(make_plan, make_scaled, tmp_path):
    model = make_scaled(make_plan(), scaling="second_moment")
    optimizer = model.optimizer
    again = type(optimizer).from_config(optimizer.get_config())
    assert again.scaling == "second_moment"
    assert (
        type(optimizer)
        .from_config(make_scaled(make_plan()).optimizer.get_config())
        .scaling
        is None
    )


@pytest.mark.parametrize(
    "inner, value, message",
    [
        (keras.optimizers.SGD, "second_moment", "has none"),
        (keras.optimizers.Adagrad, "second_moment", "has none"),
        (keras.optimizers.Adam, "first_moment", "must be None or"),
        (keras.optimizers.Adam, 2.0, "must be None or"),
    ],
)
def test_what_cannot_be_scaled_is_refused(
    inner, value, message, make_plan, make_scaled
):
    with pytest.raises(ValueError, match=message):
        make_scaled(make_plan(), inner(0.1), scaling=value)


def test_invariant_11_a_resumed_run_has_the_scales_of_the_straight_run(
    make_plan, make_scaled, data, tmp_path
):
    plan = make_plan("lambda_cgd")

    def train(name, epochs, model=None):
        model = make_scaled(plan, scaling="second_moment", self_check=True)
        model.build((None, data[0].shape[1]))
        backup = keras.callbacks.BackupAndRestore(
            tmp_path / f"{name}-backup", delete_checkpoint=False
        )
        model.fit(
            plan.batches(*data),
            epochs=epochs,
            private_state=tmp_path / f"{name}.private",
            callbacks=[backup],
            verbose=0,
        )
        return model

    straight = train("straight", 2)
    train("split", 1)
    resumed = train("split", 2)
    for a, b in zip(straight.get_weights(), resumed.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(
        straight.optimizer.scales(), resumed.optimizer.scales(), strict=True
    ):
        np.testing.assert_array_equal(a, b)


def test_a_run_does_not_go_on_with_another_scaling(
    make_plan, make_scaled, data, tmp_path
):
    plan = make_plan()
    model = make_scaled(plan, scaling="second_moment")
    model.build((None, data[0].shape[1]))
    state = tmp_path / "run.private"
    model.fit(plan.batches(*data), epochs=1, private_state=state, verbose=0)
    other = make_scaled(plan)
    other.build((None, data[0].shape[1]))
    with pytest.raises(ValueError, match="of a run with another"):
        other.fit(plan.batches(*data), epochs=1, private_state=state, verbose=0)


def test_several_replicas_are_refused(make_plan, make_scaled, monkeypatch):
    model = make_scaled(make_plan(), scaling="second_moment")
    model.build((None, 5))
    strategy = tf.distribute.get_strategy()
    monkeypatch.setattr(type(strategy), "num_replicas_in_sync", 2)
    with pytest.raises(NotImplementedError, match="one replica"):
        model.optimizer.build(model.trainable_variables)
