"""Audits and statistical tests of the noise detect mechanisms broken on purpose.

A mutation changes one function of the package. A check must pass for the unchanged code
and fail with the mutation, which shows that the check is able to fail.
"""

import functools

import numpy as np
import pytest
import tensorflow as tf

keras = pytest.importorskip("keras", minversion="3.12")

from small_models import make_private_model  # noqa: E402
from small_plans import planned, small_plan  # noqa: E402
from whiteness import whiteness  # noqa: E402

import tf_bandmf  # noqa: E402
import tf_bandmf.keras  # noqa: E402
from tf_bandmf import audit, noise  # noqa: E402
from tf_bandmf.accounting import gaussian  # noqa: E402
from tf_bandmf.analysis import sensitivity  # noqa: E402
from tf_bandmf.keras.clipping.sums import settings  # noqa: E402
from tf_bandmf.keras.run import admission  # noqa: E402
from tf_bandmf.keras.run import run as run_lib  # noqa: E402
from tf_bandmf.keras.run.secrets import SecretState  # noqa: E402
from tf_bandmf.noise import box_muller, generator, normals, recurrences  # noqa: E402
from tf_bandmf.noise.keys import NoiseKey  # noqa: E402
from tf_bandmf.planning.plan import Plan  # noqa: E402
from tf_bandmf.sampling import samplers  # noqa: E402

# Number of coordinates, and of canary examples: each one has its own coordinate.
WIDTH = 1024
STEPS = 12
# Family-wise false-alarm rate of a check.
ALPHA = 1e-6


@pytest.fixture(autouse=True)
def forgets():
    """Clears module state, so that no test sees the mechanism of an earlier test."""

    def forget():
        admission.forget()
        normals.compiled_blocks.cache_clear()
        normals.compiled_pairs.cache_clear()

    forget()
    yield
    forget()


def restart(run):
    """Restores a run's secret state from its saved values, as a new process would."""
    state = run.secrets
    run.adopt(
        run.secrets_of(
            NoiseKey(state.key.secret_bytes()),
            step=state.step,
            buffer=state.buffer,
            points=state.points(),
        )
    )


def train(mechanism, restart_at=None):
    """Trains on canary examples; returns the canaries and the released noisy sums."""
    plan = planned(
        mechanism,
        epsilon=4.0,
        delta=1e-5,
        num_examples=WIDTH,
        batch_size=WIDTH // 4,
        epochs=3,
        test_seed=3,
    )
    included = np.random.default_rng(5).random(WIDTH) < 0.5
    # Each gradient has its own coordinate direction and three times the clip norm.
    x = 3.0 * plan.l2_norm_clip * np.eye(WIDTH, dtype=np.float32)
    y, weights = np.zeros((WIDTH, 1), np.float32), included.astype(np.float32)
    batches = plan.batches(x, y, weights)
    patterns = np.zeros((WIDTH, plan.num_steps))
    for step in range(plan.num_steps):
        patterns[batches.example_indices(step), step] = 1.0
    canaries = audit.GradientCanaries(plan, WIDTH, patterns, included)
    dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    layers = [keras.Input((WIDTH,)), dense]
    model = make_private_model(plan, model=layers, loss=lambda y, score: score[..., 0])
    released = []
    for step, batch in enumerate(batches):
        if step == restart_at:
            restart(model.optimizer.run)
        noisy = model.private_gradients(batch)
        flat = np.concatenate([np.ravel(gradient) for gradient in noisy.gradients])
        released.append(np.float64(flat) * plan.expected_batch_size)
        model.optimizer.apply_noisy(noisy)
    return canaries, np.array(released)


def audited(mechanism):
    """True if the audit of a Keras run agrees with its plan."""
    canaries, released = train(mechanism)
    # In addition, the canaries' signal must not exceed the sensitivity.
    most = 1.0 / canaries.plan.noise_multiplier
    return (
        canaries.signals.max() <= most * (1 + 1e-5)
        and not canaries.audit(released, confidence=1 - ALPHA).contradicts
    )


def audited_sampler():
    """True if a canary audit that uses the plan's sampler agrees with its epsilon."""
    plan = small_plan("identity", 64, 4, 2, epsilon=1.0, sampling="poisson")
    canaries = audit.GradientCanaries.for_plan(plan, 16_384, seed=0)
    return not canaries.audit(canaries.simulated(1), confidence=1 - ALPHA).contradicts


def white_restart(mechanism):
    """True if the noise in a Keras run that is restarted once is the plan's noise."""
    canaries, released = train(mechanism, restart_at=5)
    plan = canaries.plan
    # Released values are rounded to a grid. To undo this, each value is replaced by a
    # random value in its grid cell.
    batch_size = plan.expected_batch_size
    cell = gaussian.grid_of(plan.noise_stddev / batch_size) * batch_size
    within = np.random.default_rng(6).uniform(-0.5, 0.5, released.shape) * cell
    left = (released + within - canaries.sums()) / plan.noise_stddev
    return whiteness(plan.strategy, left, lags=(WIDTH // 2,)).p_value >= ALPHA


def white(mechanism, num_shards=1):
    """True if the generator, without Keras, produces the strategy's noise."""
    plan = planned(
        mechanism,
        epsilon=4.0,
        delta=1e-5,
        num_steps=STEPS,
        sampling=tf_bandmf.MinSep(4, 3),
    )
    size = 4096 * num_shards
    made = noise.NoiseGenerator(
        plan.strategy, size, num_shards=num_shards, jit_compile=False
    )
    parts = []
    for shard in range(num_shards):
        state, rows = made.initial_state(NoiseKey.for_testing(3)), []
        for step in range(STEPS):
            row, state = made.next(state, tf.constant(step), shard)
            rows.append(row.numpy())
        parts.append(np.array(rows))
    whole = np.concatenate(parts, axis=1)
    return whiteness(plan.strategy, whole, lags=(size // 2, 4096)).p_value >= ALPHA


# All mutations, in the order of their definition.
MUTATIONS = []


def broken(title, invariants, *check):
    """Registers the decorated mutation; `check` (function, arguments) must fail with it."""

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


@broken("Noise used again after a restart", [8, 11], white_restart, "bsr:4")
def restart_reuses_noise(patch):
    begin = SecretState.__init__

    def earlier(state, generator, key, plan, step=0, **rest):
        begin(state, generator, key, plan, step, **rest)
        state._step_keys = np.roll(state._step_keys, step, axis=0)

    patch.setattr(SecretState, "__init__", earlier)


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

    patch.setattr(run_lib, "noisy_mean", noisy_mean)


@broken("No clipping", [6, 17], audited, "identity")
def no_clipping(patch):
    ones = lambda _, bounds, __: tf.ones_like(bounds, dtype=tf.float32)  # noqa: E731
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
    """True if a check passes for the unchanged code."""
    return check(*arguments)
