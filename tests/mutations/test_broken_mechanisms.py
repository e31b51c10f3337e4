"""Audits and statistical tests detect mechanisms that are broken on purpose.

A mutation changes one function of the package. A check, such as an audit, must pass for
the unchanged code and fail with the mutation. This shows that the check can fail.
"""

import functools

import numpy as np
import pytest
import tensorflow as tf

pytest.importorskip("keras", minversion="3.12")

import audited_runs
from small_plans import planned, small_plan
from whiteness import rows_of, whiteness

import tf_bandmf
import tf_bandmf.keras
from tf_bandmf import audit
from tf_bandmf.analysis import sensitivity
from tf_bandmf.keras.clipping.sums import settings
from tf_bandmf.keras.run import admission, noising
from tf_bandmf.noise import box_muller, generator, normals, recurrences
from tf_bandmf.noise.keys import NoiseKey
from tf_bandmf.planning.plan import Plan
from tf_bandmf.sampling import samplers

STEPS = 12
# The probability that a check fails for correct code.
ALPHA = 1e-6


@pytest.fixture(autouse=True)
def forgets():
    """Clears caches of the package before and after each test."""

    def forget():
        admission.forget()
        normals.compiled_blocks.cache_clear()
        normals.compiled_pairs.cache_clear()

    forget()
    yield
    forget()


def audited(mechanism):
    """Returns whether the audit of a Keras run agrees with the run's plan."""
    plan = audited_runs.plan_of(mechanism, epsilon=1.0)
    actual = audited_runs.audited(plan, confidence=1 - ALPHA).white_box
    # The audit must not contradict the plan's epsilon. In addition, the signal of the
    # canaries must not exceed the sensitivity.
    most = (1 + 1e-5) / plan.noise_multiplier
    return actual.signal <= most and not actual.contradicts


def audited_sampler():
    """Returns whether a canary audit that samples agrees with the plan's epsilon."""
    plan = small_plan("identity", 64, 4, 2, epsilon=1.0, sampling="poisson")
    canaries = audit.GradientCanaries.for_plan(plan, 16_384, seed=0)
    return not canaries.audit(canaries.simulated(1), confidence=1 - ALPHA).contradicts


def white(mechanism, num_shards=1):
    """Returns whether the noise generator's output is the strategy's noise."""
    plan = planned(mechanism, num_steps=STEPS, sampling=tf_bandmf.MinSep(4, 3))
    noise = rows_of(plan.strategy, 4096 * num_shards, num_shards, seed=3)
    lags = (2048 * num_shards, 4096)
    return whiteness(plan.strategy, noise, lags).p_value >= ALPHA


# The parameters of the test below: one mutation each, in order of definition.
MUTATIONS = []


def broken(title, invariants, *check):
    """Registers a mutation that makes `check`, a function and its arguments, fail."""

    def register(change):
        attack = pytest.mark.attack(
            title,
            tried="Changes the code and runs a check, which must fail.",
            area="mutations",
        )
        marks = [attack, pytest.mark.invariant(*invariants)]
        name = change.__name__
        MUTATIONS.append(pytest.param(check, change, id=name, marks=marks))
        return change

    return register


