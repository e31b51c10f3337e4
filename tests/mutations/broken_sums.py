"""Broken: what the noise is added to, how much, and at which steps."""

import mechanism_checks as checks
import numpy as np
import tensorflow as tf
from mutation import broken, suite

from tf_bandmf.accounting import gaussian
from tf_bandmf.analysis import sensitivity
from tf_bandmf.keras.clipping.factors import norms
from tf_bandmf.keras.clipping.independence import operations
from tf_bandmf.keras.clipping.sums import settings
from tf_bandmf.keras.compat import keras_operations
from tf_bandmf.keras.model.programs import Programs
from tf_bandmf.keras.run import run as run_lib
from tf_bandmf.keras.run.secrets import SecretState
from tf_bandmf.noise import generator
from tf_bandmf.planning.plan import Plan

# What the noise is added to, and how much.


@broken(
    "Noise for the sum on the mean",
    checks.audited,
    "identity",
    says="the audit",
    invariants=(4,),
)
def noise_on_the_mean(patch):
    def noisy_mean(total, noise, stddev, batch_size, is_clipped):
        return (total + stddev * noise / batch_size) / batch_size

    patch.setattr(run_lib, "noisy_mean", noisy_mean)


@broken("No clipping", checks.audited, "identity", says="the audit", invariants=(6, 17))
def no_clipping(patch):
    patch.setattr(
        settings,
        "clip_weights",
        lambda bounds, clip: tf.ones_like(bounds, dtype=tf.float32),
    )


@broken(
    "Norms of terms that cancel",
    checks.cancelling_records_are_clipped,
    says="a record adds",
    invariants=(17,),
)
def norms_that_cancel(patch):
    def as_measured(measured, absolute):
        return norms.Norms(measured, tf.maximum(measured, 0.0))

    patch.setattr(norms, "of_sums", as_measured)


@broken(
    "A layer that mixes examples",
    checks.mixing_is_isolated,
    says="one record moves",
    invariants=(16,),
)
def mixing_layer(patch):
    # The table says that a mean over the batch has no examples in it.
    mean = keras_operations.numpy.Mean
    patch.setitem(operations.OPERATIONS, mean, lambda call: None)


@broken(
    "Sigma per column norm read as sigma per sensitivity",
    checks.audited,
    "bsr:4",
    says="the audit|more than the plan.s",
    invariants=(3,),
)
def sigma_of_columns(patch):
    def stddev(plan):
        columns = plan.strategy.matrix.column_norms()
        return plan.noise_multiplier * float(columns.max()) * plan.l2_norm_clip

    patch.setattr(Plan, "noise_stddev", property(stddev))


@broken(
    "Sensitivity of one participation for three",
    checks.audited,
    "lambda_cgd",
    says="the audit|signal",
    invariants=(3,),
)
def one_participation(patch):
    exact = sensitivity._exact
    patch.setattr(sensitivity, "_exact", lambda m, b, k, fixed: exact(m, b, 1, False))


@broken(
    "More bands than the separation, taken for orthogonal",
    checks.audited,
    "bsr:8",
    says="the audit|signal",
    invariants=(3,),
)
def taken_for_orthogonal(patch):
    def orthogonal(matrix, b, k, fixed_order):
        squared = sensitivity.vec_sens(matrix.column_norms() ** 2, b, k)
        return sensitivity.Sensitivity(float(np.sqrt(squared)), True, "orthogonal")

    patch.setattr(sensitivity, "_exact", orthogonal)


@broken(
    "Half the noise that the budget needs",
    checks.audited,
    "identity",
    says="found a delta|gives at epsilon|the audit",
    invariants=(12,),
)
def too_little_noise(patch):
    calibrate = gaussian.calibrate_noise_stddev
    patch.setattr(
        gaussian,
        "calibrate_noise_stddev",
        lambda epsilon, delta: 0.5 * calibrate(epsilon, delta),
    )


# Which steps have noise.


@broken(
    "Noise drawn for each micro-step",
    checks.white,
    "identity",
    says="whiteness",
    invariants=(7,),
)
def noise_per_micro_step(patch):
    draw = SecretState.draw

    def twice(state, step, keys, total, inputs):
        again, _ = draw(state, step, keys[:, ::-1], total, inputs)
        noise, drawn = draw(state, step, keys, total, inputs)
        return noise + again, drawn

    patch.setattr(SecretState, "draw", twice)


def _without_noise_if(patch, condition):
    noised = Programs._noised

    def without(self, clipped, *more):
        noisy, skip = noised(self, clipped, *more), condition(clipped)
        gradients = [tf.where(skip, tf.zeros_like(g), g) for g in noisy.gradients]
        return noisy._replace(gradients=gradients)

    patch.setattr(Programs, "_noised", without)


@broken(
    "An empty batch without noise",
    checks.empty_batch_is_noisy,
    says="empty batch",
    invariants=(5,),
)
def empty_batch_dropped(patch):
    _without_noise_if(patch, lambda clipped: tf.equal(tf.size(clipped.norms), 0))


@broken(
    "NaN that skips the noise",
    checks.bad_record_is_noisy,
    says="beside NaN",
    invariants=(5, 18),
)
def nan_skips_noise(patch):
    def is_bad(clipped):
        finite = tf.math.is_finite(clipped.losses) & tf.math.is_finite(clipped.norms)
        return ~tf.reduce_all(finite)

    _without_noise_if(patch, is_bad)


@suite(
    "noise/test_noise.py",
    "test_horizon",
    says="DID NOT RAISE",
    title="The last row of the noise again, past the horizon",
    invariants=(1,),
)
def past_the_horizon(patch):
    def clamped(self, step):
        step = tf.cast(step, tf.int64)
        return tf.clip_by_value(step, 0, self.num_steps - 1)

    patch.setattr(generator.NoiseGenerator, "checked_step", clamped)
