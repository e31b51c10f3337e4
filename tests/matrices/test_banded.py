"""Tests long convolutions, immutability and argument checks of banded matrices."""

import numpy as np
import pytest

from tf_bandmf import matrices


def test_fft_and_direct_convolution_agree():
    n = 1500
    coefficients = 0.99 ** np.arange(n)
    x = np.random.default_rng(0).normal(size=n)
    long = matrices.ToeplitzBanded(coefficients, n).matmul(x)
    np.testing.assert_allclose(long, np.convolve(coefficients, x)[:n], atol=1e-10)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: matrices.ToeplitzBanded([0.0, 1.0], 3), "singular"),
        (lambda: matrices.ToeplitzBanded([1.0, np.nan], 3), "finite"),
        (lambda: matrices.ToeplitzBanded([1.0] * 4, 3), "at most num_rows = 3"),
        (lambda: matrices.RowBanded(np.ones((3, 2))), "outside"),
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
