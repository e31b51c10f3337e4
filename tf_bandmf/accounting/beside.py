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

import abc
import dataclasses
import math

import dp_accounting
from dp_accounting.pld import privacy_loss_distribution

from tf_bandmf.accounting import event_losses, gaussian, root_finding
from tf_bandmf.accounting.base import Accountant, meaningful
from tf_bandmf.accounting.checks import check_positive
from tf_bandmf.accounting.cyclic_poisson import CyclicPoissonAccountant
from tf_bandmf.accounting.gaussian import GaussianAccountant
from tf_bandmf.accounting.guarantee import REPLACE_ONE, Calibration, Guarantee

LOSSES = (
    "Poisson-sampled Gaussian queries with Gaussian releases beside them "
    "(dp-accounting, privacy loss distributions)"
)
ADDED_UP = ", added to that of Gaussian releases (basic composition)"
# Discretization of privacy losses, and what their convolution may err by in delta.
_INTERVAL, _ROUNDING, _SMALLEST = 1e-4, 1e-12, 1e-10
# The relative tolerance of a calibrated noise, and the most noise that is tried.
_TOLERANCE, _MOST_NOISE = 1e-4, 1e9


class Beside(Accountant):
    """Accounting for a run with Gaussian releases of a noise multiplier beside it.

    Args:
      base: of the run alone.
      noise_multiplier: of all releases together, per unit of sensitivity under zero-out;
        R releases of sigma each have `sigma / sqrt(R)`.
    """

    def __init__(self, base: Accountant, noise_multiplier: float) -> None:
        check_positive("noise_multiplier", noise_multiplier)
        self.base = base
        self.noise_multiplier = float(noise_multiplier)

    @staticmethod
    @abc.abstractmethod
    def noise_for(
        base: Accountant, epsilon: float, delta: float, share: float
    ) -> float:
        """The releases' noise multiplier for a share of the budget; see `noise_beside`."""

    def event(self, noise_stddev: float) -> dp_accounting.DpEvent:
        """See the base class."""
        return dp_accounting.ComposedDpEvent(
            [
                self.base.event(noise_stddev),
                dp_accounting.GaussianDpEvent(
                    self.noise_multiplier / moved_by(self.base)
                ),
            ]
        )

    def privacy_loss(
        self, noise_stddev: float, interval: float
    ) -> privacy_loss_distribution.PrivacyLossDistribution:
        """See the base class."""
        alone = self.base.privacy_loss(noise_stddev, interval)
        event = dp_accounting.GaussianDpEvent(
            self.noise_multiplier / moved_by(self.base)
        )
        releases = event_losses.additive_loss(event, 1, interval)
        assert releases is not None
        return alone.compose(releases)

    def remark(self, noise_stddev: float, guarantee: Guarantee) -> str:
        """See the base class: what is said of the run alone does not hold for both."""
        return ""


def beside(base: Accountant, noise_multiplier: float, delta: float) -> Beside:
    """The accountant of a run with Gaussian releases beside it; see `Beside`.

    Args:
      base: of the run alone.
      noise_multiplier: of all releases together.
      delta: at which the guarantee is stated.
    """
    return _kind(base, delta)(base, noise_multiplier)


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
    return _kind(base, delta).noise_for(base, epsilon, delta, share)


def _kind(base: Accountant, delta: float) -> type[Beside]:
    if isinstance(base, GaussianAccountant):
        return _OneGaussian
    # Only the probabilities of dp-accounting's transforms are known up to a constant.
    if isinstance(base, CyclicPoissonAccountant) and delta >= _SMALLEST:
        return _Losses
    return _AddedUp


class _OneGaussian(Beside):
    """Both are one Gaussian mechanism."""

    base: GaussianAccountant

    def __init__(self, base: Accountant, noise_multiplier: float) -> None:
        super().__init__(base, noise_multiplier)
        self.claims = base.claims

    @staticmethod
    def noise_for(
        base: Accountant, epsilon: float, delta: float, share: float
    ) -> float:
        return gaussian.calibrate_noise_stddev(epsilon, delta) / math.sqrt(share)

    def calibrate(self, epsilon: float, delta: float) -> Calibration:
        whole = gaussian.calibrate_noise_stddev(epsilon, delta)
        left = whole**-2 - self.noise_multiplier**-2
        if left <= 0.0:
            raise _nothing_left(epsilon, delta)
        unit = self.base.event(1.0).noise_multiplier  # type: ignore[attr-defined]
        stddev = root_finding.to_safe_side(
            left**-0.5 / unit,
            lambda noise: gaussian.gaussian_delta(self._both(noise), epsilon) <= delta,
        )
        return Calibration(stddev, self._guarantee(epsilon, delta, stddev))

    def guarantee(self, noise_stddev: float, delta: float) -> Guarantee:
        epsilon = gaussian.gaussian_epsilon(self._both(noise_stddev), delta)
        epsilon = meaningful(epsilon, noise_stddev, delta)
        return self._guarantee(epsilon, delta, noise_stddev)

    def confirms(self, noise_stddev: float, guarantee: Guarantee) -> bool:
        found = gaussian.gaussian_delta(self._both(noise_stddev), guarantee.epsilon)
        return found <= guarantee.delta * (1.0 + 1e-6)

    def event(self, noise_stddev: float) -> dp_accounting.DpEvent:
        return dp_accounting.GaussianDpEvent(self._both(noise_stddev))

    def _both(self, noise_stddev: float) -> float:
        """Noise multiplier of the run and the releases together."""
        alone = self.base.event(noise_stddev).noise_multiplier  # type: ignore[attr-defined]
        return 1.0 / math.hypot(1.0 / alone, 1.0 / self.noise_multiplier)

    def _guarantee(self, epsilon: float, delta: float, stddev: float) -> Guarantee:
        name, kind, adjacency = self.claims[0]
        rho = gaussian.zcdp_rho(self._both(stddev))
        return Guarantee(epsilon, delta, kind, name, adjacency, zcdp_rho=rho)


