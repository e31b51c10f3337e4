"""Compares tails and intervals of the normal distribution with 60-digit values."""

import mpmath
import numpy as np
import pytest

from tf_bandmf.accounting import tails

mpmath.mp.dps = 60


def true_tail(z):
    return mpmath.erfc(mpmath.mpf(float(z)) / mpmath.sqrt(2)) / 2


@pytest.mark.parametrize(
    "z", [-40.0, -37.0, -8.3, -1.0, 0.0, 1e-9, 1.0, 5.0, 8.3, 12.9, 37.0, 39.0]
)
def test_tails_are_not_below_the_truth(z):
    upper, lower = float(tails.upper_tail(z)), float(tails.lower_tail(z))
    assert true_tail(z) <= upper <= true_tail(z) * (1 + 1e-11) + mpmath.mpf("1e-299")
    assert true_tail(-z) <= lower <= true_tail(-z) * (1 + 1e-11) + mpmath.mpf("1e-299")


@pytest.mark.parametrize("width", [1e-6, 1e-3, 0.3, 2.0])
def test_cells_are_not_below_the_truth(width):
    starts = np.concatenate([np.arange(-38.0, 38.0, 0.73), [-width, -0.5 * width, 0.0]])
    for start in starts:
        edges = np.array([start, start + width])
        mass, error = tails.cells(edges)
        # The exact probability is the difference of two tails on the same side of 0.
        sign = 1 if start > 0 else -1
        true = abs(true_tail(sign * edges[0]) - true_tail(sign * edges[1]))
        assert float(mass[0]) >= true
        assert float(mass[0]) - float(error[0]) <= true * (1 + 1e-15)
        nearer = true_tail(edges[0] if start > 0 else -edges[1])
        assert float(mass[0]) - true <= 3e-12 * nearer + mpmath.mpf("1e-299")


def test_infinite_ends():
    mass, _ = tails.cells(np.array([-np.inf, 0.0, np.inf]))
    np.testing.assert_allclose(mass, [0.5, 0.5], rtol=1e-11)
    assert tails.lower_tail(-np.inf) == 0.0 and tails.upper_tail(-np.inf) == 1.0
