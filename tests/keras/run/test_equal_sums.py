"""Tests that two histories that reach the same sum differently share no noise."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_models import built, make_private_model
from small_plans import small_plan

import tf_bandmf
from tf_bandmf.keras.model import preparation
from tf_bandmf.keras.run import admission, noising
from tf_bandmf.keras.tables.lazy import LazyTables

SIZE, EXAMPLES, BATCH = 40, 24, 8


def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(EXAMPLES, SIZE)).astype("f4")
    return x, rng.normal(size=(EXAMPLES, SIZE)).astype("f4")


def releases_of_history(change=None, factors=(0.0, 0.0, 0.0)):
    """Returns the noisy gradients of three steps with a fixed key and constant weights.

    Args:
      change: function that changes the data; it gets the inputs, the targets, and the
        index of an example in the first batch.
      factors: factors of the loss, one for each step; with 0, the sum is zero.
    """
    admission.forget()
    plan = small_plan("bsr:2", EXAMPLES, BATCH, 1, noise_multiplier=3.0)
    dropout = keras.layers.Dropout(0.5, seed=1)
    dense = keras.layers.Dense(SIZE, use_bias=False, kernel_initializer="zeros")
    factor = tf.Variable(0.0)
    model = make_private_model(
        plan,
        model=[keras.Input((SIZE,)), dense, dropout],
        loss=lambda y, y_pred: factor * keras.ops.sum(y * y_pred, axis=-1),
    )
    built(model, key=bytes(32))
    x, y = data()
    if change is not None:
        numbers = plan.batches(np.arange(EXAMPLES), y).dataset(0)
        change(x, y, int(next(iter(numbers))["x"][0]))
    noisy = []
    for now, batch in zip(factors, plan.batches(x, y).dataset(0)):
        factor.assign(now)
        noisy.append(model.private_gradients(batch))
        model.optimizer.apply_noisy(noisy[-1], lambda gradients, variables: None)
    return np.array([tf.reshape(actual.gradients[0], [-1]) for actual in noisy])


def other_record(x, y, place):
    x[place, 0] += 1.0


def other_target(x, y, place):
    y[place, 3] += 1.0


HISTORIES = {"record": other_record, "target": other_target}
# The standard deviation of one coordinate's noise. C has the coefficients 1 and 1/2, so
# the norm of each column is sqrt(1.25).
STEP = 3.0 / BATCH * np.sqrt(1.25)


@pytest.fixture(scope="module")
def unchanged():
    """Returns a cached function that computes the unchanged run's noisy gradients."""
    return functools.cache(lambda binding: releases_of_history())


@pytest.mark.attack(
    "Equal sums in two histories of a run",
    tried="Trains two copies of a run, one of which has a different record or target "
    "in its first batch, but the same sums. Compares the releases: if they were equal "
    "bit for bit, they would prove that the difference contributed nothing.",
    area="noise",
)
@pytest.mark.parametrize("history", HISTORIES)
@pytest.mark.invariant(8, 11)
def test_equal_sums_do_not_show(history, unchanged, figure, monkeypatch):
    first = unchanged("as it is")
    difference = first - releases_of_history(HISTORIES[history])
    actual = difference[0].std() / (np.sqrt(2.0) * STEP)
    figure(f"{history}: the difference has {actual:.1f} times the noise of two runs")
    assert 0.9 < actual < 1.1
    # Control: with noise that depends only on the sums, the noisy gradients are equal.
    noisy = noising.Noising.noisy

    def of_sums_alone(self, sums, scales, step, keys, facts, stored):
        return noisy(self, sums, scales, step, keys, tf.zeros_like(facts), stored)

    monkeypatch.setattr(noising.Noising, "noisy", of_sums_alone)
    control = unchanged("control") - releases_of_history(HISTORIES[history])
    assert not control.any()


@pytest.mark.attack(
    "Two histories that meet again",
    tried="Trains two copies of a run whose losses differ only at the first step, and "
    "whose weights never change, so all later sums are equal. If both then drew equal "
    "noise, the difference of the second releases would be a multiple of that of the "
    "first releases, and the data would follow without noise.",
    area="noise",
)
@pytest.mark.invariant(8, 9, 11)
def test_histories_that_meet_again_share_no_noise(unchanged, figure, monkeypatch):
    def correlation(difference):
        return np.corrcoef(difference[0], difference[1])[0, 1]

    difference = unchanged("as it is") - releases_of_history(factors=(1.0, 0.0, 0.0))
    actual = correlation(difference)
    figure(f"the differences of two steps are correlated by {actual:.2f}")
    # The noise of successive steps is correlated, because C's second coefficient is
    # 1/2.
    assert -0.6 < actual < -0.2
    # From the first step with different sums on, the two copies draw independent noise.
    assert min(difference.std(axis=1)) > STEP
    monkeypatch.setattr(noising, "_point", lambda digest, step, stored: digest)
    without = unchanged("no chain") - releases_of_history(factors=(1.0, 0.0, 0.0))
    assert correlation(without) < -0.99


ROWS, STDDEV = 60, 3.0


