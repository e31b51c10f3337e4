"""Tests the distribution, likelihood ratios and accounting of b-min-sep sampling.

Statistical tests use fixed seeds, as the docstring of test_balls_in_bins.py explains.
"""

import itertools
import time

import numpy as np
import pytest
import scipy.stats
from small_plans import small_plan

import tf_bandmf
from tf_bandmf import matrices, strategies
from tf_bandmf.accounting.b_min_sep import BMinSepAccountant
from tf_bandmf.accounting.b_min_sep_passes import Passes
from tf_bandmf.accounting.b_min_sep_simulator import BMinSepSimulator
from tf_bandmf.accounting.cyclic_poisson import CyclicPoissonAccountant
from tf_bandmf.participation import BMinSepSampling

ERRORS = 4.0
BANDED = matrices.ToeplitzBanded([1.0, 0.5, 0.25], 24)


def law(num_steps, separation, rate):
    """Returns the probability of each participation pattern, by enumeration."""
    p = rate / (1 - rate * (separation - 1))
    actual = {}
    for taken in itertools.product([0, 1], repeat=num_steps):
        for first in range(separation):
            weight = rate if first else 1 - rate * (separation - 1)
            free = first
            for t, now in enumerate(taken):
                if t < free:
                    weight *= not now
                else:
                    weight *= p if now else 1 - p
                    free = t + separation if now else free
            actual[taken] = actual.get(taken, 0.0) + weight
    return {taken: weight for taken, weight in actual.items() if weight > 0.0}


@pytest.mark.parametrize(
    "separation, rate", [(1, 0.3), (3, 0.25), (3, 1 / 3), (9, 0.05)]
)
def test_forward_pass_is_the_sum_over_all_participations(separation, rate):
    n, bands = 7, min(separation, 3)
    exact = law(n, separation, rate)
    assert sum(exact.values()) == pytest.approx(1.0)
    # Each step samples the example with the same probability.
    for t in range(n):
        marginal = sum(weight for taken, weight in exact.items() if taken[t])
        assert marginal == pytest.approx(rate)
    rng = np.random.default_rng(0)
    rows = matrices.ToeplitzBanded(rng.random(bands) + 0.1, n).as_rows()
    passes = Passes(rows, separation, rate)
    dense = matrices.RowBanded(rows).to_dense()
    y = rng.standard_normal((3, n))
    noise = 0.8
    u = passes.inner_products(y) / noise**2
    expected = 0.0
    for taken, weight in exact.items():
        mean = dense @ np.array(taken)
        expected = expected + weight * np.exp(
            y @ mean / noise**2 - mean @ mean / (2 * noise**2)
        )
    u -= 0.5 * passes.squares / noise**2
    actual = passes.log_ratios(u, [passes.probability])[0]
    np.testing.assert_allclose(actual, np.log(expected), rtol=1e-10)
    largest = max(np.sum((dense @ np.array(taken)) ** 2) for taken in exact)
    assert passes.largest_squared_norm() == pytest.approx(largest)
    np.testing.assert_allclose(
        passes.mean, sum(w * (dense @ np.array(t)) for t, w in exact.items())
    )


def estimate(matrix, separation, rate, num_draws=8000):
    return BMinSepAccountant(matrix, separation, rate, num_draws=num_draws)


def test_without_a_rest_it_is_poisson_sampling():
    """At separation 1, b-min-sep uses the Poisson accountant; simulations agree."""
    large = strategies.identity(50_000).matrix
    actual = BMinSepSampling(10**7, 1000, 1).accountant(large)
    assert isinstance(actual, CyclicPoissonAccountant)
    law = actual.num_queries, actual.sampling_probability, actual.column_norm
    assert law == (50_000, 1e-4, 1.0)
    matrix = strategies.identity(12).matrix
    exact = CyclicPoissonAccountant.of_strategy(matrix, 1, 0.2)
    actual = estimate(matrix, 1, 0.2)
    for noise, epsilon in ((1.5, 1.0), (0.8, 4.0)):
        delta = actual.delta(epsilon, noise)
        assert delta.standard_error < 0.1 * delta
        difference = delta - exact.delta(epsilon, noise)
        assert abs(difference) < ERRORS * delta.standard_error + 1e-3 * delta


def test_forward_passes_neither_overflow_nor_underflow():
    passes = Passes(np.ones((400, 1)), 1, 0.9)
    for shift in (-200.0, 0.0, 200.0, 400.0):
        actual = passes.log_ratios(np.full((2, 400), shift), [passes.probability])[0]
        expected = 400 * np.logaddexp(np.log(0.1), np.log(0.9) + shift)
        np.testing.assert_allclose(actual, expected, rtol=1e-10, atol=1e-10)


SMALL = np.array([[1.0, 0.0], [1.2, 0.5], [0.8, 0.7]])


