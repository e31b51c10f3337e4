"""A run, and Gaussian releases about the same records beside it: one guarantee for both.

The releases may come between the steps, and steps may depend on what was released.
Without amplification both together are one Gaussian mechanism, `1 / sigma^2` of which is
the sum of both (Dong, Roth, Su, 2019, arXiv:1905.02383, Corollary 3.3; exact). Where the
run has a privacy loss distribution it is composed with that of the releases (Zhu, Dong,
Wang, 2022, arXiv:2106.08567, Theorem 10). Elsewhere epsilons and deltas are added up. A
sampler keeps its random numbers over the steps: that the theorems hold although releases
come between them is shown by Vadhan and Zhang, 2022, arXiv:2207.08335.
"""

from __future__ import annotations

import dataclasses
import math

import dp_accounting

from tf_bandmf.accounting import event_losses, gaussian, root_finding
from tf_bandmf.accounting.base import Accountant
from tf_bandmf.accounting.checks import check_positive
from tf_bandmf.accounting.cyclic_poisson import CyclicPoissonAccountant
from tf_bandmf.accounting.gaussian import (
    DeltaAccountant,
    GaussianAccountant,
    nothing_left,
)
from tf_bandmf.accounting.guarantee import REPLACE_ONE, ZERO_OUT, Calibration, Guarantee

LOSSES = (
    "Poisson-sampled Gaussian queries with Gaussian releases beside them "
    "(dp-accounting, privacy loss distributions)"
)
ADDED_UP = ", added to that of Gaussian releases (basic composition)"
# Discretization of privacy losses, and what their convolution may err by in delta.
_INTERVAL, _ROUNDING, _SMALLEST = 1e-4, 1e-12, 1e-10
# The tolerance of the logarithm of a calibrated noise, and how much more than for the run
# alone it may be.
_TOLERANCE, _MOST_LOG_NOISE = 1e-4, 5.0


def beside(base: Accountant, noise_multiplier: float, delta: float) -> Accountant:
    """The accountant of a run with Gaussian releases beside it.

    Args:
      base: of the run alone.
      noise_multiplier: of all releases together, per unit of sensitivity under zero-out;
        R releases of sigma each have `sigma / sqrt(R)`.
      delta: at which the guarantee is stated.
    """
    check_positive("noise_multiplier", noise_multiplier)
    if isinstance(base, GaussianAccountant):
        return dataclasses.replace(base, releases=noise_multiplier)
    if isinstance(base, CyclicPoissonAccountant) and _has_losses(base, delta):
        return _Losses(base, noise_multiplier)
    return _AddedUp(base, noise_multiplier)


def noise_beside(base: Accountant, epsilon: float, delta: float, share: float) -> float:
    """The noise multiplier of all releases together, for a share of a budget.

    The share is one of `1 / sigma^2` of the Gaussian mechanism that would spend all of the
    budget. Where epsilons are added up it is one of epsilon, at half of delta.

    Args:
      base: accountant of the run alone.
      epsilon: > 0.
      delta: in (0, 1).
      share: in (0, 1).
    """
    if isinstance(base, GaussianAccountant) or _has_losses(base, delta):
        return gaussian.calibrate_noise_stddev(epsilon, delta) / math.sqrt(share)
    noise = gaussian.calibrate_noise_stddev(share * epsilon, 0.5 * delta)
    return noise * _moved_by(base)


def _has_losses(base: Accountant, delta: float) -> bool:
    # Only the probabilities of dp-accounting's transforms are known up to a constant.
    return isinstance(base, CyclicPoissonAccountant) and delta >= _SMALLEST


