"""Bounds without simulation against enumeration, quadrature and the simulation."""

import functools
import itertools
from unittest import mock

import numpy as np
import pytest
import scipy.special

import tf_bandmf
from tf_bandmf import strategies
from tf_bandmf.accounting import (
    bins_chain,
    bins_conditional,
    bins_kernel,
    bins_laplace,
    bins_moments,
    gaussian,
    simulated_bounds,
)
from tf_bandmf.accounting.balls_in_bins import BallsInBinsAccountant
from tf_bandmf.accounting.bins_certain import NAME, QUICK, CertainBins
from tf_bandmf.accounting.bins_kernel import Kernel
from tf_bandmf.accounting.bins_mixture import gram_matrix
from tf_bandmf.participation import BallsInBins
from tf_bandmf.planning.calibration import accountant_for

FLAT = Kernel(4, own=0.5, common=0.1, ripple=0.0, decay=0.0)
WAVY = Kernel(5, own=0.9, common=0.1, ripple=0.3, decay=0.4)
STEEP = Kernel(6, own=1.3, common=0.0, ripple=0.9, decay=0.7)


def matrix_of(kernel):
    b = kernel.num_bins
    distance = np.abs(np.subtract.outer(np.arange(b), np.arange(b)))
    off = kernel.at(np.maximum(distance, 1))
    return np.where(distance == 0, kernel.own, off)


def log_moment(gram, order):
    """By enumeration of all b^order tuples."""
    b = len(gram)
    pairs = list(itertools.combinations(range(order), 2))
    exponents = [
        sum(gram[j[s], j[t]] for s, t in pairs)
        for j in itertools.product(range(b), repeat=order)
    ]
    return float(scipy.special.logsumexp(exponents)) - order * np.log(b)


def two_bins(gram, function):
    """E_Q of a function of L for two bins, on a grid in the plane."""
    axis = np.linspace(-9.0, 9.0, 721)
    factor = np.linalg.cholesky(gram)
    x, y = np.meshgrid(axis, axis, indexing="ij")
    u = factor[0, 0] * x, factor[1, 0] * x + factor[1, 1] * y
    ratio = 0.5 * sum(np.exp(u[i] - gram[i, i] / 2) for i in range(2))
    density = np.exp(-0.5 * (x**2 + y**2)) / (2 * np.pi)
    return float((function(ratio) * density).sum() * (axis[1] - axis[0]) ** 2)


@pytest.mark.parametrize("kernel", [FLAT, WAVY, STEEP])
def test_moments_are_not_below_enumeration(kernel):
    logs = bins_moments.log_moments(kernel, 5)
    exact = [log_moment(matrix_of(kernel), order) for order in range(6)]
    assert np.all(logs >= np.array(exact) - 1e-12)
    if kernel is FLAT:
        np.testing.assert_allclose(logs, exact, rtol=0.0, atol=1e-8)
    # A circle of a few bins is the worst case for the gap.
    assert np.all(logs <= 1.5 * np.array(exact) + 1e-6)


def test_moments_of_a_long_circle_are_tight():
    kernel = Kernel(60, own=1.0, common=0.0, ripple=0.9, decay=0.6)
    logs = bins_moments.log_moments(kernel, 3)
    gram = matrix_of(kernel)
    second = np.log(np.exp(gram).mean())
    third = np.exp(gram[:, :, None] + gram[:, None, :] + gram[None, :, :])
    np.testing.assert_allclose(logs[2:], [second, np.log(third.mean())], rtol=0.4)
    assert logs[2] >= second and logs[3] >= np.log(third.mean())


@pytest.mark.parametrize("ripple, common", [(0.0, 0.0), (0.4, 0.0), (0.3, 0.2)])
@pytest.mark.parametrize("t", [0.5, 4.0, 40.0])
def test_laplace_transform_is_that_of_quadrature(ripple, common, t):
    kernel = Kernel(2, own=1.2, common=common, ripple=ripple, decay=0.5)
    exact = two_bins(matrix_of(kernel), lambda ratio: np.exp(-t * ratio))
    found = np.exp(bins_laplace.log_laplace(t, kernel))
    assert found == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("delta", [1e-7, 1e-3, 0.2])