class _Losses(Beside):
    """Privacy losses of both, composed."""

    base: CyclicPoissonAccountant

    def __init__(self, base: Accountant, noise_multiplier: float) -> None:
        super().__init__(base, noise_multiplier)
        self.claims = ((LOSSES, "bound", base.claims[0][2]),)

    noise_for = staticmethod(_OneGaussian.noise_for)

    def calibrate(self, epsilon: float, delta: float) -> Calibration:
        if gaussian.gaussian_delta(self.noise_multiplier, epsilon) >= delta:
            raise _nothing_left(epsilon, delta)
        guarantee = Guarantee(epsilon, delta, "bound", LOSSES, self.claims[0][2])
        try:
            noise = root_finding.least_safe(
                lambda noise: self._delta(noise, epsilon) <= delta,
                self.base.calibrate(epsilon, delta).noise_stddev,
                _MOST_NOISE,
                _TOLERANCE,
            )
        except ArithmeticError:
            raise _nothing_left(epsilon, delta) from None
        return Calibration(noise, guarantee, is_amplified=True)

    def guarantee(self, noise_stddev: float, delta: float) -> Guarantee:
        loss = self.privacy_loss(noise_stddev, _INTERVAL)
        epsilon = float(loss.get_epsilon_for_delta(delta - _ROUNDING))
        epsilon = meaningful(max(epsilon, 0.0), noise_stddev, delta)
        return Guarantee(epsilon, delta, "bound", LOSSES, self.claims[0][2])

    def confirms(self, noise_stddev: float, guarantee: Guarantee) -> bool:
        # Another run of the transforms may differ by its rounding, of which the loss
        # holds four times as much: half of that still leaves more than the error.
        slack = 0.5 * event_losses.rounding_of_transforms(self.base.num_queries)
        delta = self._delta(noise_stddev, guarantee.epsilon) - slack
        return delta <= guarantee.delta * (1.0 + 1e-6)

    def _delta(self, noise_stddev: float, epsilon: float) -> float:
        loss = self.privacy_loss(noise_stddev, _INTERVAL)
        return float(loss.get_delta_for_epsilon(epsilon)) + _ROUNDING


class _AddedUp(Beside):
    """Basic composition: half of delta, and what epsilon is left, for the run."""

    def __init__(self, base: Accountant, noise_multiplier: float) -> None:
        super().__init__(base, noise_multiplier)
        self.claims = tuple(
            (name + ADDED_UP, kind, adjacency) for name, kind, adjacency in base.claims
        )

    @staticmethod
    def noise_for(
        base: Accountant, epsilon: float, delta: float, share: float
    ) -> float:
        noise = gaussian.calibrate_noise_stddev(share * epsilon, 0.5 * delta)
        return noise * moved_by(base)

    def calibrate(self, epsilon: float, delta: float) -> Calibration:
        left = epsilon - self._spent(delta)
        if left <= 0.0:
            raise _nothing_left(epsilon, delta)
        found = self.base.calibrate(left, 0.5 * delta)
        assert found.guarantee is not None
        return dataclasses.replace(found, guarantee=self._with(found.guarantee))

    def guarantee(self, noise_stddev: float, delta: float) -> Guarantee:
        return self._with(self.base.guarantee(noise_stddev, 0.5 * delta))

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
        return self.base.confirms(noise_stddev, alone)

    def _spent(self, delta: float) -> float:
        """Epsilon of the releases at half of delta."""
        noise = self.noise_multiplier / moved_by(self.base)
        return gaussian.gaussian_epsilon(noise, 0.5 * delta)

    def _with(self, alone: Guarantee) -> Guarantee:
        delta = 2.0 * alone.delta
        return dataclasses.replace(
            alone,
            epsilon=alone.epsilon + self._spent(delta),
            delta=delta,
            accountant=alone.accountant + ADDED_UP,
        )


def moved_by(base: Accountant) -> float:
    """By how much a neighbor moves a release of sensitivity 1 under zero-out."""
    return 2.0 if base.claims[0][2] == REPLACE_ONE else 1.0


def _nothing_left(epsilon: float, delta: float) -> ValueError:
    return ValueError(
        f"The releases beside the run leave nothing of (epsilon = {epsilon:g}, delta = "
        f"{delta:g}) for its steps. Reserve less."
    )