def releases_of(rates, releases):
    """Trains a table with lazy noise for two steps; returns the rows that step 0 read.

    Args:
      rates: the learning rate of each step.
      releases: the steps after which the table is released and its rows are returned.
    """
    admission.forget()
    plan = small_plan("identity", EXAMPLES, BATCH, 1, noise_multiplier=STDDEV)
    ids = keras.Input((2,), dtype="int32")
    table = keras.layers.Embedding(ROWS, 3, embeddings_initializer="ones")
    inner = keras.optimizers.SGD(1.0)
    model = make_private_model(
        plan,
        inner,
        model=keras.Model(ids, keras.layers.Flatten()(table(ids))),
        # The gradient of this loss is 1 in each entry of a row that was read.
        loss=lambda y, y_pred: keras.ops.sum(y_pred, axis=-1),
        settings={"tables": "lazy"},
    )
    preparation.build(model)
    built(model, key=bytes(32))
    # No two examples read the same row.
    x = np.arange(2 * EXAMPLES, dtype=np.int32).reshape(EXAMPLES, 2)
    batches = list(plan.batches(x, np.zeros([EXAMPLES, 1], "f4")).dataset(0))
    actual = []
    for step, rate in enumerate(rates):
        inner.learning_rate.assign(rate)
        model.train_on_batch(batches[step])
        if step in releases:
            model.release()
            actual.append(table.embeddings.numpy()[batches[0]["x"].numpy().ravel()])
    return actual


def noise_of(*rates):
    return STDDEV / BATCH * np.sqrt(np.sum(np.square(rates)))


def by_two_rates():
    """Combines two runs with different rates at step 1 so that shared noise cancels."""
    (a,), (b,) = releases_of((0.5, 0.6), {1}), releases_of((0.5, 2.0), {1})
    u, v = noise_of(0.5, 0.6), noise_of(0.5, 2.0)
    return (a * v - b * u) / (v - u)


def by_one_more_release():
    """Combines two runs, one with an extra release, so that shared noise cancels."""
    (a,), (first, b) = releases_of((0.5, 0.5), {1}), releases_of((0.5, 0.5), {0, 1})
    return a - noise_of(0.5, 0.5) * (b - first) / noise_of(0.5)


@pytest.mark.slow
@pytest.mark.attack(
    "Two equations for the same noise of a lazy table",
    tried="Takes the second step of two copies of a run at two learning rates, or "
    "releases one table before that step. In rows that only step one read, the copies "
    "have different multiples of the same noise: solves for these rows without the "
    "noise.",
    area="noise",
)
@pytest.mark.parametrize("solved", [by_two_rates, by_one_more_release])
@pytest.mark.invariant(8, 11)
def test_lazy_rows_do_not_give_two_equations(solved, figure, monkeypatch):
    actual = solved()
    digest = LazyTables.digest

    def of_sums_alone(self, sums, step):
        self._basis.assign(tf.zeros_like(self._basis))
        with monkeypatch.context() as patch:
            patch.setattr(LazyTables, "_rate", lambda self: tf.zeros([], tf.float64))
            return digest(self, sums, step)

    # Control: if noise depends only on the sums, the equations give the exact rows.
    monkeypatch.setattr(LazyTables, "digest", of_sums_alone)
    # These are the rows without noise: a gradient with six equal entries is clipped to
    # norm 1, and the learning rate is 0.5.
    exact = 1.0 - 0.5 / BATCH / np.sqrt(6.0)
    np.testing.assert_allclose(solved(), exact, atol=1e-4)
    error = (actual - exact).std() / noise_of(0.5)
    figure(f"{solved.__name__}: the solution has {error:.1f} times the noise of a step")
    assert error > 1.0


@pytest.mark.invariant(8, 9)
def test_runs_that_share_a_program_have_their_own_noise():
    """Asserts that two runs that share a compiled program still draw their own noise.

    The runs take turns with the program. Each releases the same values as it does alone.
    """
    sampling = tf_bandmf.FixedEpochOrder(EXAMPLES, BATCH, 2)
    budget = {"noise_multiplier": 1.0, "delta": 1e-5, "num_examples": EXAMPLES}
    plan = tf_bandmf.plan("bsr:3", sampling=sampling, **budget)

    def begun(number):
        layers = [keras.Input((SIZE,)), keras.layers.Dense(SIZE)]
        options = {"loss": "mse", "additional_run": True}
        model = make_private_model(plan, model=layers, **options)
        return built(model, key=bytes([number] * 32))

    def releases(*models):
        each = [[] for _ in models]
        for batch in plan.batches(*data()).dataset(0):
            for model, released in zip(models, each, strict=True):
                noisy = model.private_gradients(batch)
                model.optimizer.apply_noisy(noisy, lambda gradients, variables: None)
                released.append(noisy.gradients[0])
        return np.array(each)

    alone = []
    for number in (1, 2):
        admission.forget()
        keras.utils.set_random_seed(0)
        alone.append(releases(begun(number))[0])
    admission.forget()
    models = []
    for number in (1, 2):
        keras.utils.set_random_seed(0)
        models.append(begun(number))
    np.testing.assert_array_equal(releases(*models), alone)
    # Releases lie on a grid, so a few numbers are equal by chance.
    assert np.mean(np.equal(*alone)) < 0.01
    assert len(noising.SHARED) == 1