@dataclasses.dataclass(frozen=True)
class _Losses(DeltaAccountant):
    """Privacy losses of Poisson-sampled queries and of the releases, composed."""

    base: CyclicPoissonAccountant
    releases: float
    claims = ((LOSSES, "bound", ZERO_OUT),)
    is_amplified = True

    @property
    def sampling_probability(self) -> float:  # type: ignore[override]
        return self.base.sampling_probability

    @property
    def whole_sensitivity(self) -> float:
        return self.base.whole_sensitivity

    def delta(self, epsilon: float, noise_stddev: float, rough: bool = False) -> float:
        loss = self.privacy_loss(noise_stddev, _INTERVAL)
        return float(loss.get_delta_for_epsilon(epsilon)) + _ROUNDING

    def epsilon(self, delta: float, noise_stddev: float) -> float:
        loss = self.privacy_loss(noise_stddev, _INTERVAL)
        return max(float(loss.get_epsilon_for_delta(delta - _ROUNDING)), 0.0)

    def calibrate_noise_stddev(self, epsilon: float, delta: float) -> float:
        if gaussian.gaussian_delta(self.releases, epsilon) >= delta:
            raise nothing_left(epsilon, delta)

        def excess(log_noise: float) -> float:
            found = self.delta(epsilon, math.exp(log_noise))
            return math.log(found) - math.log(delta)

        alone = math.log(self.base.calibrate_noise_stddev(epsilon, delta))
        most = alone + _MOST_LOG_NOISE
        try:
            root = root_finding.near_root(excess, alone, most, _TOLERANCE)
            return root_finding.to_safe_side(
                math.exp(root + _TOLERANCE),
                lambda noise: self.delta(epsilon, noise) <= delta,
            )
        except ArithmeticError:
            raise nothing_left(epsilon, delta) from None

    def confirms(self, noise_stddev: float, guarantee: Guarantee) -> bool:
        # Another run of the transforms may differ by its rounding, of which the loss
        # holds four times as much: half of that still leaves more than the error.
        slack = 0.5 * event_losses.rounding_of_transforms(self.base.num_queries)
        delta = self.delta(guarantee.epsilon, noise_stddev) - slack
        return delta <= guarantee.delta * (1.0 + 1e-6)

    def event(self, noise_stddev: float) -> dp_accounting.DpEvent:
        return _both(self.base, noise_stddev, self.releases)


class _AddedUp(Accountant):
    """Basic composition: half of delta, and what epsilon is left, for the run."""

    def __init__(self, base: Accountant, noise_multiplier: float) -> None:
        self._base, self._releases = base, noise_multiplier
        self.claims = tuple(
            (name + ADDED_UP, kind, adjacency) for name, kind, adjacency in base.claims
        )

    def calibrate(self, epsilon: float, delta: float) -> Calibration:
        left = epsilon - self._spent(delta)
        if left <= 0.0:
            raise nothing_left(epsilon, delta)
        found = self._base.calibrate(left, 0.5 * delta)
        assert found.guarantee is not None
        return dataclasses.replace(found, guarantee=self._with(found.guarantee))

    def guarantee(self, noise_stddev: float, delta: float) -> Guarantee:
        return self._with(self._base.guarantee(noise_stddev, 0.5 * delta))

    def confirms(self, noise_stddev: float, guarantee: Guarantee) -> bool:
        left = guarantee.epsilon - self._spent(guarantee.delta)
        if left <= 0.0:
            return False
        alone = dataclasses.replace(
            guarantee,
            epsilon=left,
            delta=0.5 * guarantee.delta,
            accountant=guarantee.accountant.removesuffix(ADDED_UP),
        )
        return self._base.confirms(noise_stddev, alone)

    def event(self, noise_stddev: float) -> dp_accounting.DpEvent:
        return _both(self._base, noise_stddev, self._releases)

    def _spent(self, delta: float) -> float:
        """Epsilon of the releases at half of delta."""
        noise = self._releases / _moved_by(self._base)
        return gaussian.gaussian_epsilon(noise, 0.5 * delta)

    def _with(self, alone: Guarantee) -> Guarantee:
        delta = 2.0 * alone.delta
        return dataclasses.replace(
            alone,
            epsilon=alone.epsilon + self._spent(delta),
            delta=delta,
            accountant=alone.accountant + ADDED_UP,
        )


def _both(
    base: Accountant, noise_stddev: float, releases: float
) -> dp_accounting.DpEvent:
    """The event of a run and of releases with this noise multiplier beside it."""
    together = dp_accounting.GaussianDpEvent(releases / _moved_by(base))
    return dp_accounting.ComposedDpEvent([base.event(noise_stddev), together])


def _moved_by(base: Accountant) -> float:
    """By how much a neighbor moves a release of sensitivity 1 under zero-out."""
    return 2.0 if base.claims[0][2] == REPLACE_ONE else 1.0
