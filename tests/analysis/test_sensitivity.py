"""Sensitivities are never too small, and are exact if labeled as exact."""

import itertools
import time

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from patterns import brute_force, fixed_patterns, min_sep_patterns

from tf_bandmf import matrices, workloads
from tf_bandmf import strategies as families
from tf_bandmf.analysis import participation_patterns as patterns
from tf_bandmf.analysis import sensitivity as sensitivity_lib
from tf_bandmf.matrices import dyadic_tree
from tf_bandmf.participation import FixedEpochOrder, MinSep

SETTINGS = hypothesis.settings(derandomize=True, deadline=None, max_examples=150)
KINDS = ("rows", "toeplitz", "inverse", "scaled", "scaled_inverse", "dense", "tree")


def random_matrix(kind, n, width, lowest, rng):
    coefficients = rng.uniform(lowest, 1.0, width)
    coefficients[0] = 1.0
    rows = rng.uniform(lowest, 1.0, (n, width))
    rows[:, 0] = rng.uniform(0.3, 1.0, n)
    for j in range(1, width):
        rows[:j, j] = 0.0
    toeplitz = matrices.ToeplitzBanded(coefficients, n)
    return {
        "rows": lambda: matrices.RowBanded(rows),
        "toeplitz": lambda: toeplitz,
        "inverse": lambda: matrices.Inverse(toeplitz),
        "scaled": lambda: matrices.ColumnScaled(toeplitz, rng.uniform(0.2, 1.0, n)),
        "scaled_inverse": lambda: matrices.Inverse(matrices.RowBanded(rows)),
        "dense": lambda: matrices.Dense(
            np.tril(rng.uniform(lowest, 1.0, (n, n))) + 2.0 * np.eye(n)
        ),
        "tree": lambda: dyadic_tree.DyadicTree(n),
    }[kind]()


