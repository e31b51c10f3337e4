"""Exact accounting of the Gaussian mechanism, without amplification by sampling.

A run with correlated noise, of any length, is one Gaussian mechanism: it releases
`C x + noise_stddev * z`, where C is the strategy, x are the gradients and z is standard
normal. This holds even if the gradients are chosen adaptively (arXiv:2202.08312,
Theorem 2.1; cited in arXiv:2505.12128, Theorem 1). This module's functions are for a
mechanism of sensitivity 1; `base.GaussianAccountant` applies them to a strategy.

`gaussian_delta` adds a bound on the rounding error to delta. Without this addition, its
result equals dp-accounting's to the last bit. Epsilon and the calibrated noise are
rounded up until `gaussian_delta` confirms that they meet the given delta.
"""

from __future__ import annotations

import functools
import math

import numpy as np

# SciPy imports `optimize` and `special` on first use, which takes 0.3 s.
import scipy

from tf_bandmf.accounting.checks import (
    LARGEST_EPSILON,
    LARGEST_STATED_EPSILON,
    check_delta,
    check_nonnegative,
    check_positive,
    no_privacy,
)
from tf_bandmf.accounting.root_finding import log, to_safe_side

NAME = "exact Gaussian mechanism (dp-accounting)"

# Limits on the noise, far outside the range of any meaningful run.
_LEAST_NOISE, _LARGEST_NOISE = 0.25 / LARGEST_EPSILON, 1e9
_LARGEST_SQUARED = 1e100
_TOLERANCE = 1e-12
# _EPSILON is the relative error of float64. Beyond _LARGEST_PLACE standard deviations,
# the tails of the normal distribution are treated as 0.
_EPSILON, _LARGEST_PLACE = 2.0**-52, 40.0


def gaussian_delta(noise_stddev: float, epsilon: float) -> float:
    """Returns the smallest delta of the Gaussian mechanism at epsilon, rounded up.

    Delta is computed from the difference of two tail probabilities of the normal
    distribution (Balle and Wang, 2018, arXiv:1805.06530, Theorem 8; arXiv:2505.12128,
    Theorem 2). The sensitivity is 1. A bound on the rounding error is added to the
    result.

    Raises:
      ValueError: if noise_stddev is not positive and finite, or epsilon negative.
    """
    check_nonnegative("epsilon", epsilon)
    return float(gaussian_deltas(noise_stddev, np.array([epsilon], np.float64))[0])


def gaussian_deltas(noise_stddev: float, epsilons: np.ndarray) -> np.ndarray:
    """Returns `gaussian_delta` for each of N epsilons >= 0, shape [N].

    Raises:
      ValueError: if noise_stddev is not positive and finite.
    """
    check_positive("noise_stddev", noise_stddev)
    # The noise is capped because its square could overflow. Less noise only increases
    # delta.
    noise_stddev = float(min(noise_stddev, _LARGEST_SQUARED))
    # The privacy loss of N(-1, sigma^2) against N(0, sigma^2) is at least epsilon for
    # values up to `cut`.
    cut = -0.5 - epsilons * noise_stddev**2
    tail = scipy.special.ndtr((cut + 1.0) / noise_stddev)
    deltas = tail - np.exp(epsilons + scipy.special.log_ndtr(cut / noise_stddev))
    place = epsilons * noise_stddev - 0.5 / noise_stddev
    # Delta is the difference of two tail probabilities. The larger one is the tail
    # beyond z standard deviations. Its relative error grows with z^2 and with the
    # rounding error of z. As z is a difference of two numbers, this error can be large.
    far = np.clip(place, 0.0, _LARGEST_PLACE)
    apart = epsilons * noise_stddev + 0.5 / noise_stddev
    rounded = tail * _EPSILON * (32.0 + 4.0 * far * (far + np.minimum(apart, 1e9)))
    return np.minimum(np.maximum(deltas, 0.0) + rounded, 1.0)


def gaussian_excess(noise_stddev: float, epsilons: np.ndarray) -> np.ndarray:
    """Returns `E (1 - exp(epsilon - L))_+` for the Gaussian mechanism's privacy loss L.

    For epsilon >= 0, this expectation is delta at epsilon. For epsilon = e < 0 it is,
    by symmetry, `1 - exp(e) + exp(e) delta(-e)`. If the noise is infinite, L is 0.
    """
    excess = -np.expm1(np.minimum(epsilons, 0.0))
    if noise_stddev == math.inf:
        return excess
    deltas = gaussian_deltas(noise_stddev, np.abs(epsilons))
    return excess + np.exp(np.minimum(epsilons, 0.0)) * deltas


