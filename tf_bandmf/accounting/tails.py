"""Probabilities of tails and of intervals of a standard normal variable.

All accountants use these functions and never subtract values of the distribution function:
in float64, 1 - 1e-17 is 1, so such differences are 0 beyond 8.3 standard deviations. Here
the probability of an interval is computed from its nearer tail. Results are **never below
the true value**: the error of `scipy.special.ndtr` is added.

The tails of `ndtr` are accurate to a few units in the last place, except for the rounding
of `z^2 / 2`, which gives `exp(-z^2 / 2)` a relative error of `2^-53 z^2`. Up to
`|z| = 37` this is below 2e-13; `RELATIVE_ERROR` is five times as much. Beyond, tails
are below 1e-300, which `LEAST` allows for.
"""

from __future__ import annotations

import numpy as np

RELATIVE_ERROR = 1e-12
LEAST = 1e-300


def upper_tail(z: float | np.ndarray) -> np.ndarray:
    """Returns an upper bound on `P(Z > z)`, shaped like z.

    Args:
      z: in standard deviations; may be infinite.
    """
    return lower_tail(-np.asarray(z, np.float64))


def lower_tail(z: float | np.ndarray) -> np.ndarray:
    """Returns an upper bound on `P(Z <= z)`, shaped like z.

    Args:
      z: in standard deviations; may be infinite.
    """
    from scipy.special import ndtr  # slow to import

    z = np.asarray(z, np.float64)
    tail = ndtr(z) * (1.0 + RELATIVE_ERROR) + np.where(z == -np.inf, 0.0, LEAST)
    return np.minimum(tail, 1.0)


def cells(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns upper bounds on the probabilities of intervals, and bounds on the excess.

    Each tail at `z` has a relative error of at most `2^-51 (8 + z^2)`, from a few units in
    the last place, the rounding of `z^2 / 2`, and the rounding of the caller's `z`.

    Args:
      z: in standard deviations, increasing along the last axis, shape [..., N].

    Returns:
      Upper bounds on the masses, and bounds on their excess, both [..., N - 1].
    """
    from scipy.special import ndtr  # slow to import

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