@SETTINGS
@hypothesis.given(
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 10_000),
    n=st.integers(1, 10),
    b=st.integers(1, 10),
    width=st.integers(1, 10),
    lowest=st.sampled_from([-1.0, 0.0]),
)
def test_no_kind_of_matrix_is_underestimated(kind, seed, n, b, width, lowest):
    b, width = min(b, n), min(width, n)
    most = -(-n // b)
    rng = np.random.default_rng(seed)
    k = int(rng.integers(1, most + 1))
    matrix = random_matrix(kind, n, width, lowest, rng)
    dense = matrix.to_dense()
    for participation, all_patterns in (
        (MinSep(b, k), min_sep_patterns(n, b, k)),
        (FixedEpochOrder(b, 1, most), fixed_patterns(n, b)),
    ):
        expected = brute_force(dense, all_patterns)
        actual = sensitivity_lib.sensitivity(matrix, participation)
        if actual.is_exact and "vectors" not in actual.method:
            np.testing.assert_allclose(actual.value, expected, rtol=1e-9)
        else:
            # Contributions that are vectors can have a larger sensitivity than all
            # scalar contributions of +1 and -1: see test_vector_contributions.py.
            assert actual.value >= expected * (1 - 1e-9)
    # `upper_bound` always returns a valid bound that is labeled as a bound, even if the
    # exact sensitivity is known.
    bound = sensitivity_lib.upper_bound(matrix, b, k)
    assert not bound.is_exact
    assert bound.value >= brute_force(dense, min_sep_patterns(n, b, k)) * (1 - 1e-9)


def test_the_production_case_400_bands_at_separation_385():
    """The sensitivity is exact if there are more bands than the min separation.

    This case of 400 bands at min separation 385 is from arXiv:2306.08153, section 6.
    """
    n, b = 2000, 385
    workload = workloads.prefix_sum(n)
    normalized = families.bsr(workload, 400, column_normalized=True)
    matrix = matrices.RowBanded(normalized.matrix.as_rows())
    actual = sensitivity_lib.sensitivity(matrix, MinSep(b))
    bound = sensitivity_lib.upper_bound(matrix, b, -(-n // b))
    assert actual.is_exact
    # The sensitivity exceeds sqrt(6), the value for orthogonal columns. It does not
    # exceed the bound of Alg. 4 of arXiv:2306.08153.
    assert np.sqrt(6) * 1.001 < actual.value <= bound.value * (1 + 1e-12)
    # This pattern of participations attains at least 99% of the sensitivity.
    pattern = np.zeros(n)
    pattern[::b] = 1.0
    assert actual.value >= np.linalg.norm(matrix.matmul(pattern)) > 0.99 * actual.value
    # At min separation 400, which equals the number of bands, the columns of an
    # example's participations are orthogonal.
    at_400 = sensitivity_lib.sensitivity(matrix, MinSep(400, 5))
    np.testing.assert_allclose(at_400.value, np.sqrt(5), rtol=1e-12)


@pytest.mark.parametrize("width", [2, 4, 16])
@pytest.mark.parametrize(("n", "b"), [(40_000, 4_000), (100_000, 1_000)])
def test_column_normalized_inverse_strategies_have_a_bound_at_any_size(width, n, b):
    strategy = families.bisr(workloads.prefix_sum(n), width, column_normalized=True)
    actual = strategy.sensitivity(MinSep(b))
    pattern = np.zeros(n)
    pattern[::b] = 1.0
    attained = np.linalg.norm(strategy.matrix.matmul(pattern))
    assert attained * (1 - 1e-12) <= actual.value <= attained * 1.01


def test_the_bound_for_scaled_toeplitz_columns_holds_for_overlapping_columns():
    """`scaled_toeplitz_bound` is never below the sensitivity found by brute force."""
    n, b = 10, 2
    for seed, k in itertools.product(range(15), (2, 3, 5)):
        rng = np.random.default_rng(seed)
        column, scale = [
            (rng.uniform(-1.0, 1.0, n), rng.uniform(0.1, 2.0, n)),
            (rng.uniform(0.8, 1.0, n), rng.uniform(0.9, 1.0, n)),
            (rng.choice([0.0, 3.0], n), rng.choice([0.01, 1.0], n)),
        ][seed % 3]
        column[0] = 1.0
        dense = matrices.ToeplitzBanded(column, n).to_dense() * scale
        actual = patterns.scaled_toeplitz_bound(column, scale, b, k)
        expected = brute_force(dense, min_sep_patterns(n, b, k))
        assert np.sqrt(actual) >= expected * (1 - 1e-12)


def test_lemma_8_needs_the_columns_own_norms():
    """Lemma 8 of arXiv:2601.22334 is applied only if all columns have the same norm."""
    n = 9
    normalized = families.lambda_cgd(n, 0.9, column_normalized=True)
    assert normalized.sensitivity(MinSep(3)).method.endswith("Lemma 8")
    growing = matrices.ColumnScaled(normalized.core, np.linspace(0.1, 1.0, n))
    actual = sensitivity_lib.sensitivity(growing, MinSep(3))
    assert "Lemma 8" not in actual.method
    assert actual.value >= brute_force(
        growing.to_dense(), min_sep_patterns(n, 3, 3)
    ) * (1 - 1e-12)


def test_a_general_inverse_of_too_many_steps_is_refused_with_a_fix():
    n = 20_001
    rows = np.concatenate([np.ones((n, 1)), np.full((n, 1), -0.5)], axis=1)
    rows[0, 1] = 0.0
    matrix = matrices.Inverse(matrices.RowBanded(rows))
    with pytest.raises(ValueError, match="whose inverse is Toeplitz"):
        sensitivity_lib.sensitivity(matrix, MinSep(1000))


@pytest.mark.parametrize("shape", [(40,), (3, 40)])
@pytest.mark.parametrize("b, k", [(1, 7), (1, 50), (3, 5), (7, 50)])
def test_shorter_ways_of_long_runs_select_the_same(shape, b, k, monkeypatch):
    v = np.random.default_rng(0).random(shape)
    for values in (v, np.full(shape, 0.3)):
        actual = patterns.vec_sens(values, b, k)
        with monkeypatch.context() as patch:
            patch.setattr(patterns, "_LONG", 0)
            short = patterns.vec_sens(values, b, k)
        np.testing.assert_allclose(short, actual, rtol=1e-13)


def test_a_million_participations_take_no_dynamic_program():
    began = time.process_time()
    assert patterns.vec_sens(np.ones(10**6), 1, 10**6) == 1e6
    # The dynamic program would take hours, so `vec_sens` must use a closed form.
    assert time.process_time() - began < 20.0


@SETTINGS
@hypothesis.given(
    head=st.lists(st.floats(0.0, 1.0), min_size=4, max_size=4), b=st.integers(1, 4)
)
def test_the_order_of_the_first_b_entries_does_not_matter(head, b):
    # Theorem 1 of arXiv:2601.22334 requires a non-increasing column. A comment in
    # sensitivity.py explains why it suffices that the column is non-increasing from
    # lag b.
    n, k = 9, 4
    tail = np.linspace(min(head[:b]), 0.0, n - b) if b < 4 else np.full(5, 0.01)
    column = np.concatenate([[1.0], head[: b - 1], tail])[:n]
    matrix = matrices.ToeplitzBanded(column, n)
    actual = sensitivity_lib.sensitivity(matrix, MinSep(b, k))
    assert actual.is_exact
    expected = brute_force(matrix.to_dense(), min_sep_patterns(n, b, k))
    np.testing.assert_allclose(actual.value, expected, rtol=1e-9)
