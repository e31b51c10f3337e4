"""Exact accounting of the Gaussian mechanism, without amplification by sampling.

A correlated-noise run of any length is one Gaussian mechanism: the release of
`C x + sensitivity * noise_multiplier * z`, also when the gradients are chosen adaptively
(Denisov et al., 2022, Theorem 2.1; cited in banded-inverse-square-root, Theorem 1).
`noise_multiplier` here is always the noise standard deviation per unit of
**sensitivity**.

The privacy loss is that of dp-accounting; every result is rounded to the safe side and
checked with it again.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.optimize
from dp_accounting.pld import privacy_loss_mechanism

from tf_bandmf.accounting.root_finding import log, to_safe_side

NAME = "exact Gaussian mechanism (dp-accounting)"

# Far outside of what a useful or even a meaningful run has.
_LARGEST_NOISE_MULTIPLIER = 1e9
LARGEST_EPSILON = 1e4
_TOLERANCE = 1e-12

# Of a plan: what the noise leaves out of a normal distribution is below a thousandth of
# it (`noise.radius`), and so is the chance to guess a key of 128 bits.
SMALLEST_DELTA = 1e-20


def gaussian_delta(noise_multiplier: float, epsilon: float) -> float:
    """The smallest delta for which the mechanism is (epsilon, delta)-DP.

    Balle and Wang, 2018 (banded-inverse-square-root, Theorem 2).

    Raises:
      ValueError: if noise_multiplier is not positive and finite, or epsilon negative.
    """
    check_positive("noise_multiplier", noise_multiplier)
    if not (math.isfinite(epsilon) and epsilon >= 0.0):
        raise ValueError(f"epsilon must be finite and >= 0, found {epsilon}.")
    loss = privacy_loss_mechanism.GaussianPrivacyLoss(noise_multiplier, sensitivity=1.0)
    delta = float(loss.get_delta_for_epsilon(epsilon))
    if not 0.0 <= delta <= 1.0:
        raise ArithmeticError(
            f"The accountant returned delta = {delta} for noise_multiplier = "
            f"{noise_multiplier}, epsilon = {epsilon}."
        )
    return delta


def gaussian_epsilon(noise_multiplier: float, delta: float) -> float:
    """The smallest epsilon, rounded up, for which the mechanism is (epsilon, delta)-DP.

    Raises:
      ValueError: on invalid input, or if epsilon would exceed 10**4.
    """
    check_delta(delta)
    if gaussian_delta(noise_multiplier, 0.0) <= delta:
        return 0.0

    def excess(epsilon: float) -> float:
        return log(gaussian_delta(noise_multiplier, epsilon)) - log(delta)

    upper = 1.0
    while excess(upper) > 0.0:
        upper *= 2.0
        if upper > LARGEST_EPSILON:
            raise ValueError(
                f"noise_multiplier = {noise_multiplier} gives no meaningful privacy: "
                f"epsilon > {LARGEST_EPSILON:g} at delta = {delta}. Add noise."
            )
    epsilon = scipy.optimize.brentq(excess, 0.0, upper, xtol=_TOLERANCE)
    return to_safe_side(
        float(epsilon), lambda value: gaussian_delta(noise_multiplier, value) <= delta
    )


def calibrate_noise_multiplier(epsilon: float, delta: float) -> float:
    """The smallest noise multiplier, rounded up, that gives (epsilon, delta)-DP.

    Args:
      epsilon: > 0.
      delta: in (0, 1).

    Returns:
      The noise standard deviation per unit of sensitivity. It was checked with the
      accountant: `gaussian_delta(result, epsilon) <= delta`.

    Raises:
      ValueError: on invalid input, or if the budget is so small that more than 10**9
        times the sensitivity would be needed.
    """
    check_positive("epsilon", epsilon)
    check_delta(delta)

    def excess(log_noise_multiplier: float) -> float:
        found = gaussian_delta(math.exp(log_noise_multiplier), epsilon)
        return log(found) - log(delta)

    if gaussian_delta(_LARGEST_NOISE_MULTIPLIER, epsilon) > delta:
        raise ValueError(
            f"No useful noise gives epsilon = {epsilon}, delta = {delta}: a noise "
            f"multiplier above {_LARGEST_NOISE_MULTIPLIER:g} would be needed. Use a "
            f"larger budget."
        )
    lower = -math.log(4.0 * LARGEST_EPSILON)
    if excess(lower) <= 0.0:
        raise ValueError(
            f"epsilon = {epsilon} is no privacy at all: found a noise multiplier below "
            f"{math.exp(lower):g}. Use a smaller budget."
        )
    log_noise = scipy.optimize.brentq(
        excess, lower, math.log(_LARGEST_NOISE_MULTIPLIER), xtol=_TOLERANCE
    )
    return to_safe_side(
        math.exp(log_noise), lambda value: gaussian_delta(value, epsilon) <= delta
    )


def zcdp_rho(noise_multiplier: float) -> float:
    """Rho of zero-concentrated DP: `1 / (2 noise_multiplier^2)` (Bun, Steinke, 2016)."""
    check_positive("noise_multiplier", noise_multiplier)
    return 0.5 / noise_multiplier**2


def check_positive(name: str, value: Any) -> None:
    """Raises ValueError unless the value is a finite number > 0."""
    if not is_number(value) or not (math.isfinite(value) and value > 0.0):
        raise ValueError(f"{name} must be finite and > 0, found {value!r}.")


def check_delta(delta: Any) -> None:
    """Raises ValueError unless delta is a number in (0, 1)."""
    if not is_number(delta) or not 0.0 < delta < 1.0:
        raise ValueError(f"delta must be in (0, 1), found {delta!r}.")


def check_planned_delta(delta: Any) -> None:
    """Raises ValueError unless delta is a number in [SMALLEST_DELTA, 1)."""
    check_delta(delta)
    if delta < SMALLEST_DELTA:
        raise ValueError(
            f"delta of a plan must be >= {SMALLEST_DELTA:g}, found {delta!r}: the tails "
            f"of generated noise are not longer. Use a larger delta."
        )


def is_number(value: Any) -> bool:
    """Whether this is a number, also one of NumPy's, and no bool."""
    number = isinstance(value, (int, float, np.integer, np.floating))
    return number and not isinstance(value, bool)
