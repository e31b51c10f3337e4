"""Accounting of balls in bins against independent computations.

Statistical tests use fixed seeds; were they drawn anew, each comparison would fail by
chance with probability at most 1e-4 (4 standard errors).
"""

import numpy as np
import pytest
import scipy.stats

from tf_bandmf import matrices, strategies
from tf_bandmf.accounting import gaussian
from tf_bandmf.accounting.balls_in_bins import BallsInBinsAccountant
from tf_bandmf.accounting.bins_simulator import (
    BinsSimulator,
    Tilt,
    factorize,
    gram_matrix,
)
from tf_bandmf.accounting.guarantee import Simulation
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
    """Both directions for two bins, on a grid in the plane of the bin columns."""
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
    actual = BallsInBinsAccountant(gram, Simulation(seed=1)).delta(epsilon, noise)
    assert abs(actual - max(exact)) < ERRORS * actual.standard_error


@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-9])
def test_a_single_bin_is_the_gaussian_mechanism(delta):
    gram = gram_matrix(strategies.lambda_cgd(6, 0.5).matrix, 1)
    noise = 2.0 * np.sqrt(gram[0, 0])
    accountant = BallsInBinsAccountant(gram)
    exact = gaussian.gaussian_epsilon(2.0, delta)
    actual = accountant.epsilon(delta, noise)
    assert abs(actual - exact) < ERRORS * actual.standard_error + 1e-9
    assert actual.standard_error < 0.02 * exact
    calibrated = accountant.calibrate(exact, delta)
    assert calibrated.noise_stddev == pytest.approx(noise, rel=0.02)


@pytest.mark.parametrize("name", ["identity", "lambda_cgd", "rows"])
def test_gram_route_is_the_full_simulation(name):
    """Plain draws of all n outputs of the mechanism, both directions."""
    n, b, noise, epsilon, count = 24, 8, 2.5, 0.4, 100_000
    matrix = some_matrices(n)[name]
    m = columns_of_bins(matrix, b)
    noise = noise * np.sqrt((m**2).sum(axis=0).max()) / 2.0
    rng = np.random.default_rng(3)
    outputs = noise * rng.standard_normal((count, n))
    chosen = rng.integers(0, b, count)
    simulator = BinsSimulator(gram_matrix(matrix, b), 50_000, 1)
    for add, run in enumerate(simulator.runs(epsilon, noise)):
        x = outputs if add else outputs + m.T[chosen]
        exponents = (x @ m - 0.5 * (m**2).sum(axis=0)) / noise**2
        losses = scipy.special.logsumexp(exponents, axis=1) - np.log(b)
        losses = -losses if add else losses
        plain = np.maximum(-np.expm1(np.minimum(epsilon - losses, 0.0)), 0.0)
        actual = run.estimate(epsilon)
        error = np.hypot(plain.std() / np.sqrt(count), actual.standard_error)
        assert abs(plain.mean() - actual) < ERRORS * error
        assert error < 0.1 * actual


def test_standard_errors_are_honest():
    gram = gram_matrix(strategies.lambda_cgd(80, 0.7).matrix, 20)
    simulations = [Simulation(num_draws=4000, seed=seed) for seed in range(20)]
    actual = [BallsInBinsAccountant(gram, s).delta(1.0, 4.0) for s in simulations]
    values = np.array(actual)
    errors = np.array([f.standard_error for f in actual])
    scores = (values - values.mean()) / errors
    chi_squared = float(np.sum(scores**2))
    assert scipy.stats.chi2.sf(chi_squared, 19) > 1e-4
    assert scipy.stats.chi2.cdf(chi_squared, 19) > 1e-4


def test_epsilon_inverts_delta_and_falls_with_noise_and_delta():
    gram = gram_matrix(strategies.lambda_cgd(200, 0.7).matrix, 40)
    accountant = BallsInBinsAccountant(gram, Simulation(num_draws=20_000))
    epsilon = accountant.epsilon(1e-6, 5.0)
    delta = accountant.delta(epsilon, 5.0)
    assert delta == pytest.approx(1e-6, rel=0.15)
    by_noise = [accountant.epsilon(1e-6, noise) for noise in (4.0, 5.0, 6.0)]
    by_delta = [accountant.epsilon(10.0**-d, 5.0) for d in (4, 5, 6, 7)]
    assert np.all(np.diff(by_noise) < 0.0) and np.all(np.diff(by_delta) > 0.0)
    more_epochs = gram_matrix(strategies.lambda_cgd(400, 0.7).matrix, 40)
    assert BallsInBinsAccountant(more_epochs).epsilon(1e-6, 5.0) > epsilon


