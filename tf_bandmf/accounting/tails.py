"""Probabilities of tails and intervals of the standard normal distribution.

All accountants use these functions instead of differences of the cumulative
distribution function: in float64, 1 - 1e-17 is 1, so such differences are 0 beyond 8.3
standard deviations. These functions compute the probability of an interval from the
tail probabilities on its side of 0. Results are **never below the true value**: a bound
on the error of `scipy.special.ndtr` is added.

Tail probabilities from `ndtr` are accurate to a few units in the last place, except for
the rounding of `z^2 / 2`, which gives `exp(-z^2 / 2)` a relative error of `2^-53 z^2`.
Up to `|z| = 37` this error is below 2e-13; `RELATIVE_ERROR` is five times as much. For
larger `|z|`, tail probabilities are below 1e-300. Therefore `LEAST` (1e-300) is
added, too.
"""

from __future__ import annotations

import numpy as np

RELATIVE_ERROR = 1e-12
LEAST = 1e-300


def upper_tail(z: float | np.ndarray) -> np.ndarray:
    """Returns an upper bound on `P(Z > z)`, shaped like z.

    Args:
      z: a number of standard deviations; may be infinite.
    """
    return lower_tail(-np.asarray(z, np.float64))


def lower_tail(z: float | np.ndarray) -> np.ndarray:
    """Returns an upper bound on `P(Z <= z)`, shaped like z.

    Args:
      z: a number of standard deviations; may be infinite.
    """
    # Importing SciPy is slow, so this module does it only where needed.
    from scipy.special import ndtr

    z = np.asarray(z, np.float64)
    tail = ndtr(z) * (1.0 + RELATIVE_ERROR) + np.where(z == -np.inf, 0.0, LEAST)
    return np.minimum(tail, 1.0)


def cells(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns upper bounds on interval probabilities, and how loose they may be.

    Each tail at `z` has a relative error of at most `2^-51 (8 + z^2)`. It consists of a
    few units in the last place, the rounding of `z^2 / 2`, and the rounding of the
    caller's `z`.

    Args:
      z: ends of intervals, in standard deviations, increasing along the last axis,
        shape [..., N].

    Returns:
      Upper bounds on the probabilities of the intervals, and bounds on the differences
      between these upper bounds and the true values, both of shape [..., N - 1].
    """
    # Importing SciPy is slow, so this module does it only where needed.
    from scipy.special import ndtr

    z = np.asarray(z, np.float64)
    tail = ndtr(-np.abs(z))
    finite = np.where(np.isfinite(z), z, 0.0)
    error_of = tail * (8.0 + finite**2) * 2.0**-51
    error_of = error_of + np.where(np.isfinite(z), LEAST, 0.0)
    left, right = tail[..., :-1], tail[..., 1:]
    is_above = z[..., :-1] > 0.0
    is_around = ~is_above & (z[..., 1:] > 0.0)
    mass = np.where(is_above, left - right, right - left)
    mass = np.where(is_around, 1.0 - right - left, mass)
    error = error_of[..., :-1] + error_of[..., 1:]
    error = error + np.where(is_around, 2.0**-51, 0.0)
    return np.maximum(mass, 0.0) + error, 2.0 * error
