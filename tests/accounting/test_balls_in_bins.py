"""Compares the accounting of balls-in-bins sampling with independent computations.

Statistical tests use fixed seeds. With random seeds, each comparison would fail by
chance with a probability of at most 1e-4 (its tolerance is 4 standard errors).
"""

import numpy as np
import pytest
import scipy.stats

from tf_bandmf import matrices, strategies
from tf_bandmf.accounting import gaussian
from tf_bandmf.accounting.b_min_sep_passes import Passes
from tf_bandmf.accounting.b_min_sep_simulator import BMinSepSimulator
from tf_bandmf.accounting.balls_in_bins import BallsInBinsAccountant
from tf_bandmf.accounting.bins_simulator import (
    BinsSimulator,
    Tilt,
    gram_matrix,
)
from tf_bandmf.accounting.simulator import Proposal

ERRORS = 4.0


def columns_of_bins(matrix, num_bins):
    n = matrix.num_rows
    pattern = (np.arange(n)[:, None] % num_bins == np.arange(num_bins)).astype(float)
    return matrix.to_dense() @ pattern


def some_matrices(n):
    rng = np.random.default_rng(5)
    dense = np.tril(rng.random((n, n))) + np.eye(n)
    rows = np.array([dense[i, np.maximum(i - np.arange(4), 0)] for i in range(n)])
    rows[np.arange(n)[:, None] < np.arange(4)] = 0.0
    return {
        "lambda_cgd": strategies.lambda_cgd(n, 0.8).matrix,
        "normalized": strategies.lambda_cgd(n, 0.8, True).matrix,
        "identity": strategies.identity(n).matrix,
        "toeplitz": matrices.ToeplitzBanded([1.0, 0.5, 0.25], n),
        "rows": matrices.RowBanded(rows),
        "dense": matrices.Dense(dense),
    }


@pytest.mark.parametrize("n, b", [(12, 4), (13, 5), (7, 7), (6, 1)])
def test_gram_matrix_is_that_of_the_bin_columns(n, b):
    for name, matrix in some_matrices(n).items():
        m = columns_of_bins(matrix, b)
        actual = gram_matrix(matrix, b)
        np.testing.assert_allclose(
            actual, m.T @ m, rtol=1e-12, atol=1e-12, err_msg=name
        )


def hockey_stick(p, q, epsilon, cell):
    return float(np.maximum(p - np.exp(epsilon) * q, 0.0).sum() * cell)


def two_bins_by_quadrature(gram, noise, epsilon):
    """Returns the deltas of removing and adding an example, integrated on a grid."""
    means = np.linalg.cholesky(gram) / noise
    axis = np.linspace(-9.0, 13.0, 2201)
    cell = (axis[1] - axis[0]) ** 2
    x, y = np.meshgrid(axis, axis, indexing="ij")

    def density(mean):
        return np.exp(-0.5 * ((x - mean[0]) ** 2 + (y - mean[1]) ** 2)) / (2 * np.pi)

    p = 0.5 * density(means[0]) + 0.5 * density(means[1])
    q = density((0.0, 0.0))
    return hockey_stick(p, q, epsilon, cell), hockey_stick(q, p, epsilon, cell)


@pytest.mark.slow_cases("0.9-3.0-1.0", "0.0-3.0-1.0", "0.9-1.5-3.0")
@pytest.mark.parametrize("noise, epsilon", [(1.5, 3.0), (3.0, 1.0)])
@pytest.mark.parametrize("lam", [0.0, 0.9])
def test_two_bins_agree_with_quadrature_in_both_directions(lam, noise, epsilon):
    gram = gram_matrix(strategies.lambda_cgd(4, lam).matrix, 2)
    exact = two_bins_by_quadrature(gram, noise, epsilon)
    runs = BinsSimulator(gram, 50_000, 1).runs(epsilon, noise)
    for run, delta in zip(runs, exact):
        actual = run.estimate(epsilon)
        assert abs(actual - delta) < ERRORS * actual.standard_error + 1e-9
        if delta > 1e-12:
            assert actual.standard_error < 0.05 * delta
    actual = BallsInBinsAccountant(gram, seed=1).delta(epsilon, noise)
    assert abs(actual - max(exact)) < ERRORS * actual.standard_error


