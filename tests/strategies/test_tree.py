"""Compares the square factor of the binary tree with the rectangular tree matrix."""

import numpy as np
import pytest

from tf_bandmf import strategies, workloads
from tf_bandmf.matrices import dyadic_tree
from tf_bandmf.participation import MinSep


def rectangular_tree(n):
    """Returns the tree's matrix, which has a row for each complete dyadic interval."""
    rows, size = [], 1
    while size <= n:
        for start in range(0, n - size + 1, size):
            row = np.zeros(n)
            row[start : start + size] = 1.0
            rows.append(row)
        size *= 2
    return np.array(rows)


@pytest.mark.parametrize("n", [1, 2, 7, 16, 21])
def test_the_square_factor_stands_for_the_rectangular_tree(n):
    tree = rectangular_tree(n)
    strategy = strategies.binary_tree(n)
    square = strategy.matrix.to_dense()
    np.testing.assert_allclose(square.T @ square, tree.T @ tree, atol=1e-9)
    assert np.array_equal(square, np.tril(square))
    # At every step, the square factor has the error of the rectangular tree matrix with
    # its optimal decoder.
    for workload in (workloads.prefix_sum(n), workloads.momentum_sgd(n, 0.5, 0.9)):
        decoder = workload.to_dense() @ np.linalg.pinv(tree)
        np.testing.assert_allclose(
            strategy.per_step_squared_error(workload),
            np.sum(decoder**2, axis=1),
            rtol=1e-9,
        )


def test_too_many_placements_fall_back_to_a_bound():
    n, b, k = 300, 3, 60
    actual = strategies.binary_tree(n).sensitivity(MinSep(b, k))
    pattern = np.zeros(n)
    pattern[::b][:k] = 1.0
    attained = np.linalg.norm(strategies.binary_tree(n).matrix.matmul(pattern))
    assert actual.value >= attained * (1 - 1e-12)
    exact = dyadic_tree.max_squared_counts(n, b, k)
    assert actual.is_exact == (exact is not None)