@pytest.mark.parametrize("own, ripple", [(0.3, 0.0), (2.0, 0.4), (9.0, 0.0)])
def test_epsilon_by_the_transform_is_where_its_delta_is_reached(own, ripple, delta):
    kernel = Kernel(8, own=own, common=0.0, ripple=ripple, decay=0.5)
    found = bins_laplace.epsilon_by_laplace(delta, kernel, 30.0)
    at = bins_laplace.delta_by_laplace(found, kernel)
    assert at <= delta * (1.0 + 1e-2)
    if found > 0.0:
        assert delta <= at * (1.0 + 1e-2)


def test_an_epsilon_that_holds_is_not_exceeded_by_the_transform():
    kernel = Kernel(8, own=9.0, common=0.0, ripple=0.0, decay=0.5)
    assert bins_laplace.epsilon_by_laplace(1e-12, kernel, 0.5) == 0.5


def some_grams():
    rng = np.random.default_rng(4)
    dense = np.tril(rng.random((24, 24))) + np.eye(24)
    yield gram_matrix(strategies.lambda_cgd(24, 0.8).matrix, 8)
    yield gram_matrix(strategies.bsr(tf_bandmf.workloads.prefix_sum(24), 24).matrix, 6)
    yield gram_matrix(tf_bandmf.matrices.Dense(dense), 8)
    yield gram_matrix(strategies.identity(24).matrix, 12)


def test_the_kernel_is_a_covariance_above_the_gram_matrix():
    for gram in some_grams():
        kernel = bins_kernel.above(gram, 3.0 * np.sqrt(gram.max()))
        larger = matrix_of(kernel)
        assert np.all(larger >= gram)
        assert np.linalg.eigvalsh(larger).min() >= -1e-9 * larger.max()


def test_the_circulant_is_a_covariance_above_the_gram_matrix():
    for gram in some_grams():
        row = bins_conditional.circulant_above(gram)
        b = row.size
        larger = row[np.subtract.outer(np.arange(b), np.arange(b)) % b]
        assert np.all(larger >= gram)
        assert np.linalg.eigvalsh(larger).min() >= -1e-9 * row[0]


@pytest.mark.parametrize("noise, epsilon", [(0.7, 3.0), (1.0, 1.0), (2.0, 0.5)])
def test_given_the_own_noise_the_bound_is_above_quadrature_and_near_it(noise, epsilon):
    gram = np.array([[1.0, 0.3], [0.3, 1.0]])
    exact = two_bins(
        gram / noise**2, lambda ratio: np.maximum(ratio - np.exp(epsilon), 0.0)
    )
    row = bins_conditional.circulant_above(gram)
    logs = bins_conditional.log_moments(row, noise)
    found = bins_conditional.delta_from_moments(epsilon, logs)
    assert exact * (1.0 - 1e-4) <= found
    if epsilon == 3.0:
        assert found <= 3.0 * exact


def in_space(gram, function, step=0.125):
    """E_Q of a function of L for three bins, on a grid in space."""
    axis = np.arange(-8.0, 8.0 + step, step)
    z = np.stack(np.meshgrid(axis, axis, axis, indexing="ij"), -1)
    u = z @ np.linalg.cholesky(gram).T
    ratio = np.exp(u - np.diagonal(gram) / 2).mean(axis=-1)
    density = np.exp(-0.5 * (z**2).sum(-1)) / (2 * np.pi) ** 1.5
    return float((function(ratio) * density).sum() * step**3)


THRESHOLDS = np.exp([0.0, 0.2, 0.7, 1.5, 2.5, 4.0])