@pytest.mark.parametrize("delta", [1e-3, 1e-9])
@pytest.mark.parametrize("num_bins", [1, 3])
def test_a_single_column_is_the_gaussian_mechanism(delta, num_bins):
    """If all bins have the same column, epsilon is that of the Gaussian mechanism."""
    noise = 2.0 * np.sqrt(1.7)
    accountant = BallsInBinsAccountant(np.full((num_bins, num_bins), 1.7))
    exact = gaussian.gaussian_epsilon(2.0, delta)
    actual = accountant.epsilon(delta, noise)
    assert abs(actual - exact) < ERRORS * actual.standard_error + 1e-9
    assert actual.standard_error < 0.02 * exact
    calibrated = accountant.calibrate(exact, delta)
    assert calibrated.noise_stddev == pytest.approx(noise, rel=0.02)


def test_standard_errors_are_honest():
    gram = gram_matrix(strategies.lambda_cgd(80, 0.7).matrix, 20)
    runs = [
        BallsInBinsAccountant(gram, num_draws=4000, seed=seed) for seed in range(20)
    ]
    actual = [run.delta(1.0, 4.0) for run in runs]
    values = np.array(actual)
    errors = np.array([f.standard_error for f in actual])
    scores = (values - values.mean()) / errors
    chi_squared = float(np.sum(scores**2))
    assert scipy.stats.chi2.sf(chi_squared, 19) > 1e-4
    assert scipy.stats.chi2.cdf(chi_squared, 19) > 1e-4


def test_a_bound_lies_above_the_exact_value_and_near_it():
    gram = gram_matrix(strategies.lambda_cgd(4, 0.9).matrix, 2)
    noise, epsilon = 3.0, 1.0
    exact = max(two_bins_by_quadrature(gram, noise, epsilon))
    accountant = BallsInBinsAccountant(gram, 1 - 1e-6)
    actual = accountant.delta(epsilon, noise)
    assert exact < actual < 1.5 * exact
    by_epsilon = accountant.epsilon(exact, noise)
    assert epsilon < by_epsilon < 1.2 * epsilon
    calibrated = accountant.calibrate(epsilon, exact)
    assert calibrated.guarantee.kind == "bound"
    assert max(two_bins_by_quadrature(gram, calibrated.noise_stddev, epsilon)) < exact
    assert noise < calibrated.noise_stddev < 1.15 * noise


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize(
    "sampling, noise, epsilon",
    [("bins", 4.0, 1.0), ("bins", 2.0, 3.0), ("rests", 0.8, 2.0), ("rests", 2.0, 0.5)],
)
def test_no_value_of_a_bound_exceeds_what_is_certain(sampling, noise, epsilon, add):
    """No importance-weighted sample exceeds the simulator's bound `largest_value`."""
    if sampling == "bins":
        gram = gram_matrix(strategies.lambda_cgd(24, 0.8).matrix, 6)
        simulator = BinsSimulator(gram, 20_000, 0).at(noise, add)
        tilts, target = simulator.certain_tilts()[1:], Tilt()
        # A stronger tilt also samples losses that the tested proposals rarely draw.
        strong = Tilt(common=-4.0 * tilts[0].common) if add else Tilt(4.0, 4.0)
    else:
        rows = matrices.ToeplitzBanded([1.0, 0.5, 0.25], 24).as_rows()
        simulator = BMinSepSimulator(Passes(rows, 4, 0.1), 4000, 0).at(noise, add)
        tilts, (target, *_, strong) = simulator.certain_tilts(), simulator.pilot_tilts()
    seen = 0
    for tilt in tilts[::3]:
        for shares in ((0.01, 0.99), (0.3, 0.7), (0.9, 0.1)):
            proposal = Proposal((target, tilt), np.array(shares))
            largest = simulator.largest_value(proposal, epsilon)
            wide = Proposal((target, tilt, strong), np.array([0.2, 0.3, 0.5]))
            for losses, densities in simulator.chunks(wide, (1, 0), 4000):
                mixed = np.logaddexp(
                    densities[0] + np.log(shares[0]), densities[1] + np.log(shares[1])
                )
                signed = -losses if add else losses
                seen += int((signed > epsilon).sum())
                excess = np.maximum(-np.expm1(np.minimum(epsilon - signed, 0.0)), 0.0)
                values = excess * np.exp(densities[0] - mixed)
                assert values.max() <= largest * (1.0 + 1e-4)
            assert simulator.largest_value(proposal, epsilon + 0.5) <= largest
    assert seen > 1000


