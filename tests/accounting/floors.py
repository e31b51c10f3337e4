"""Floors of delta that no accountant had a part in: Gaussian tails in 60 digits."""

import functools

import mpmath

DIGITS = 60


def _tail(z):
    return mpmath.erfc(z / mpmath.sqrt(2)) / 2


@functools.cache
def gaussian(norm, noise, log_threshold):
    """`E_P (1 - K / L)_+` of N(norm, noise^2) and N(0, noise^2), log K >= 0 or less.

    Args:
      norm: of what the example adds.
      noise: standard deviation.
      log_threshold: log K; a float or an mpf.
    """
    with mpmath.workdps(DIGITS):
        mu = mpmath.mpf(norm) / mpmath.mpf(noise)
        log_k = mpmath.mpf(log_threshold)
        far = _tail(log_k / mu - mu / 2)
        return far - mpmath.exp(log_k) * _tail(log_k / mu + mu / 2)


def one_step(probability, noise, epsilon):
    """Delta of one step, which a release of all steps cannot be below.

    An example takes part with a probability that is 1 for whoever knows the order:
    `(1 - q) N(0) + q N(1) - e^eps N(0) = q (N(1) - K N(0))`, `K = (e^eps - 1 + q) / q`.
    """
    with mpmath.workdps(DIGITS):
        q = mpmath.mpf(probability)
        threshold = (mpmath.expm1(mpmath.mpf(epsilon)) + q) / q
        return q * gaussian(1.0, noise, mpmath.log(threshold))


def own_bin(norm, noise, num_bins, epsilon):
    """Delta of balls in bins of whoever looks at the own bin's term alone.

    `L >= L_j / b`, and so `E_P (1 - K / L)_+ >= E_P_j (1 - b K / L_j)_+`; whatever the
    columns of the other bins are.
    """
    with mpmath.workdps(DIGITS):
        shifted = mpmath.mpf(epsilon) + mpmath.log(num_bins)
        return gaussian(norm, noise, shifted)