@broken("One key for two variables", [8], white, "identity")
def one_key_for_variables(patch):
    weighted = generator.weighted_normals

    def halves(keys, weights, size, *rest, **named):
        half = weighted(keys, weights, -(-size // 2), *rest, **named)
        return tf.concat([half, half], axis=0)[:size]

    patch.setattr(generator, "weighted_normals", halves)


@broken("One key for all steps", [8], white, "identity")
def one_key_for_steps(patch):
    keys = NoiseKey.step_keys
    repeated = lambda key, count, *more: np.repeat(keys(key, 1, *more), count, 0)  # noqa: E731
    patch.setattr(NoiseKey, "step_keys", repeated)


@broken("Lambda multiplies the noise of two steps ago", [9], white, "lambda_cgd")
def lambda_off_by_one(patch):
    row = recurrences.Regeneration.row

    def late(recurrence, normals_of, buffer, step):
        def earlier(steps, weights):
            moved = tf.where(steps < step, tf.maximum(steps - 1, 0), steps)
            return normals_of(moved, weights)

        return row(recurrence, earlier, buffer, step)

    patch.setattr(recurrences.Regeneration, "row", late)


@broken("Bands in the wrong order", [9], white, "bsr:4")
def bands_in_wrong_order(patch):
    at = recurrences._Rows.at

    def reversed_bands(rows, step):
        row = at(rows, step)
        return tf.concat([row[:1], row[1:][::-1]], axis=0)

    patch.setattr(recurrences._Rows, "at", reversed_bands)


@broken("Column norms forgotten in the noise", [3, 9], white, "bsr:4:normalized")
def column_norms_forgotten(patch):
    def unscaled(recurrence, normals_of, buffer, step):
        return recurrence._row(normals_of, buffer, step)

    patch.setattr(recurrences.Recurrence, "row", unscaled)


@broken("All replicas generate the noise of replica 0", [8], white, "identity", 2)
def anothers_part(patch):
    row = generator.NoiseGenerator.row
    first = lambda self, keys, buffer, step, shard=0: row(self, keys, buffer, step, 0)  # noqa: E731
    patch.setattr(generator.NoiseGenerator, "row", first)


@broken("Two normals that share their radius", [8], white, "identity")
def shared_radius(patch):
    def pairs(words, shared):
        first, second, third, angle = words
        length = tf.sqrt(box_muller.squared_radius(first, second, third, shared))
        cosine, _ = box_muller.cosine_and_sine(angle)
        return length * cosine, -length * cosine

    patch.setattr(normals, "box_muller", pairs)


@broken("Noise divided by the batch size twice", [4], audited, "identity")
def noise_on_the_mean(patch):
    def noisy_mean(total, noise, stddev, batch_size):
        return (total + stddev * noise / batch_size) / batch_size

    patch.setattr(noising, "noisy_mean", noisy_mean)


@broken("No clipping", [6, 17], audited, "identity")
def no_clipping(patch):
    ones = lambda _, bounds, *__: tf.ones_like(bounds, dtype=tf.float32)  # noqa: E731
    patch.setattr(settings.Clip, "weights", ones)


@broken("Noise scaled by a column norm, not by sensitivity", [3], audited, "bsr:4")
def sigma_of_columns(patch):
    def stddev(plan):
        columns = plan.strategy.matrix.column_norms()
        return plan.noise_multiplier * float(columns.max()) * plan.l2_norm_clip

    patch.setattr(Plan, "noise_stddev", property(stddev))


@broken("Sensitivity of one participation for three", [3], audited, "lambda_cgd")
def one_participation(patch):
    exact = sensitivity._exact
    patch.setattr(sensitivity, "_exact", lambda m, b, k, fixed: exact(m, b, 1, False))


@broken(
    "Canaries in every step, accounted for as Poisson samples", [2], audited_sampler
)
def always_sampled(patch):
    def everybody(self, step):
        return np.arange(step % self._parts, self._total, self._parts)

    patch.setattr(samplers.PoissonSampler, "example_indices", everybody)


@pytest.mark.slow_cases(
    but=["one_key_*", "lambda_off*", "bands_in*", "anothers_part", "no_clipping"]
)
@pytest.mark.parametrize("check, change", MUTATIONS)
def test_it_is_caught(check, change, figure, monkeypatch):
    assert passes(*check)
    admission.forget()
    normals.compiled_blocks.cache_clear()
    change(monkeypatch)
    holds, *arguments = check
    assert not holds(*arguments)
    named = ", ".join(map(str, arguments))
    figure(f"caught by `{holds.__name__}({named})`")


@functools.cache
def passes(check, *arguments):
    """Returns whether a check passes for the unchanged code."""
    return check(*arguments)
