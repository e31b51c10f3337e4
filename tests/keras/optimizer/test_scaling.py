"""Tests that gradients can be scaled before noise is added, and unscaled afterwards."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from same_weights import assert_same
from small_models import built, data, make_plan, make_private_model

import tf_bandmf
import tf_bandmf.keras
from tf_bandmf.keras.clipping.sums.clipped_sums import clipped_gradient_sums
from tf_bandmf.keras.clipping.tensors.errors import UnsupportedModelError
from tf_bandmf.keras.model.preparation import Contents
from tf_bandmf.keras.optimizer.scaling import scales_of


def make_scaled(plan, inner=None, scaling=None, **changes):
    given = {name: changes.pop(name) for name in ("kind", "groups") if name in changes}
    clipping = tf_bandmf.keras.Clipping(**given, scaling=scaling)
    options = {"additional_run": True, "clipping": clipping, **changes}
    return make_private_model(plan, inner or keras.optimizers.Adam(0.05), **options)


def expected_scales(moments):
    roots = [np.sqrt(m) for m in moments]
    everything = np.concatenate([r.ravel() for r in roots])
    root = np.sqrt(np.mean(everything**2))
    return [1.1 * root / (r + 0.1 * root) for r in roots]


@pytest.mark.slow
def test_scales_are_a_function_of_the_second_moments():
    plan = make_plan(epochs=1)
    model = make_scaled(plan, scaling="second_moment")
    optimizer = model.optimizer
    built(model)
    for scale in optimizer.scales():
        np.testing.assert_array_equal(scale, np.ones(scale.shape))
    model.fit(plan.batches(*data), verbose=0)
    moments = [np.asarray(m) for m in optimizer.inner_optimizer._velocities]
    for actual, expected in zip(
        optimizer.scales(), expected_scales(moments), strict=True
    ):
        np.testing.assert_allclose(actual, expected, rtol=1e-5)
        assert np.all(actual > 0) and np.all(actual <= 11.0 * (1 + 1e-6))


BAD_MOMENTS = {
    "a NaN": [np.nan, 1.0, 1.0],
    "infinite": [np.inf, 1.0, 1.0],
    "negative": [-1.0, 4.0, 4.0],
    "too large to add": [3e38, 3e38, 3e38],
}


@pytest.mark.parametrize("values", list(BAD_MOMENTS.values()), ids=list(BAD_MOMENTS))
def test_moments_of_which_no_scales_follow_give_numbers_that_are_none(values):
    optimizer = keras.optimizers.Adam()
    optimizer.build([keras.Variable(np.zeros(3, "f4"))])
    for sound in ([0.0, 0.0, 0.0], [0.0, 1.0, 2.0], [0.0, 1e-40, 1e30]):
        optimizer._velocities[0].assign(np.array(sound, "f4"))
        (scale,) = scales_of(optimizer)
        assert np.all(np.isfinite(scale)) and np.all(scale > 0)
    optimizer._velocities[0].assign(np.array(values, "f4"))
    (scale,) = scales_of(optimizer)
    assert np.any(np.isnan(scale))


class OfAMetric(keras.optimizers.RMSprop):
    """An optimizer that passes off the state of a metric as its second moments."""

    def update_step(self, gradient, variable, learning_rate):
        variable.assign_sub(learning_rate * gradient)


class Squares(keras.metrics.Metric):
    def __init__(self):
        super().__init__(name="squares")
        self.total = self.add_variable((5, 4), "zeros", name="total")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(tf.fill((5, 4), tf.reduce_sum(y_pred**2)))

    def result(self):
        return tf.reduce_sum(self.total)


@pytest.mark.invariant(10)
def test_scales_of_a_metric_are_refused():
    plan, metric = make_plan(), Squares()
    model = make_scaled(plan, OfAMetric(0.1), scaling="second_moment")
    model.compile(model.optimizer, model.loss, metrics=[metric])
    built(model)
    model.optimizer.inner_optimizer._velocities[0] = metric.total
    with pytest.raises(UnsupportedModelError, match="reads a metric"):
        model.fit(plan.batches(*data), epochs=1, verbose=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "mechanism, changes",
    [
        ("identity", {}),
        ("lambda_cgd", {}),
        ("lambda_cgd", {"kind": "automatic"}),
        ("lambda_cgd", {"groups": "layers"}),
        ("lambda_cgd", {"groups": {"bias": 1, ".*": 2}, "kind": "automatic"}),
        ("lambda_cgd", {"loss_scale_factor": 8.0}),
    ],
)
def test_a_step_is_the_scaled_sum_with_noise_divided_by_the_scales(mechanism, changes):
    # If all batches have the same size, each model is traced only once, which saves
    # time.
    plan = make_plan(mechanism, epochs=1, batch_size=11)
    # Clipping in groups needs more than one layer.
    options = {"hidden": "groups" in changes, **changes}
    scaled = make_scaled(plan, scaling="second_moment", **options)
    plain = make_scaled(plan, **options)
    assert_steps_scale(scaled, plain, plan.batches(*data))


def assert_steps_scale(scaled, plain, schedule):
    """Asserts that a private step equals (scaled sum + noise) / scales."""
    plan = scaled.optimizer.plan
    batches = list(schedule.dataset(0))
    for model in (scaled, plain):
        built(model)
    for batch in batches[:2]:
        scales = [np.asarray(s) for s in scaled.optimizer.scales()]
        plain.set_weights(scaled.get_weights())
        plain.optimizer.vouch_for_weights("copied")
        x, y, weight, rows, *_ = Contents.of(batch)
        options = {
            "sample_weight": weight,
            "rows": rows,
            "l2_norm_clip": plan.l2_norm_clip,
            "clipping": scaled.optimizer.clipping,
        }
        clipped = clipped_gradient_sums(scaled, x, y, **options)
        of_scaled = clipped_gradient_sums(scaled, x, y, scales=scales, **options)
        first = scaled.private_gradients(batch)
        second = plain.private_gradients(batch)
        # Both models draw the same noise, because their plan has a test seed.
        size = plan.expected_batch_size
        grid = 2.0**-10 * plan.noise_stddev / size
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
                a * s, scaled_sum / size + noise, rtol=1e-4, atol=grid
            )
        scaled.optimizer.apply_noisy(first)
        plain.optimizer.apply_noisy(second)
    assert any(np.any(np.asarray(s) != 1) for s in scaled.optimizer.scales())


@pytest.mark.parametrize(
    "inner, value, message",
    [
        (keras.optimizers.SGD, "second_moment", "with second moments, found"),
        (keras.optimizers.Adagrad, "second_moment", "with second moments, found"),
        (keras.optimizers.Adam, "first_moment", "scaling must be one of"),
        (keras.optimizers.Adam, 2.0, "scaling must be one of"),
    ],
)
def test_what_cannot_be_scaled_is_refused(inner, value, message):
    with pytest.raises(ValueError, match=message):
        make_scaled(make_plan(), inner(0.1), scaling=value)


@pytest.mark.invariant(11)
def test_a_resumed_run_has_the_scales_of_the_straight_run(train_from_files):
    plan, options = make_plan("lambda_cgd"), {"scaling": "second_moment"}
    straight, _, resumed = (
        train_from_files(make_scaled(plan, hidden=False, **options), name, epochs)
        for name, epochs in (("straight", 2), ("split", 1), ("split", 2))
    )
    for of in (lambda m: m.get_weights(), lambda m: m.optimizer.scales()):
        assert_same(of(straight), of(resumed))


def test_several_replicas_are_refused(monkeypatch):
    model = make_scaled(make_plan(), scaling="second_moment")
    model.build((None, 5))
    strategy = tf.distribute.get_strategy()
    monkeypatch.setattr(type(strategy), "num_replicas_in_sync", 2)
    with pytest.raises(NotImplementedError, match="one replica"):
        model.optimizer.build(model.trainable_variables)