def exact_deltas(rows, separation, rate, noise, epsilon):
    """Returns the deltas of removing and adding an example, integrated on a grid."""
    dense = matrices.RowBanded(rows).to_dense()
    axis = np.linspace(-8.0, 10.0, 145)
    y = noise * np.stack(np.meshgrid(axis, axis, axis, indexing="ij"), -1)
    density = np.exp(-0.5 * (y**2).sum(-1) / noise**2) / (2 * np.pi) ** 1.5
    ratio = 0.0
    for taken, weight in law(3, separation, rate).items():
        mean = dense @ np.array(taken)
        ratio = ratio + weight * np.exp((y @ mean - mean @ mean / 2) / noise**2)
    cell, threshold = (axis[1] - axis[0]) ** 3, np.exp(epsilon)
    assert (ratio * density).sum() * cell == pytest.approx(1.0, abs=1e-6)
    removed = (np.maximum(ratio - threshold, 0.0) * density).sum() * cell
    added = (np.maximum(1.0 - threshold * ratio, 0.0) * density).sum() * cell
    return removed, added


@pytest.mark.slow_cases("1.0-1.5-3-0.1", "1.0-1.5-2-0.3", "2.5-0.3-2-0.3")
@pytest.mark.parametrize("separation, rate", [(2, 0.3), (3, 0.1)])
@pytest.mark.parametrize("noise, epsilon", [(1.0, 1.5), (2.5, 0.3)])
def test_estimates_and_bounds_against_enumeration(separation, rate, noise, epsilon):
    exact = exact_deltas(SMALL, separation, rate, noise, epsilon)
    given = matrices.RowBanded(SMALL), separation, rate
    estimates = BMinSepAccountant(*given, num_draws=20_000)
    for value, run in zip(exact, estimates._simulator.runs(epsilon, noise)):
        actual = run.estimate(epsilon)
        assert (
            abs(actual - value) < ERRORS * actual.standard_error + 1e-3 * value + 1e-9
        )
        assert actual.standard_error < 0.05 * value + 1e-9
    certain = BMinSepAccountant(*given, 1 - 1e-6, num_draws=20_000)
    bound = certain.delta(epsilon, noise)
    assert max(exact) <= bound <= 1.35 * max(exact)
    assert estimates.delta(epsilon, noise) <= bound
    # At the exact delta, the bound on epsilon is at most 1.3 times the exact epsilon.
    assert epsilon <= certain.epsilon(max(exact), noise) <= 1.3 * epsilon


@pytest.mark.slow
@pytest.mark.parametrize("add", [False, True])
def test_bounds_fail_no_more_often_than_stated(add):
    """Bounds with confidence 0.9 are below the exact delta for at most 10% of seeds."""
    noise, epsilon, times = 1.3, 1.0, 60
    exact = exact_deltas(SMALL, 2, 0.3, noise, epsilon)[add]
    misses = 0
    for seed in range(times):
        simulator = BMinSepSimulator(Passes(SMALL, 2, 0.3), 1000, seed).at(noise, add)
        proposal, largest, _ = simulator.propose_for_bound(
            epsilon, np.log(20.0), 0.5 * exact
        )
        run = simulator.simulate(proposal, (1, 0))
        misses += run.bound(epsilon, largest, 0.1, 1e-12) < exact
    assert scipy.stats.binom.sf(misses - 1, times, 0.1) > 1e-3


def test_what_it_cannot_account_for_is_refused():
    with pytest.raises(ValueError, match="at most 2 bands, but found 3"):
        estimate(BANDED, 2, 0.1)
    with pytest.raises(ValueError, match="without negative entries"):
        estimate(matrices.ToeplitzBanded([1.0, -0.5], 24), 4, 0.1)
    with pytest.raises(ValueError, match=r"confidence must be in \[0.5, 1\)"):
        BMinSepAccountant(BANDED, 4, 0.1, 1.0)
    with pytest.raises(ValueError, match="num_parts must be <= num_examples"):
        BMinSepSampling(10, 3, 4)


@pytest.mark.parametrize("mechanism", ["bsr:4", "banded:16"])
def test_runs_that_are_too_long_to_simulate_are_refused_before_anything(mechanism):
    began, said = time.process_time(), r"num_steps must be <= .*found 300000.*cyclic-p"
    with pytest.raises(ValueError, match=said):
        small_plan(mechanism, 10**9, 10**4, 3, delta=1e-10, sampling="b-min-sep")
    with pytest.raises(ValueError, match="and 2 bands, num_steps must be <= 7539"):
        estimate(matrices.ToeplitzBanded([1.0, 0.5], 20_000), 4, 1e-5)
    # Simulations of these runs would take hours.
    assert time.process_time() - began < 60.0


def test_importance_sampling_knows_rare_losses_of_long_runs():
    """For 3,000 steps and 9 participations, delta's standard error is below 25%.

    If the proposal distribution were too wide, the estimate would be off by 50%.
    """
    matrix = strategies.bsr(tf_bandmf.workloads.prefix_sum(3000), bands=8).matrix
    accountant = BMinSepAccountant(matrix, 8, 3e-3, num_draws=1000)
    actual = accountant.delta(2.0, 1.45)
    assert 1e-9 < actual < 1e-4
    assert actual.standard_error < 0.25 * actual