def test_a_bound_that_would_take_for_ever_is_that_without_amplification():
    """If a bound would need too many draws, the accountant claims no amplification."""
    gram = gram_matrix(strategies.lambda_cgd(40, 0.7).matrix, 10)
    norm = np.sqrt(gram.max())
    accountant = BallsInBinsAccountant(gram, 1 - 1e-6)
    with pytest.warns(UserWarning, match="larger delta, or confidence=None"):
        assert accountant.epsilon(1e-14, norm) == gaussian.gaussian_epsilon(1.0, 1e-14)
    with pytest.warns(UserWarning, match="draws.*The result claims no amplification"):
        actual = accountant.calibrate(1.0, 1e-14)
    unamplified = gaussian.calibrate_noise_stddev(1.0, 1e-14)
    assert actual.noise_stddev == unamplified * norm and actual.guarantee.is_unamplified
    accountant.validate(actual.noise_stddev, actual.guarantee)
    with pytest.raises(ValueError, match="The plan was damaged"):
        accountant.validate(0.99 * actual.noise_stddev, actual.guarantee)
    with pytest.warns(UserWarning, match="no amplification"):
        stated = accountant.guarantee(actual.noise_stddev, 1e-14)
    assert stated.is_unamplified and stated.epsilon == pytest.approx(1.0, rel=1e-6)
    assert stated.certainty == "bound"


@pytest.mark.parametrize("confidence", [None, 1 - 1e-6])
@pytest.mark.invariant(12)
def test_releases_beside_a_run_are_one_more_coordinate_of_every_bin(confidence):
    gram = gram_matrix(strategies.lambda_cgd(40, 0.7).matrix, 10)
    noise, releases, epsilon = 4.0, 1.5, 2.0
    alone = BallsInBinsAccountant(gram, confidence)
    both, more = alone.beside(releases), gram + (noise / releases) ** 2
    longer = BallsInBinsAccountant(more, confidence)
    actual, expected = (a.delta(epsilon, noise) for a in (both, longer))
    if confidence is None:
        error = np.hypot(actual.standard_error, expected.standard_error)
        assert abs(actual - expected) < ERRORS * error and error < 0.05 * expected
    else:
        assert actual == pytest.approx(expected, rel=0.2)
    calibrated = both.calibrate(2.0, 1e-3)
    without = alone.calibrate(2.0, 1e-3)
    assert calibrated.noise_stddev > 1.02 * without.noise_stddev
    both.validate(calibrated.noise_stddev, calibrated.guarantee)
    with pytest.raises(ValueError, match="use up epsilon"):
        both.calibrate(0.5, 1e-6)


# Number of bins, noise multiplier, and both bounds on epsilon from the package
# random-allocation.
PUBLISHED = [
    (30, 2.0, 0.19167, 0.42935),
    (100, 1.0, 0.58102, 1.02978),
    (100, 0.5, 5.39755, 6.27041),
    (391, 0.4, 7.23905, 8.21071),
]


@pytest.mark.slow_cases("391-0.4-7.23905-8.21071")
@pytest.mark.parametrize("bins, noise, lower, upper", PUBLISHED)
def test_estimates_are_between_the_bounds_of_random_allocation(
    bins, noise, lower, upper
):
    """Estimates of epsilon are between published bounds for random allocation.

    For C = I and one epoch, balls-in-bins sampling is the random allocation of
    arXiv:2502.08202. The bounds at delta = 1e-5 are from the package random-allocation
    1.0.5 (Feldman and Shenfeld): lower bounds from `allocation_epsilon_lower_bound`,
    and upper bounds from `allocation_epsilon_combined` with both directions and orders
    2 to 60.
    """
    matrix = strategies.identity(bins).matrix
    run = BallsInBinsAccountant(gram_matrix(matrix, bins), num_draws=20_000)
    actual = run.epsilon(1e-5, noise)
    assert lower - 4.0 * actual.standard_error <= actual <= upper


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: gram_matrix(matrices.ToeplitzBanded([1, -0.5], 8), 2), "negative"),
        (lambda: gram_matrix(matrices.ToeplitzBanded([1.0], 8), 9), "num_bins must be"),
        (lambda: gram_matrix(matrices.ToeplitzBanded([1.0], 9000), 9000), "<="),
        (lambda: BallsInBinsAccountant(np.eye(2), 1.0), "confidence must"),
    ],
)
def test_what_it_cannot_account_for_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