@pytest.mark.invariant(12)
def test_calibration_is_safe_and_amplification_helps():
    gram = gram_matrix(strategies.lambda_cgd(200, 0.7).matrix, 40)
    accountant = BallsInBinsAccountant(gram, Simulation(num_draws=20_000))
    actual = accountant.calibrate(1.0, 1e-5)
    assert actual.guarantee.kind == "estimate"
    other = BallsInBinsAccountant(gram, Simulation(num_draws=100_000, seed=99))
    delta = other.delta(1.0, actual.noise_stddev)
    assert delta < 1e-5 + 2.0 * delta.standard_error
    assert delta > 0.8e-5
    unamplified = gaussian.calibrate_noise_stddev(1.0, 1e-5)
    assert actual.noise_stddev < 0.8 * unamplified * np.sqrt(gram.max())


def test_a_bound_lies_above_the_exact_value_and_near_it():
    gram = gram_matrix(strategies.lambda_cgd(4, 0.9).matrix, 2)
    noise, epsilon = 3.0, 1.0
    exact = max(two_bins_by_quadrature(gram, noise, epsilon))
    accountant = BallsInBinsAccountant(gram, Simulation(1 - 1e-6))
    actual = accountant.delta(epsilon, noise)
    assert actual.confidence == 1 - 1e-6
    assert exact < actual < 1.5 * exact
    by_epsilon = accountant.epsilon(exact, noise)
    assert epsilon < by_epsilon < 1.2 * epsilon
    calibrated = accountant.calibrate(epsilon, exact)
    assert calibrated.guarantee.kind == "bound"
    assert max(two_bins_by_quadrature(gram, calibrated.noise_stddev, epsilon)) < exact
    assert noise < calibrated.noise_stddev < 1.15 * noise


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("noise, epsilon", [(4.0, 1.0), (2.0, 3.0)])
def test_no_value_of_a_bound_exceeds_what_is_certain(add, noise, epsilon):
    """The certain part of a bound, looked for where it is nearly reached."""
    gram = gram_matrix(strategies.lambda_cgd(24, 0.8).matrix, 6)
    simulator = BinsSimulator(gram, 20_000, 0).at(noise, add)
    tilts = simulator.certain_tilts()[1::3]
    for shares in ((0.01, 0.99), (0.3, 0.7), (0.9, 0.1)):
        for tilt in tilts:
            proposal = Proposal((Tilt(), tilt), shares)
            largest = simulator.largest_value(proposal, epsilon)
            # Draws from elsewhere reach losses that the proposal's seldom have.
            strong = Tilt(common=-4.0 * tilts[0].common) if add else Tilt(4.0, 4.0)
            wide = Proposal((Tilt(), tilt, strong), (0.2, 0.3, 0.5))
            actual = [*simulator.chunks(wide, (1, 0), 20_000)]
            losses, densities = (np.concatenate(part, axis=-1) for part in zip(*actual))
            mixed = np.logaddexp(
                densities[0] + np.log(shares[0]), densities[1] + np.log(shares[1])
            )
            signed = -losses if add else losses
            excess = np.maximum(-np.expm1(np.minimum(epsilon - signed, 0.0)), 0.0)
            values = excess * np.exp(densities[0] - mixed)
            assert values.max() <= largest * (1.0 + 1e-4)
            later = simulator.largest_value(proposal, epsilon + 0.5)
            assert later <= largest


def test_a_bound_that_would_take_for_ever_is_that_without_amplification():
    """With a single bin they are the same."""
    gram = gram_matrix(strategies.lambda_cgd(40, 0.7).matrix, 10)
    norm = np.sqrt(gram.max())
    accountant = BallsInBinsAccountant(gram, Simulation(1 - 1e-6))
    with pytest.warns(UserWarning, match="larger delta or an estimate"):
        assert accountant.epsilon(1e-14, norm) == gaussian.gaussian_epsilon(1.0, 1e-14)
    with pytest.warns(UserWarning, match="draws.*No amplification is claimed instead"):
        actual = accountant.calibrate(1.0, 1e-14)
    unamplified = gaussian.calibrate_noise_stddev(1.0, 1e-14)
    assert actual.noise_stddev == unamplified * norm and actual.guarantee.is_unamplified
    accountant.validate(actual.noise_stddev, actual.guarantee)
    with pytest.raises(ValueError, match="it was damaged"):
        accountant.validate(0.99 * actual.noise_stddev, actual.guarantee)
    with pytest.warns(UserWarning, match="No amplification"):
        stated = accountant.guarantee(actual.noise_stddev, 1e-14)
    assert stated.is_unamplified and stated.epsilon == pytest.approx(1.0, rel=1e-6)
    assert "proven upper bound" in stated.describe_kind()


