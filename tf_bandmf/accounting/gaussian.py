"""Exact accounting of the Gaussian mechanism, without amplification by sampling.

A correlated-noise run of any length is one Gaussian mechanism: the release of
`C x + noise_stddev * z`, also when the gradients are chosen adaptively (arXiv:2202.08312,
Theorem 2.1; cited in arXiv:2505.12128, Theorem 1). The functions are for a mechanism of
sensitivity 1, `GaussianAccountant` is for a strategy.

The privacy loss is that of dp-accounting; every result is rounded to the safe side and
checked with it again.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math

import dp_accounting
import numpy as np
import scipy.optimize
from dp_accounting.pld import privacy_loss_mechanism

from tf_bandmf.accounting import tails
from tf_bandmf.accounting.base import Accountant, meaningful
from tf_bandmf.accounting.checks import (
    LARGEST_EPSILON,
    LARGEST_STATED_EPSILON,
    check_delta,
    check_epsilon,
    check_positive,
    no_privacy,
)
from tf_bandmf.accounting.guarantee import ZERO_OUT, Calibration, Guarantee
from tf_bandmf.accounting.root_finding import (
    log,
    near_root,
    near_root_of,
    smallest_noise,
    to_safe_side,
)

NAME = "exact Gaussian mechanism (dp-accounting)"

# Far outside of what a useful or even a meaningful run has.
_LARGEST_NOISE = 1e9
_LARGEST_SQUARED = 1e100
_TOLERANCE = 1e-12
# Relative error of float64; beyond so many standard deviations tails are 0.
_EPSILON, _LARGEST_PLACE = 2.0**-52, 40.0
# With sampling none below is stated; the relative tolerance of rough noise.
_LEAST_EPSILON, _ROUGH_TOLERANCE = 1e-6, 5e-3


def gaussian_delta(noise_stddev: float, epsilon: float) -> float:
    """The smallest delta for which the mechanism is (epsilon, delta)-DP, rounded up.

    Balle and Wang, 2018, arXiv:1805.06530, Theorem 8 (arXiv:2505.12128, Theorem 2): a
    difference of two tails. What its rounding may have taken away is added.

    Raises:
      ValueError: if noise_stddev is not positive and finite, or epsilon negative.
      ArithmeticError: if dp-accounting returns no probability.
    """
    check_epsilon(epsilon)
    return float(gaussian_deltas(noise_stddev, np.array([epsilon], np.float64))[0])


def gaussian_deltas(noise_stddev: float, epsilons: np.ndarray) -> np.ndarray:
    """`gaussian_delta` of many epsilons >= 0, of the same shape [N], at once.

    Raises:
      ValueError: if noise_stddev is not positive and finite.
      ArithmeticError: if dp-accounting returns no probability.
    """
    check_positive("noise_stddev", noise_stddev)
    # Less noise is on the safe side; squares of more are no numbers.
    noise_stddev = float(min(noise_stddev, _LARGEST_SQUARED))
    loss = privacy_loss_mechanism.GaussianPrivacyLoss(noise_stddev, sensitivity=1.0)
    deltas = np.asarray(loss.get_delta_for_epsilon(epsilons), np.float64)
    place = epsilons * noise_stddev - 0.5 / noise_stddev
    # The relative error of the larger tail at z grows like z^2, and with that of z, which
    # is a difference of two numbers.
    tail = tails.upper_tail(place)
    tail = np.where(tail > 2.0 * tails.LEAST, tail, 0.0)
    far = np.clip(place, 0.0, _LARGEST_PLACE)
    apart = epsilons * noise_stddev + 0.5 / noise_stddev
    rounded = tail * _EPSILON * (32.0 + 4.0 * far * (far + np.minimum(apart, 1e9)))
    safe = np.minimum(np.maximum(deltas, 0.0) + rounded, 1.0)
    deltas = np.where(deltas > -rounded, safe, deltas)
    wrong = ~((deltas >= 0.0) & (deltas <= 1.0))
    if np.any(wrong):
        raise ArithmeticError(
            f"The accountant returned delta = {deltas[wrong][0]} for noise_stddev = "
            f"{noise_stddev}, epsilon = {epsilons[wrong][0]}."
        )
    return deltas


def gaussian_epsilon(noise_stddev: float, delta: float) -> float:
    """The smallest epsilon, rounded up, for which the mechanism is (epsilon, delta)-DP.

    Raises:
      ValueError: on invalid input, or if epsilon would exceed 10**5.
    """
    check_delta(delta)
    if gaussian_delta(noise_stddev, 0.0) <= delta:
        return 0.0

    def excess(epsilon: float) -> float:
        return log(gaussian_delta(noise_stddev, epsilon)) - log(delta)

    upper = 1.0
    while excess(upper) > 0.0:
        if upper >= LARGEST_STATED_EPSILON:
            raise no_privacy(noise_stddev, delta, LARGEST_STATED_EPSILON)
        upper = min(2.0 * upper, LARGEST_STATED_EPSILON)
    epsilon = scipy.optimize.brentq(excess, 0.0, upper, xtol=_TOLERANCE)
    return to_safe_side(
        float(epsilon), lambda value: gaussian_delta(noise_stddev, value) <= delta
    )


def calibrate_noise_stddev(epsilon: float, delta: float) -> float:
    """The smallest noise, rounded up, that gives (epsilon, delta)-DP at sensitivity 1.

    Args:
      epsilon: > 0.
      delta: in (0, 1).

    Returns:
      The noise standard deviation. It was checked with the accountant:
      `gaussian_delta(result, epsilon) <= delta`.

    Raises:
      ValueError: on invalid input, or if the budget is so small that more than 10**9
        times the sensitivity would be needed.
    """
    check_positive("epsilon", epsilon)
    check_delta(delta)
    return _calibrated(float(epsilon), float(delta))


# All that is compared for a budget is scaled by the same noise.
@functools.lru_cache(maxsize=1024)
def _calibrated(epsilon: float, delta: float) -> float:
    def excess(log_noise_stddev: float) -> float:
        found = gaussian_delta(math.exp(log_noise_stddev), epsilon)
        return log(found) - log(delta)

    if gaussian_delta(_LARGEST_NOISE, epsilon) > delta:
        raise ValueError(
            f"No useful noise gives epsilon = {epsilon}, delta = {delta}: more "
            f"than {_LARGEST_NOISE:g} times the sensitivity would be needed. Use a "
            f"larger budget."
        )
    lower = -math.log(4.0 * LARGEST_EPSILON)
    if excess(lower) <= 0.0:
        raise ValueError(
            f"epsilon = {epsilon} gives no meaningful privacy: found noise below "
            f"{math.exp(lower):g} times the sensitivity. Choose a smaller epsilon."
        )
    log_noise = scipy.optimize.brentq(
        excess, lower, math.log(_LARGEST_NOISE), xtol=_TOLERANCE
    )
    return to_safe_side(
        math.exp(log_noise), lambda value: gaussian_delta(value, epsilon) <= delta
    )


def zcdp_rho(noise_stddev: float) -> float:
    """Rho of zero-concentrated DP: `1 / (2 noise_stddev^2)` (arXiv:1605.02065)."""
    check_positive("noise_stddev", noise_stddev)
    return 0.5 / noise_stddev**2


class DeltaAccountant(Accountant):
    """An accountant that computes delta of any epsilon and noise, not by simulation.

    It knows delta; epsilon and noise follow by root finding, on the safe side. Its first
    claim is that of its guarantees.
    """

    # The sampling probability; 1 without amplification.
    sampling_probability = 1.0
    is_amplified = False

    @property
    @abc.abstractmethod
    def whole_sensitivity(self) -> float:
        """Sensitivity of the Gaussian mechanism that the run is without amplification."""

    def multiplier(self, noise_stddev: float) -> float:
        """Noise per unit of sensitivity of that mechanism."""
        return noise_stddev / self.whole_sensitivity

    def sampled_delta(
        self, epsilon: float, noise_stddev: float, rough: bool = False
    ) -> float:
        """Delta at epsilon > 0 with amplification, from above.

        Args:
          epsilon: > 0.
          noise_stddev: > 0.
          rough: a cheaper approximation, to search with.
        """
        return 1.0

    def delta(self, epsilon: float, noise_stddev: float, rough: bool = False) -> float:
        """Delta at epsilon, from above.

        Args:
          epsilon: > 0; without amplification, >= 0.
          noise_stddev: > 0.
          rough: see `sampled_delta`.

        Raises:
          ValueError: on invalid input.
        """
        found = gaussian_delta(self.multiplier(noise_stddev), epsilon)
        if self.sampling_probability == 1.0:
            return found
        check_positive("epsilon", epsilon)
        return min(found, self.sampled_delta(epsilon, noise_stddev, rough))

    def epsilon(self, delta: float, noise_stddev: float) -> float:
        """Epsilon at delta, from above; 0 where delta is spent before.

        Raises:
          ValueError: on invalid input, or if epsilon is above `LARGEST_STATED_EPSILON`.
        """
        whole, upper = self.multiplier(noise_stddev), LARGEST_STATED_EPSILON
        check_delta(delta)
        if self.sampling_probability == 1.0 or gaussian_delta(whole, upper) <= delta:
            upper = gaussian_epsilon(whole, delta)
        elif self.delta(upper, noise_stddev) > delta:
            raise no_privacy(noise_stddev, delta, upper)
        least = min(_LEAST_EPSILON, upper)
        if self.sampling_probability == 1.0 or upper == least:
            return upper
        if self.delta(least, noise_stddev) <= delta:
            return least

        def excess(log_epsilon: float, rough: bool = False) -> float:
            found = self.delta(math.exp(log_epsilon), noise_stddev, rough)
            return log(found) - math.log(delta)

        root = near_root_of(
            lambda x: excess(x, rough=True),
            excess,
            # Between the whole of the loss and the sampled part of it.
            math.log(upper) + 0.5 * math.log(self.sampling_probability),
            math.log(upper),
        )
        return to_safe_side(
            math.exp(root), lambda epsilon: self.delta(epsilon, noise_stddev) <= delta
        )

    def largest_noise(self, epsilon: float, delta: float) -> float:
        """The noise without amplification, which is enough for certain.

        Raises:
          ValueError: on invalid input, or if no useful noise gives the budget.
        """
        return calibrate_noise_stddev(epsilon, delta) * self.whole_sensitivity

    def calibrate_noise_stddev(self, epsilon: float, delta: float) -> float:
        """The smallest noise for the budget, rounded up.

        It was checked: `self.delta(epsilon, result) <= delta`.

        Raises:
          ValueError: on invalid input, or if no useful noise gives the budget.
        """
        largest = self.largest_noise(epsilon, delta)
        if self.sampling_probability == 1.0:
            return largest
        return smallest_noise(
            lambda noise: self.delta(epsilon, noise, rough=True),
            lambda noise: self.delta(epsilon, noise),
            delta,
            largest,
        )

    def rough_noise_stddev(
        self, epsilon: float, delta: float, near: float | None = None
    ) -> float:
        largest = self.largest_noise(epsilon, delta)
        if self.sampling_probability == 1.0:
            return largest
        if near is None:
            # Where noise is large it is that of all steps times the probability.
            near = min(1.5 * self.sampling_probability, 1.0) * largest

        def excess(log_noise: float) -> float:
            found = self.delta(epsilon, math.exp(log_noise), rough=True)
            return log(found) - log(delta)

        return math.exp(
            near_root(excess, math.log(near), math.log(largest), _ROUGH_TOLERANCE)
        )

    def calibrate(self, epsilon: float, delta: float) -> Calibration:
        stddev = self.calibrate_noise_stddev(epsilon, delta)
        return Calibration(
            stddev, self._stated(epsilon, delta, stddev), self.is_amplified
        )

    def guarantee(self, noise_stddev: float, delta: float) -> Guarantee:
        epsilon = meaningful(self.epsilon(delta, noise_stddev), noise_stddev, delta)
        return self._stated(epsilon, delta, noise_stddev)

    def confirms(self, noise_stddev: float, guarantee: Guarantee) -> bool:
        found = self.delta(guarantee.epsilon, noise_stddev)
        return found <= guarantee.delta * (1.0 + 1e-6)

    def _stated(self, epsilon: float, delta: float, noise_stddev: float) -> Guarantee:
        name, kind, adjacency = self.claims[0]
        return Guarantee(epsilon, delta, kind, name, adjacency)


@dataclasses.dataclass(frozen=True)
class GaussianAccountant(DeltaAccountant):
    """No amplification: one Gaussian mechanism.

    Args:
      sensitivity: sens(C) under the participation, or an upper bound on it.
      is_exact: False for a bound; the guarantees are then bounds, too.
      name: of the accountant, for guarantees.
      releases: noise multiplier of Gaussian releases beside the run. Both together are one
        Gaussian mechanism, of which `1 / sigma^2` is the sum.
    """

    sensitivity: float
    is_exact: bool
    name: str = NAME
    releases: float = math.inf

    def __post_init__(self) -> None:
        check_positive("sensitivity", self.sensitivity)

    @property
    def claims(self) -> tuple[tuple[str, str, str], ...]:  # type: ignore[override]
        return ((self.name, "exact" if self.is_exact else "bound", ZERO_OUT),)

    @property
    def whole_sensitivity(self) -> float:
        return self.sensitivity

    def multiplier(self, noise_stddev: float) -> float:
        alone = super().multiplier(noise_stddev)
        if self.releases == math.inf:
            return alone
        return 1.0 / math.hypot(1.0 / alone, 1.0 / self.releases)

    def largest_noise(self, epsilon: float, delta: float) -> float:
        multiplier = calibrate_noise_stddev(epsilon, delta)
        if self.releases < math.inf:
            left = multiplier**-2 - self.releases**-2
            if left <= 0.0:
                raise nothing_left(epsilon, delta)
            multiplier = to_safe_side(
                left**-0.5,
                lambda found: self.delta(epsilon, found * self.sensitivity) <= delta,
            )
        return multiplier * self.sensitivity

    def event(self, noise_stddev: float) -> dp_accounting.DpEvent:
        return dp_accounting.GaussianDpEvent(self.multiplier(noise_stddev))

    def _stated(self, epsilon: float, delta: float, noise_stddev: float) -> Guarantee:
        stated = super()._stated(epsilon, delta, noise_stddev)
        rho = zcdp_rho(self.multiplier(noise_stddev))
        return dataclasses.replace(stated, zcdp_rho=rho)


def nothing_left(epsilon: float, delta: float) -> ValueError:
    """The error where releases beside a run leave nothing for its steps."""
    return ValueError(
        f"The releases beside the run leave nothing of (epsilon = {epsilon:g}, delta = "
        f"{delta:g}) for its steps. Reserve less."
    )