@pytest.mark.slow_cases("kernel6-1.1", "kernel4-1.3", "kernel5-1.3")
@pytest.mark.parametrize(
    "kernel, most",
    [
        (Kernel(2, own=0.4 * 1.16, common=0.0, ripple=0.4, decay=0.4), 1.25),
        (Kernel(2, own=2.0 * 1.64, common=0.0, ripple=2.0, decay=0.8), 1.4),
        (Kernel(2, own=0.8, common=0.2, ripple=0.3, decay=0.5), 1.25),
        (Kernel(2, own=0.8, common=0.2, ripple=0.0, decay=0.0), 1.1),
        (Kernel(3, own=1.2 * 1.216, common=0.0, ripple=1.2, decay=0.6), 1.3),
        (Kernel(3, own=1.3, common=0.1, ripple=0.7, decay=0.6), 1.3),
        (Kernel(3, own=0.9, common=0.0, ripple=0.0, decay=0.0), 1.1),
    ],
)
def test_bin_after_bin_is_above_quadrature_and_near_it(kernel, most):
    expect = two_bins if kernel.num_bins == 2 else in_space
    gram = matrix_of(kernel)
    found = bins_chain.profile(kernel, 4.0)
    assert np.all(np.diff(found.deltas) <= 1e-7)
    seen = 0
    for threshold in THRESHOLDS:
        exact = expect(gram, lambda ratio, k=threshold: np.maximum(ratio - k, 0.0))
        bound = float(found.at(threshold))
        # The quadrature has errors of its own.
        assert bound >= exact * (1.0 - 2e-4)
        if exact > 1e-5:
            assert bound <= most * exact
            seen += 1
    assert seen >= 3
    # A coarser grid is further above.
    rough = bins_chain.profile(kernel, 4.0, bins_chain.Grid(0.5, (0.02, 0.02, 0.05)))
    assert np.all(rough.at(THRESHOLDS) >= 0.999 * found.at(THRESHOLDS))


@pytest.mark.slow
def test_bin_after_bin_is_above_simulation_for_long_chains():
    kernel = Kernel(24, own=1.5, common=0.05, ripple=1.2, decay=0.7)
    simulated = BallsInBinsAccountant(matrix_of(kernel), num_draws=40_000)
    found = bins_chain.profile(kernel, 3.0)
    for epsilon in (0.5, 1.5, 3.0):
        estimate = simulated._simulator.runs(epsilon, 1.0)[0].estimate(epsilon)
        assert estimate.standard_error < 0.03 * estimate.value
        bound = float(found.at(np.exp(epsilon)))
        assert bound >= estimate.value - 4.0 * estimate.standard_error
        assert bound <= 1.4 * estimate.value


def test_chords_are_above_convex_functions_and_keep_the_mean():
    nodes = np.array([-2.0, -0.5, 0.1, 0.9, 2.5, 6.0])
    mean, deviation = np.array([-3.0, 0.0, 0.3, 5.5]), 0.7
    weights, tail = bins_chain._chords(mean, deviation, nodes)
    z = np.linspace(-9.0, 9.0, 200_001)
    density = np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi) * (z[1] - z[0])
    for function in (lambda x: np.exp(x), lambda x: np.maximum(x - 0.4, 0.0)):
        for i, center in enumerate(mean):
            x = center + deviation * z
            inside = (function(np.maximum(x, nodes[0])) * density)[x <= nodes[-1]]
            assert weights[i] @ function(nodes) >= inside.sum() - 1e-6
    for i, center in enumerate(mean):
        x = center + deviation * z
        inside = (np.maximum(x, nodes[0]) * density)[x <= nodes[-1]].sum()
        assert weights[i] @ nodes == pytest.approx(inside, abs=1e-4)
        beyond = (np.exp(x) * density)[x > nodes[-1]].sum()
        assert tail[i] == pytest.approx(beyond, rel=1e-2, abs=1e-9)


def test_factors_of_the_independent_part_are_a_spread_that_keeps_the_mean():
    for rest in (0.01, 0.5, 3.0):
        terms, excess = bins_chain._independent(rest, 0.2)
        weights, nodes = np.array(terms).T
        assert weights.sum() == pytest.approx(1.0)
        assert weights @ nodes + excess == pytest.approx(1.0, abs=1e-9)
        assert weights @ nodes**2 >= np.exp(rest) * (1.0 - 1e-6)
        z = np.linspace(-9.0, 9.0, 100_001)
        density = np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi) * (z[1] - z[0])
        factor = np.exp(np.sqrt(rest) * z - 0.5 * rest)
        for strike in (0.5, 1.0, 2.0):
            exact = (np.maximum(factor - strike, 0.0) * density).sum()
            found = weights @ np.maximum(nodes - strike, 0.0) + excess
            assert found >= exact - 1e-9