def test_shipped_example_of_jax_privacy():
    """n = 100, 10 bins: 3.74 there, on a grid of factors 1.1 and with a margin."""
    matrix = matrices.ToeplitzBanded([1.0, 0.5, 0.25, 0.125], 100)
    actual = BallsInBinsAccountant.of_strategy(matrix, 10).calibrate(1, 1e-2)
    per_column_norm = actual.noise_stddev / matrix.column_norms().max()
    assert 3.74 / 1.1**2 < per_column_norm < 3.75


@pytest.mark.parametrize("confidence", [None, 1 - 1e-6])
@pytest.mark.invariant(12)
def test_releases_beside_a_run_are_one_more_coordinate_of_every_bin(confidence):
    gram = gram_matrix(strategies.lambda_cgd(40, 0.7).matrix, 10)
    noise, releases, epsilon = 4.0, 1.5, 2.0
    alone = BallsInBinsAccountant(gram, Simulation(confidence))
    both, more = alone.beside(releases), gram + (noise / releases) ** 2
    longer = BallsInBinsAccountant(more, Simulation(confidence))
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
    with pytest.raises(ValueError, match="leave nothing of"):
        both.calibrate(0.5, 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "noise, epsilon, tolerance", [(7.427, 1.02, 0.02), (2.924, 8, 0.1)]
)
def test_dp_lambda_cgd_setting(noise, epsilon, tolerance):
    matrix = strategies.lambda_cgd(3910, 0.9).matrix
    accountant = BallsInBinsAccountant.of_strategy(matrix, 391)
    assert accountant.epsilon(1e-5, noise) == pytest.approx(epsilon, abs=tolerance)


@pytest.mark.slow
def test_a_bound_is_within_three_percent_of_the_estimate():
    matrix = strategies.lambda_cgd(3910, 0.9).matrix
    estimate = BallsInBinsAccountant.of_strategy(matrix, 391).epsilon(1e-5, 7.427)
    accountant = BallsInBinsAccountant.of_strategy(matrix, 391, Simulation(1 - 1e-6))
    bound = accountant.epsilon(1e-5, 7.427)
    assert bound.confidence == 1 - 1e-6
    assert estimate < bound < 1.03 * estimate
    assert estimate.standard_error < 0.01 * estimate


@pytest.mark.parametrize(
    "column, num_steps, num_bins, message",
    [
        ([1.0, -0.5], 8, 2, "negative"),
        ([1.0], 8, 9, "num_bins must be in"),
        ([1.0], 9000, 9000, "num_bins must be <="),
    ],
)
def test_impossible_grams_are_refused(column, num_steps, num_bins, message):
    with pytest.raises(ValueError, match=message):
        gram_matrix(matrices.ToeplitzBanded(column, num_steps), num_bins)


@pytest.mark.parametrize(
    "gram, confidence, message",
    [
        (np.ones((2, 3)), None, "gram must have shape"),
        (-np.eye(2), None, "non-negative"),
        (np.full((2, 2), np.nan), None, "finite"),
        (np.eye(2), 1.0, "confidence must be"),
    ],
)
def test_impossible_accountants_are_refused(gram, confidence, message):
    with pytest.raises(ValueError, match=message):
        BallsInBinsAccountant(gram, Simulation(confidence))


def test_impossible_budgets_are_refused():
    accountant = BallsInBinsAccountant(np.eye(2))
    with pytest.raises(ValueError, match="noise_stddev"):
        accountant.delta(1.0, np.nan)
    with pytest.raises(ValueError, match="epsilon must be"):
        accountant.delta(-1.0, 1.0)
    with pytest.raises(ValueError, match="delta must be"):
        accountant.epsilon(0.0, 1.0)


@pytest.mark.parametrize("near", [None, 0.5, 40.0])
def test_rough_noise_is_that_of_a_calibration_up_to_its_draws(near):
    gram = gram_matrix(strategies.lambda_cgd(80, 0.8).matrix, 20)
    accountant = BallsInBinsAccountant(gram, Simulation(num_draws=20_000))
    rough = accountant.rough_noise_stddev(2.0, 1e-5, near)
    calibrated = accountant.calibrate(2.0, 1e-5).noise_stddev
    assert rough == pytest.approx(calibrated, rel=0.02)


@pytest.mark.parametrize("lam", [0.0, 0.8])
def test_a_singular_gram_matrix_has_a_factor_too(lam):
    regular = gram_matrix(strategies.lambda_cgd(24, lam).matrix, 8)
    for gram in (regular, np.ones((3, 3))):
        factor = factorize(gram)
        if factor.ndim == 1:
            factor = np.diag(factor)
        np.testing.assert_allclose(factor @ factor.T, gram, atol=1e-9 * gram.max())
