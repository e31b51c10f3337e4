"""Compares closed-form strategies with the formulas of their papers."""

import numpy as np
import pytest

from tf_bandmf import strategies, workloads
from tf_bandmf.participation import MinSep

N = 10


@pytest.mark.parametrize(
    "workload",
    [
        workloads.prefix_sum(N),
        workloads.momentum_sgd(N, 0.4, 0.95),
        workloads.from_inverse(N, [1.0, -0.9, 0.1]),
    ],
)
def test_square_roots_are_roots_of_the_workload_cut_off_at_their_bands(workload):
    """BSR truncates the workload's square root; BISR truncates its inverse.

    See arXiv:2405.13763 for BSR and arXiv:2505.12128, Lemma 1, for BISR.
    """
    for family in (strategies.bsr, strategies.bisr):
        root = family(workload, N).matrix.to_dense()
        np.testing.assert_allclose(root @ root, workload.to_dense(), atol=1e-12)
        banded = family(workload, 4)
        inverse = family is strategies.bisr
        dense, root = banded.matrix.to_dense(), np.linalg.inv(root) if inverse else root
        dense = np.linalg.inv(dense) if inverse else dense
        np.testing.assert_allclose(dense[:4, 0], root[:4, 0], atol=1e-13)
        np.testing.assert_allclose(dense[4:, 0], 0.0, atol=1e-13)


@pytest.mark.parametrize(("n", "b", "k"), [(60, 12, 5), (200, 200, 1), (64, 8, 8)])
def test_optimized_lambda_beats_its_neighbours(n, b, k):
    workload, use = workloads.prefix_sum(n), MinSep(b, k)
    for objective, metric in (("mean", "rmse"), ("max", "max_se")):
        best = strategies.optimized_lambda_cgd(workload, use, objective=objective)
        value = getattr(best, metric)(workload, use)
        for lambda_ in np.linspace(0.0, 0.999, 200):
            other = strategies.lambda_cgd(n, lambda_)
            assert value <= getattr(other, metric)(workload, use) + 1e-9
