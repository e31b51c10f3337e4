"""Tests sensitivities of matrices whose columns have inner products of both signs."""

import itertools

import numpy as np
import pytest

from tf_bandmf import matrices
from tf_bandmf.analysis import participation_patterns, sensitivity, vector_contributions
from tf_bandmf.participation import FixedEpochOrder


def best_signs(gram):
    k = len(gram)
    signs = np.array(list(itertools.product([1.0, -1.0], repeat=k)))
    return float(np.einsum("si,ij,sj->s", signs, gram, signs).max())


@pytest.mark.slow_cases("10")
@pytest.mark.parametrize("k", [3, 6, 10])
def test_vectors_are_between_signs_and_absolute_values_and_certified(k):
    rng = np.random.default_rng(k)
    columns = rng.normal(size=(50, k + 2, k))
    grams = columns.transpose(0, 2, 1) @ columns
    actual = [vector_contributions.largest(gram[None]) for gram in grams]
    lower, upper = np.array(actual).T
    assert np.all(lower <= upper) and np.all(upper <= lower * (1.0 + 2e-9))
    together = vector_contributions.largest(grams)
    assert together[0] == pytest.approx(lower.max(), rel=1e-8)
    assert together[1] >= lower.max()
    absolute = np.abs(grams).sum(axis=(1, 2))
    signs = np.array([best_signs(gram) for gram in grams])
    assert np.all(signs <= upper * (1.0 + 1e-12))
    assert np.all(upper <= absolute * (1.0 + 1e-8))
    # In some cases, the bound for vectors exceeds every choice of signs; in some, it is
    # below the sum of absolute values.
    assert np.any(upper > 1.001 * signs) and np.any(upper < 0.99 * absolute)


def test_three_vectors_that_repel_one_another_have_a_closed_form():
    """If the Gram matrix is I + c (J - I) with c < 0, the sensitivity is sqrt(3 - 3 c).

    J is the 3 x 3 matrix of ones. Contributions that are unit vectors at angles of 120
    degrees attain this sensitivity.
    """
    for c in (-0.1, -0.5):
        gram = np.full((1, 3, 3), c) + (1.0 - c) * np.eye(3)
        _, upper = vector_contributions.largest(gram)
        assert upper == pytest.approx(3.0 - 3.0 * c, rel=1e-8)
        assert best_signs(gram[0]) == pytest.approx(3.0 - 2.0 * c)


def test_a_strategy_with_mixed_signs_is_exact_under_a_fixed_order():
    column = np.array([1.0, -0.6, 0.5, 0.4, -0.5, 0.3, 0.2, -0.4, 0.3])
    matrix = matrices.ToeplitzBanded(column, 12)
    order = FixedEpochOrder(num_examples=2, batch_size=1, epochs=6)
    actual = sensitivity.sensitivity(matrix, order)
    assert actual.is_exact and "vectors" in actual.method
    dense = matrix.to_dense()
    absolute = max(np.abs(dense[:, i::2].T @ dense[:, i::2]).sum() for i in range(2))
    assert actual.value < 0.99 * np.sqrt(absolute)


def test_what_is_too_large_stays_a_bound(monkeypatch):
    monkeypatch.setattr(participation_patterns, "_MOST_FOR_VECTORS", 10.0)
    column = np.array([1.0, -0.6, 0.5, 0.4, -0.5])
    matrix = matrices.ToeplitzBanded(column, 12)
    order = FixedEpochOrder(num_examples=2, batch_size=1, epochs=6)
    actual = sensitivity.sensitivity(matrix, order)
    assert not actual.is_exact and actual.method.startswith("bound")
