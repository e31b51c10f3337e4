"""The optimum of all strategies for one and two participations."""

import itertools

import numpy as np
import pytest
import scipy.optimize

from tf_bandmf import workloads
from tf_bandmf.participation import FixedEpochOrder, MinSep
from tf_bandmf.strategies import two_participations
from tf_bandmf.strategies.multi_epoch import dense


def squared_sensitivity(gram, b, k):
    """Of vectors as contributions: for two, the sign that adds."""
    n = len(gram)
    best = np.diag(gram).max()
    for i, j in itertools.combinations(range(n), 2) if k == 2 else ():
        if j - i >= b:
            best = max(best, gram[i, i] + gram[j, j] + 2.0 * abs(gram[i, j]))
    return best


def error_of(c, a, b, k):
    squared = np.sum((a @ np.linalg.inv(c)) ** 2) / len(c)
    return squared * squared_sensitivity(c.T @ c, b, k)


@pytest.mark.slow_cases("11-2-1-0.9-0.4", "9-2-2-0.9-0.0")
@pytest.mark.parametrize(
    ("n", "b", "k", "momentum", "gain"),
    [
        (11, 2, 1, 0.9, 0.4),
        (6, 5, 2, 0.5, 0.35),
        (8, 3, 2, 0.0, 0.05),
        (9, 2, 2, 0.9, 0.0),
    ],
)
def test_nothing_is_better_and_orthogonal_columns_are_worse(n, b, k, momentum, gain):
    workload, participation = workloads.momentum_sgd(n, momentum), MinSep(b, k)
    found = dense(workload, participation)
    assert found.diagnostics["optimal_among"] == "all strategies"
    assert found.diagnostics["optimality_gap"] <= 1e-3
    value = found.rmse(workload, participation) ** 2
    assert found.sensitivity(participation).is_exact
    a, c = workload.to_dense(), found.matrix.to_dense()
    assert value == pytest.approx(error_of(c, a, b, k), rel=1e-9)
    rng = np.random.default_rng(n)
    lower = np.tril_indices(n)

    def objective(entries):
        matrix = np.zeros((n, n))
        matrix[lower] = entries
        return np.log(max(error_of(matrix, a, b, k), 1e-300))

    least = value * (1.0 - found.diagnostics["optimality_gap"] - 1e-9)
    for _ in range(3):
        start = c[lower] * (1.0 + 0.02 * rng.normal(size=lower[0].size))
        other = scipy.optimize.minimize(
            objective, start, method="Powell", options={"maxiter": 2, "maxfev": 4000}
        )
        assert np.exp(other.fun) >= least
    # Steps that are any multiple of b apart in orthogonal columns of equal norm.
    x = _orthogonal(workload, b, k)
    assert value <= (1.0 - gain) * x


def _orthogonal(workload, b, k):
    participation = MinSep(b) if k == 1 else MinSep(b, k)
    found = dense(workload, participation, equal_column_norms=True)
    return error_of(found.matrix.to_dense(), workload.to_dense(), b, k)


def test_the_certificate_holds_before_the_optimum_is_reached():
    workload = workloads.prefix_sum(16)
    a = workload.to_dense()
    best = two_participations.optimum(a, 5, 1e-6, 40)
    gaps = []
    for rounds in (1, 2, 4):
        found = two_participations.optimum(a, 5, 1e-9, rounds)
        lower = found.squared_error / (1.0 + found.gap)
        assert lower <= best.squared_error * (1.0 + 1e-9)
        assert best.squared_error <= found.squared_error * (1.0 + 1e-6)
        assert squared_sensitivity(found.gram, 5, 2) == pytest.approx(1.0, rel=1e-9)
        gaps.append(found.gap)
    assert gaps == sorted(gaps, reverse=True) and gaps[0] > 10.0 * best.gap


def test_gaps_name_their_class():
    workload = workloads.prefix_sum(12)
    for participation, expected in (
        (MinSep(4), "orthogonal columns of equal norm"),
        (FixedEpochOrder(3, 1, 4), "orthogonal columns"),
        (FixedEpochOrder(6, 1, 2), "orthogonal columns"),
        (FixedEpochOrder(12, 1, 1), "all strategies"),
        (MinSep(6, 2), "all strategies"),
        (MinSep(2, 1), "all strategies"),
    ):
        found = dense(workload, participation).diagnostics["optimal_among"]
        assert found == expected
