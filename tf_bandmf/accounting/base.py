"""What every accountant is: from noise to a guarantee, and back.

There is one unit: `noise_stddev`, the standard deviation of the noise on the **raw**
strategy `C` for l2_norm_clip = 1. A run releases `C x + noise_stddev * z`. Only
`Plan` speaks of a noise multiplier.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from typing import TYPE_CHECKING

from tf_bandmf.accounting.checks import check_positive
from tf_bandmf.accounting.guarantee import Calibration, Guarantee

if TYPE_CHECKING:
    import dp_accounting
    from dp_accounting.pld import privacy_loss_distribution


@dataclasses.dataclass(frozen=True)
class Simulation:
    """How an accountant that simulates works; the others need none of it.

    Attributes:
      confidence: None for an estimate, or `1 - beta` for a bound.
      seed: of the draws, >= 0; equal seeds give equal results.
      progress: show progress on what takes longer than 2 seconds.
      num_draws: of an estimate; None for the accountant's number.
    """

    confidence: float | None = None
    seed: int = 0
    progress: bool = False
    num_draws: int | None = None


class Accountant(abc.ABC):
    """Accounting for one strategy under one participation.

    Noise is given as `noise_stddev`, on the raw `C` for l2_norm_clip = 1.
    """

    # Accountant, kind and adjacency of the guarantees that it gives.
    claims: tuple[tuple[str, str, str], ...]

    @abc.abstractmethod
    def calibrate(self, epsilon: float, delta: float) -> Calibration:
        """The smallest noise for the budget, on the safe side, re-checked."""

    def rough_noise_stddev(
        self, epsilon: float, delta: float, near: float | None = None
    ) -> float:
        """The noise for the budget, within a percent: to compare runs, not to plan one.

        Args:
          epsilon: > 0.
          delta: in (0, 1).
          near: an approximate value, if known: the search starts there.
        """
        return self.calibrate(epsilon, delta).noise_stddev

    @abc.abstractmethod
    def guarantee(self, noise_stddev: float, delta: float) -> Guarantee:
        """What a run with this noise guarantees at delta.

        Raises:
          ValueError: if delta is so large that epsilon would be 0.
        """

    @abc.abstractmethod
    def confirms(self, noise_stddev: float, guarantee: Guarantee) -> bool:
        """Whether the noise gives the guarantee, as far as a quick check can tell."""

    def event(self, noise_stddev: float) -> dp_accounting.DpEvent:
        """The run as an event of dp-accounting.

        Raises:
          ValueError: if dp-accounting has no event for it.
        """
        raise ValueError(
            f"{self.claims[0][0]}: dp-accounting has no event for it. Use "
            f"guarantee_at(delta), or a participation with an event: CyclicPoisson, "
            f"Poisson, FixedEpochOrder."
        )

    def privacy_loss(
        self, noise_stddev: float, interval: float
    ) -> privacy_loss_distribution.PrivacyLossDistribution:
        """The privacy loss distribution of a run, discretized to the safe side.

        The possible error of Fourier transforms is added to the probability of an
        infinite loss.

        Raises:
          ValueError: if no such distribution is known.
        """
        from tf_bandmf.accounting import event_losses

        check_positive("interval", interval)
        losses = []
        for event, count in event_losses.pieces(self.event(noise_stddev)):
            loss = event_losses.additive_loss(event, count, interval)
            if loss is None:
                raise ValueError(
                    f"{self.claims[0][0]}: this accountant has no privacy loss "
                    f"distribution. Use CyclicPoisson, Poisson or FixedEpochOrder."
                )
            losses.append(loss)
        return functools.reduce(lambda total, loss: total.compose(loss), losses)

    def validate(self, noise_stddev: float, guarantee: Guarantee) -> None:
        """Raises ValueError if this accountant would not give the guarantee."""
        claim = (guarantee.accountant, guarantee.kind, guarantee.adjacency)
        if claim not in self.claims:
            raise ValueError(
                f"The participation is accounted for by {self.claims[0]}, found {claim}."
            )
        if not self.confirms(noise_stddev, guarantee):
            raise ValueError(
                f"noise_stddev = {noise_stddev} (on the raw strategy, for l2_norm_clip "
                f"= 1) gives at epsilon = {guarantee.epsilon} a delta that is more than "
                f"the plan's {guarantee.delta}: it was damaged. Make the plan again."
            )


class EpsilonIsZero(ValueError):
    """No guarantee can be stated: delta is so large that epsilon is 0."""


def meaningful(epsilon: float, noise_stddev: float, delta: float) -> float:
    """Epsilon, if it is one that can be stated.

    Raises:
      EpsilonIsZero: if it is 0.
    """
    if epsilon == 0.0:
        raise EpsilonIsZero(
            f"noise_stddev = {noise_stddev} gives epsilon = 0 at delta = {delta}: a "
            f"statement needs epsilon > 0. Use a smaller noise_multiplier (or delta)."
        )
    return epsilon
