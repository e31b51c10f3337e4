"""Compares optimized dense strategies with theorems, and with other software."""

import numpy as np
import pytest

from tf_bandmf import matrices, workloads
from tf_bandmf.participation import FixedEpochOrder, MinSep
from tf_bandmf.strategies.multi_epoch import dense


def epochs(n, k):
    return FixedEpochOrder(num_examples=n // k, batch_size=1, epochs=k)


def squared_error(gram, workload):
    a = workload.to_dense()
    return float(np.trace(a.T @ a @ np.linalg.inv(gram)))


@pytest.mark.parametrize("equal", [True, False])
@pytest.mark.parametrize(("n", "b"), [(24, 6), (23, 6), (20, 20), (12, 1)])
def test_the_result_meets_its_constraints_and_reaches_its_gap(n, b, equal):
    k = -(-n // b)
    workload = workloads.prefix_sum(n)
    strategy = dense(workload, MinSep(b), equal_column_norms=equal)
    gram = strategy.matrix.to_dense().T @ strategy.matrix.to_dense()
    norms = np.diag(gram)
    for first in range(min(b, n)):
        block = gram[first::b, first::b]
        np.testing.assert_allclose(block, np.diag(np.diag(block)), atol=1e-9)
        if not equal:
            np.testing.assert_allclose(norms[first::b].sum(), 1.0, rtol=1e-9)
    if equal:
        np.testing.assert_allclose(norms, 1.0 / k, rtol=1e-9)
    assert strategy.diagnostics["converged"]
    assert 0.0 <= strategy.diagnostics["optimality_gap"] <= 1e-6
    np.testing.assert_allclose(
        strategy.diagnostics["mean_squared_error"] * n,
        squared_error(gram, workload),
        rtol=1e-9,
    )


def test_the_certificate_bounds_the_true_gap_and_shrinks():
    workload = workloads.prefix_sum(48)
    best = dense(workload, epochs(48, 4), tolerance=1e-10, max_iterations=300)
    optimum = best.diagnostics["mean_squared_error"]
    gaps = []
    for iterations in (2, 5, 10, 20, 40):
        actual = dense(
            workload, epochs(48, 4), tolerance=1e-12, max_iterations=iterations
        )
        gap = actual.diagnostics["optimality_gap"]
        true_gap = actual.diagnostics["mean_squared_error"] / optimum - 1
        assert gap >= true_gap - 1e-9
        gaps.append(gap)
        assert not actual.diagnostics["converged"]
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] < 1e-3 * gaps[0]


@pytest.mark.parametrize("n", [1, 2, 7, 30])
@pytest.mark.slow_cases("30")
def test_full_batch_optimum_is_the_diagonal_factorization(n):
    """If all steps use all data (b = 1, k = n), the optimal C is diagonal.

    The optimum is known from arXiv:2601.22334, Theorem 4, eq. 12.
    """
    workload = workloads.prefix_sum(n)
    participation = FixedEpochOrder(1, 1, n)
    strategy = dense(workload, participation, tolerance=1e-8)
    assert strategy.diagnostics["converged"]
    expected = np.sqrt(np.arange(1, n + 1)).sum() / np.sqrt(n)
    np.testing.assert_allclose(
        strategy.rmse(workload, participation), expected, rtol=1e-8
    )
    diagonal = np.arange(n, 0, -1) ** 0.25
    diagonal /= np.linalg.norm(diagonal)
    np.testing.assert_allclose(strategy.matrix.to_dense(), np.diag(diagonal), atol=1e-4)


def test_impossible_problems_and_indefinite_grams_are_refused():
    workload = workloads.prefix_sum(12)
    with pytest.raises(ValueError, match="max_participations must be"):
        dense(workload, MinSep(4, 2), equal_column_norms=False)
    with pytest.raises(ValueError, match="not positive definite"):
        matrices.lower_triangular_factor(np.array([[1.0, 2.0], [2.0, 1.0]]))


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (np.ones((2, 3)), "shape"),
        (np.array([[1.0, 1.0], [0.0, 1.0]]), "zero above"),
        (np.array([[1.0, 0.0], [np.nan, 1.0]]), "finite"),
        (np.array([[1.0, 0.0], [1.0, 0.0]]), "singular"),
    ],
)
def test_invalid_dense_matrices_are_refused(entries, message):
    with pytest.raises(ValueError, match=message):
        matrices.Dense(entries)
