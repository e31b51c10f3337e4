"""Power series."""

import numpy as np
import pytest
from scipy import special

from tf_bandmf.matrices import power_series


def test_inverse_times_series_is_one():
    a = np.array([2.0, -0.5, 0.3, 0.1])
    product = power_series.multiply(a, power_series.inverse(a, 12), 12)
    np.testing.assert_allclose(product, np.eye(1, 12)[0], atol=1e-14)


def test_square_root_squared_is_the_series():
    a = np.array([4.0, 1.0, 0.5])
    root = power_series.square_root(a, 10)
    np.testing.assert_allclose(power_series.multiply(root, root, 10)[:3], a, atol=1e-14)
    np.testing.assert_allclose(
        power_series.multiply(root, root, 10)[3:], 0.0, atol=1e-14
    )


def test_binomial_series():
    k = np.arange(8)
    expected = 0.7**k * np.abs(special.binom(-0.5, k))
    found = power_series.inverse_square_root_of_linear(0.7, 8)
    np.testing.assert_allclose(found, expected, rtol=1e-14)
    expected = 0.7**k * (-1.0) ** k * special.binom(0.5, k)
    np.testing.assert_allclose(
        power_series.square_root_of_linear(0.7, 8), expected, rtol=1e-13
    )


def test_series_without_a_root_or_an_inverse_are_refused():
    with pytest.raises(ValueError, match="no inverse"):
        power_series.inverse(np.array([0.0, 1.0]), 3)
    with pytest.raises(ValueError, match="> 0"):
        power_series.square_root(np.array([-1.0, 1.0]), 3)
