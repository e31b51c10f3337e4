"""The banded algebra agrees with dense linear algebra."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from tf_bandmf import matrices
from tf_bandmf.matrices import power_series

SETTINGS = hypothesis.settings(derandomize=True, deadline=None, max_examples=25)


def random_rows(rng, n, w):
    rows = rng.normal(size=(n, w))
    rows[:, 0] = 1.0 + rng.random(n)
    for j in range(1, w):
        rows[:j, j] = 0.0
    return rows


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


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: matrices.ToeplitzBanded([0.0, 1.0], 3), "singular"),
        (lambda: matrices.ToeplitzBanded([1.0, np.nan], 3), "finite"),
        (lambda: matrices.ToeplitzBanded([1.0] * 4, 3), "3 rows must have at most"),
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


def test_series_without_a_root_are_refused():
    with pytest.raises(ValueError, match="> 0"):
        power_series.square_root(np.array([-1.0, 1.0]), 3)
