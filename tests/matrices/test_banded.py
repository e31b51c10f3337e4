"""The banded algebra against dense linear algebra."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from tf_bandmf import matrices

SETTINGS = hypothesis.settings(derandomize=True, deadline=None, max_examples=25)


def random_rows(rng, n, w):
    rows = rng.normal(size=(n, w))
    rows[:, 0] = 1.0 + rng.random(n)
    for j in range(1, w):
        rows[:j, j] = 0.0
    return rows


def all_kinds(seed, n, w):
    rng = np.random.default_rng(seed)
    w = min(w, n)
    coefficients = np.concatenate([[1.5], 0.3 * rng.normal(size=w - 1)])
    toeplitz = matrices.ToeplitzBanded(coefficients, n)
    rows = matrices.RowBanded(random_rows(rng, n, w))
    yield toeplitz
    yield rows
    yield matrices.Inverse(toeplitz)
    yield matrices.Inverse(rows)
    yield matrices.ColumnScaled(rows, 0.5 + rng.random(n))
    yield toeplitz.normalize_columns()
    yield matrices.Inverse(toeplitz).normalize_columns()


@SETTINGS
@hypothesis.given(seed=st.integers(0, 1000), n=st.integers(1, 25), w=st.integers(1, 6))
def test_all_operations_agree_with_the_dense_matrix(seed, n, w):
    x = np.random.default_rng(seed).normal(size=(n, 3))
    for matrix in all_kinds(seed, n, w):
        dense = matrix.to_dense()
        np.testing.assert_array_equal(dense, np.tril(dense))
        np.testing.assert_allclose(matrix.matmul(x), dense @ x, atol=1e-9)
        np.testing.assert_allclose(matrix.matmul(x[:, 0]), dense @ x[:, 0], atol=1e-9)
        np.testing.assert_allclose(dense @ matrix.solve(x), x, atol=1e-8)
        norms = np.linalg.norm(dense, axis=0)
        np.testing.assert_allclose(matrix.column_norms(), norms, rtol=1e-9)
        assert matrix.is_nonnegative() == bool(np.all(dense >= 0))
        column = matrix.toeplitz_column()
        if column is not None:
            np.testing.assert_allclose(column, dense[:, 0], atol=1e-12)


@SETTINGS
@hypothesis.given(seed=st.integers(0, 1000), n=st.integers(1, 20))
def test_config_round_trip_is_exact(seed, n):
    for matrix in all_kinds(seed, n, 4):
        again = matrices.from_config(matrix.to_config())
        np.testing.assert_array_equal(again.to_dense(), matrix.to_dense())


@SETTINGS
@hypothesis.given(seed=st.integers(0, 1000), n=st.integers(1, 20))
def test_product_of_banded_matrices_is_exact(seed, n):
    rng = np.random.default_rng(seed)
    left = matrices.RowBanded(random_rows(rng, n, min(3, n)))
    right = matrices.ToeplitzBanded(np.array([2.0, -1.0])[: min(2, n)], n)
    product = matrices.multiply(left, right)
    np.testing.assert_allclose(
        product.to_dense(), left.to_dense() @ right.to_dense(), atol=1e-12
    )
    assert product.bands <= n


def test_fft_and_direct_convolution_agree():
    n = 1500
    coefficients = 0.99 ** np.arange(n)
    x = np.random.default_rng(0).normal(size=n)
    long = matrices.ToeplitzBanded(coefficients, n).matmul(x)
    np.testing.assert_allclose(long, np.convolve(coefficients, x)[:n], atol=1e-10)


def test_matrices_are_immutable():
    matrix = matrices.ToeplitzBanded([1.0, 0.5], 4)
    with pytest.raises(ValueError, match="read-only"):
        matrix.coefficients[0] = 2.0
    with pytest.raises(AttributeError):
        matrix.num_rows = 5


def test_normalized_columns_have_norm_one():
    matrix = matrices.ToeplitzBanded([1.0, 0.7, 0.2], 9).normalize_columns()
    np.testing.assert_allclose(np.linalg.norm(matrix.to_dense(), axis=0), 1.0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: matrices.ToeplitzBanded([0.0, 1.0], 3), "singular"),
        (lambda: matrices.ToeplitzBanded([1.0, np.nan], 3), "finite"),
        (lambda: matrices.ToeplitzBanded([1.0] * 4, 3), "at most 3 bands"),
        (lambda: matrices.ToeplitzBanded([1.0], 0), ">= 1"),
        (lambda: matrices.RowBanded(np.ones((3, 2))), "outside"),
        (lambda: matrices.RowBanded(np.zeros((3, 1))), "singular"),
        (lambda: matrices.RowBanded(np.ones((3, 4))), "bands <= n"),
        (
            lambda: matrices.ColumnScaled(
                matrices.ToeplitzBanded([1.0], 2), [1.0, -1.0]
            ),
            "> 0",
        ),
        (lambda: matrices.ToeplitzBanded([1.0], 3).matmul(np.ones(4)), "3 rows"),
        (lambda: matrices.from_config({"kind": "wavelet"}), "wavelet"),
    ],
)
def test_invalid_input_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_num_rows_must_be_an_integer():
    with pytest.raises(TypeError, match="num_rows"):
        matrices.ToeplitzBanded([1.0], 3.5)