def gaussian_epsilon(noise_stddev: float, delta: float) -> float:
    """Returns the smallest epsilon of the Gaussian mechanism at delta, rounded up.

    Raises:
      ValueError: on invalid input, or if epsilon would exceed 10**5.
    """
    check_delta(delta)
    if gaussian_delta(noise_stddev, 0.0) <= delta:
        return 0.0
    if gaussian_delta(noise_stddev, LARGEST_STATED_EPSILON) > delta:
        raise no_privacy(noise_stddev, delta, LARGEST_STATED_EPSILON)

    def excess(epsilon: float) -> float:
        return log(gaussian_delta(noise_stddev, epsilon)) - log(delta)

    # Newer versions of dp-accounting can compute epsilon from the noise, but TFF
    # (TensorFlow Federated) requires a version that cannot.
    upper = 1.0
    while excess(upper) > 0.0:
        upper = min(2.0 * upper, LARGEST_STATED_EPSILON)
    root = scipy.optimize.brentq(excess, 0.0, upper, xtol=_TOLERANCE)
    return to_safe_side(float(root), lambda e: gaussian_delta(noise_stddev, e) <= delta)


def calibrate_noise_stddev(epsilon: float, delta: float) -> float:
    """Returns the smallest noise for (epsilon, delta)-DP at sensitivity 1, rounded up.

    Args:
      epsilon: > 0.
      delta: in (0, 1).

    Returns:
      The noise standard deviation, after a check of
      `gaussian_delta(result, epsilon) <= delta`.

    Raises:
      ValueError: on invalid input, or if the required noise is above 10**9 times or
        below 2.5e-5 times the sensitivity.
    """
    # These checks come before the cached function, because the cache treats True as 1.0
    # and does not accept lists.
    check_positive("epsilon", epsilon)
    check_delta(delta)
    return _calibrated(float(epsilon), float(delta))


# The result is cached because all strategies that are compared at one budget need it.
@functools.lru_cache(maxsize=1024)
def _calibrated(epsilon: float, delta: float) -> float:
    if gaussian_delta(_LARGEST_NOISE, epsilon) > delta:
        raise ValueError(
            f"epsilon = {epsilon}, delta = {delta} would need noise above "
            f"{_LARGEST_NOISE:g} times the sensitivity. Use a larger budget."
        )
    if gaussian_delta(_LEAST_NOISE, epsilon) <= delta:
        raise ValueError(
            f"epsilon = {epsilon} gives no meaningful privacy, because noise below "
            f"{_LEAST_NOISE:g} times the sensitivity is enough. Use a smaller epsilon."
        )

    def excess(log_noise: float) -> float:
        return log(gaussian_delta(math.exp(log_noise), epsilon)) - log(delta)

    between = math.log(_LEAST_NOISE), math.log(_LARGEST_NOISE)
    noise = math.exp(scipy.optimize.brentq(excess, *between, xtol=_TOLERANCE))
    return to_safe_side(noise, lambda value: gaussian_delta(value, epsilon) <= delta)


def zcdp_rho(noise_stddev: float) -> float:
    """Returns the zCDP parameter rho, `1 / (2 noise_stddev^2)` (arXiv:1605.02065)."""
    check_positive("noise_stddev", noise_stddev)
    return 0.5 / noise_stddev**2


def grid_of(noise_stddev: float) -> float:
    """Returns the grid step for rounding noisy sums: a power of two <= 2^-10 sigma.

    A float32 sum plus float32 noise cannot take every float32 value, and the set of
    missing values depends on the sum. Therefore the last bits of a released value would
    rule out some sums with certainty (Mironov, 2012, doi:10.1145/2382196.2382264).
    Rounding to the grid prevents this: for any sum, each value on the grid results from
    thousands of float32 noise values. However, there is no proof that the rounded
    float32 results have the guarantee of exact Gaussian noise: for that, a bound would
    be needed on how far their probabilities are from those of exact results.

    Args:
      noise_stddev: sigma, the standard deviation of the noise.
    """
    return math.ldexp(1.0, math.frexp(noise_stddev)[1] - 11)