def test_too_little_noise_for_the_chain_is_refused_and_left_to_the_others():
    kernel = Kernel(5, own=60.0, common=0.0, ripple=50.0, decay=0.5)
    with pytest.raises(ValueError, match="chain of the bins needs more noise"):
        bins_chain.profile(kernel, 10.0)
    gram = gram_matrix(strategies.lambda_cgd(12, 0.5).matrix, 4)
    assert CertainBins(gram)._profile(0.1 * np.sqrt(gram.max()), 20.0, None) is None


def test_the_chain_is_what_makes_small_epsilon_tight():
    gram = gram_matrix(strategies.lambda_cgd(120, 0.7).matrix, 40)
    certain = CertainBins(gram)
    estimate = BallsInBinsAccountant(gram, num_draws=20_000).epsilon(1e-5, 5.0)
    assert estimate.value < 1.0
    bound = certain.epsilon(1e-5, 5.0)
    assert estimate.value - 4.0 * estimate.standard_error <= bound
    assert bound <= 1.08 * estimate.value
    assert certain._quickly_removed(bound, 5.0) > 2e-5


@pytest.mark.parametrize("ratio, epsilon", [(0.6, 4.0), (1.0, 2.0), (2.0, 0.5)])
@pytest.mark.parametrize("lam", [0.0, 0.5, 0.9])
def test_delta_is_not_below_quadrature_in_any_direction(lam, ratio, epsilon):
    gram = gram_matrix(strategies.lambda_cgd(4, lam).matrix, 2)
    noise = ratio * np.sqrt(gram.max())
    threshold = np.exp(epsilon)
    scaled = gram / noise**2
    removed = two_bins(scaled, lambda ratio: np.maximum(ratio - threshold, 0.0))
    added = two_bins(scaled, lambda ratio: np.maximum(1.0 - threshold * ratio, 0.0))
    found = CertainBins(gram).delta(epsilon, noise)
    assert found >= max(removed, added) * (1.0 - 1e-4)
    assert found <= gaussian.gaussian_delta(ratio, epsilon)


def test_a_conversion_is_never_below_any_distribution_with_these_moments():
    rng = np.random.default_rng(1)
    for _ in range(40):
        ratio = np.exp(rng.normal(0.0, rng.uniform(0.1, 1.5), 200))
        ratio /= ratio.mean()
        logs = np.log([(ratio**a).mean() for a in range(9)])
        for epsilon in (0.1, 1.0, 2.5):
            exact = np.maximum(ratio - np.exp(epsilon), 0.0).mean()
            assert bins_moments.delta_from_moments(epsilon, logs) >= exact


def test_one_bin_is_the_gaussian_mechanism():
    found = CertainBins(np.array([[4.0]])).epsilon(1e-6, 5.0)
    assert found == gaussian.gaussian_epsilon(2.5, 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("grid", [QUICK, None])
def test_bounds_are_above_estimates_and_of_use(grid):
    gram = gram_matrix(strategies.lambda_cgd(80, 0.7).matrix, 20)
    certain, simulated = (
        CertainBins(gram, grid),
        BallsInBinsAccountant(gram, num_draws=20_000),
    )
    for noise, most in ((2.0, 1.2), (4.0, 1.6)):
        estimate = simulated.epsilon(1e-5, noise)
        bound = certain.epsilon(1e-5, noise)
        assert estimate.value - 4.0 * estimate.standard_error <= bound
        assert bound <= most * estimate.value
        assert certain.delta(bound, noise) <= 1e-5
    noise = certain.calibrate_noise_stddev(2.0, 1e-5)
    assert certain.delta(2.0, noise) <= 1e-5 < certain.delta(2.0, 0.98 * noise)


def test_tiny_noise_is_that_without_amplification():
    gram = gram_matrix(strategies.lambda_cgd(12, 0.5).matrix, 4)
    noise = 0.05 * np.sqrt(gram.max())
    found = CertainBins(gram).delta(150.0, noise)
    assert found == gaussian.gaussian_delta(0.05, 150.0)
    with pytest.raises(ValueError, match="Moments need noise"):
        bins_moments.largest_order(bins_kernel.above(gram, noise).scaled(noise))


def test_what_takes_too_many_draws_is_proven_instead(monkeypatch):
    monkeypatch.setattr(simulated_bounds, "_LARGEST_BOUND_DRAWS", 1e3)
    gram = gram_matrix(strategies.lambda_cgd(6, 0.5).matrix, 3)
    accountant = BallsInBinsAccountant(gram, confidence=1.0 - 1e-9)
    found = accountant.calibrate(4.0, 1e-7)
    assert found.guarantee.accountant == NAME and found.guarantee.confidence == 1.0
    assert "proven upper bound" in found.guarantee.describe_kind()
    accountant.validate(found.noise_stddev, found.guarantee)


def test_a_plan_says_beside_an_estimate_what_is_certain():
    arguments = dict(
        epsilon=4.0,
        delta=1e-5,
        num_examples=24,
        batch_size=8,
        epochs=2,
        sampling="balls-in-bins",
    )
    estimated = tf_bandmf.plan("lambda_cgd:0.5", **arguments)
    certain = tf_bandmf.plan("lambda_cgd:0.5", confidence=1, **arguments)
    assert estimated.kind == "estimate"
    remark = "Certain, without simulation: epsilon <= "
    assert remark in str(estimated.statement(certain=True))
    # What is not asked for is not computed.
    with mock.patch.object(CertainBins, "epsilon") as computed:
        assert remark not in str(estimated.statement())
    assert not computed.called
    assert certain.kind == "bound" and certain.accountant == NAME
    assert certain.noise_multiplier > estimated.noise_multiplier
    assert "proven upper bound" in str(certain.statement())


@pytest.mark.parametrize(
    "kernel",
    [
        WAVY,
        STEEP,
        pytest.param(
            Kernel(2, own=2.0, common=0.3, ripple=0.8, decay=0.9),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_quadrature_of_the_autoregression(kernel, monkeypatch):
    """Smaller steps of the lattice, and of each normal variable: the same to 1e-10."""
    places = (0.1, 1.0, 10.0, 1e3)

    def values():
        bins_laplace._transform.cache_clear()
        return np.array([bins_laplace.log_laplace(t, kernel) for t in places])

    found = values()
    step = bins_laplace._lattice_step
    monkeypatch.setattr(bins_laplace, "_lattice_step", lambda v: 0.7 * step(v))
    monkeypatch.setattr(bins_laplace, "_LOG_STEP", 0.5 * bins_laplace._LOG_STEP)
    monkeypatch.setattr(bins_laplace, "_MOST_STEP", 0.5 * bins_laplace._MOST_STEP)
    finer = values()
    bins_laplace._transform.cache_clear()
    np.testing.assert_allclose(found, finer, rtol=0.0, atol=1e-10)
    # A coarse one is told apart.
    monkeypatch.setattr(bins_laplace, "_lattice_step", lambda v: 4.0 * np.sqrt(v))
    assert np.max(np.abs(values() - finer)) > 1e-6
    bins_laplace._transform.cache_clear()


def test_too_many_bins_are_refused_in_the_same_words_everywhere():
    use = dict(num_examples=100_000, batch_size=10, epochs=1, sampling="balls-in-bins")
    participation = BallsInBins(100_000, 10, 1)
    gram = np.broadcast_to(np.ones(1), (10_000, 10_000))
    budget = dict(epsilon=2.0, delta=1e-6)
    strategy = strategies.identity(10_000)
    doors = [
        lambda: tf_bandmf.plan("identity", **budget, **use),
        lambda: tf_bandmf.plan("auto", **budget, **use),
        lambda: tf_bandmf.plan("banded:16", **budget, participation=participation),
        lambda: tf_bandmf.plan("identity", noise_multiplier=2.0, delta=1e-6, **use),
        lambda: CertainBins(gram),
        *(
            functools.partial(accountant_for, strategy, participation, confidence=c)
            for c in (None, 0.99, 1.0)
        ),
    ]
    for door in doors:
        with pytest.raises(ValueError, match="num_bins must be <= 8192, found 10000"):
            door()
