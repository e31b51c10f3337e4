"""From a participation to the accountant that analyses it; there is no other way.

The participation object is what the sampler does. Its class alone decides who accounts
for it, so that no accountant can be asked about another sampler.
"""

from __future__ import annotations

import abc
from typing import Callable

import dp_accounting
from dp_accounting.pld import pld_privacy_accountant, privacy_loss_distribution

from tf_bandmf.accounting import (
    balls_in_bins,
    cyclic_fixed_size,
    cyclic_poisson,
    gaussian,
)
from tf_bandmf.accounting.guarantee import REPLACE_ONE, ZERO_OUT, Calibration, Guarantee
from tf_bandmf.accounting.monte_carlo import Bound, Estimate, MonteCarloValue
from tf_bandmf.participation import (
    BallsInBins,
    CyclicFixedSize,
    CyclicPoisson,
    FixedEpochOrder,
    MinSep,
    Participation,
    Poisson,
    Shuffled,
)
from tf_bandmf.strategies import Strategy

SHUFFLED_NAME = "one shuffle, bounded by a fixed order (exact Gaussian mechanism)"

# A saved plan's estimate is checked with few draws: it may differ by so many standard
# errors, and by this factor.
_CHECK_ERRORS, _CHECK_FACTOR = 5.0, 1.1


class Accountant(abc.ABC):
    """Accounting for one strategy under one participation.

    Noise is given as `noise_stddev`, on the raw `C` for l2_norm_clip = 1.
    """

    # Accountant, kind and adjacency of the guarantees that it gives.
    claims: tuple[tuple[str, str, str], ...]

    @abc.abstractmethod
    def calibrate(self, epsilon: float, delta: float) -> Calibration:
        """The smallest noise for the budget, on the safe side, re-checked."""

    @abc.abstractmethod
    def guarantee(self, noise_stddev: float, delta: float) -> Guarantee:
        """What a run with the noise guarantees at delta.

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
            "dp-accounting has no event for balls in bins: the privacy loss of a run is "
            "that of a mixture in as many dimensions as there are bins, and no "
            "composition of single steps. Use guarantee_at(delta), or a participation "
            "with an event: CyclicPoisson, Poisson, FixedEpochOrder."
        )

    def privacy_loss(
        self, noise_stddev: float, interval: float
    ) -> privacy_loss_distribution.PrivacyLossDistribution:
        """The privacy loss distribution of a run, discretized to the safe side.

        Raises:
          ValueError: if no such distribution is known.
        """
        gaussian.check_positive("interval", interval)
        accountant = pld_privacy_accountant.PLDAccountant(
            value_discretization_interval=interval
        )
        event = self.event(noise_stddev)
        if not accountant.supports(event):
            raise ValueError(
                f"{self.claims[0][0]}: this accountant has no privacy loss distribution. "
                f"Use CyclicPoisson, Poisson or FixedEpochOrder."
            )
        # From the pieces of the event: the accountant keeps its result to itself.
        count = 1
        if isinstance(event, dp_accounting.SelfComposedDpEvent):
            event, count = event.event, event.count
        probability = 1.0
        if isinstance(event, dp_accounting.PoissonSampledDpEvent):
            event, probability = event.event, event.sampling_probability
        loss = privacy_loss_distribution.from_gaussian_mechanism(
            event.noise_multiplier,
            value_discretization_interval=interval,
            sampling_prob=probability,
        )
        return loss.self_compose(count)

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


class _Gaussian(Accountant):
    """No amplification: one Gaussian mechanism."""

    def __init__(self, strategy: Strategy, participation: Participation) -> None:
        sensitivity = strategy.sensitivity(participation)
        self._sensitivity = sensitivity.value
        is_shuffled = isinstance(participation, Shuffled)
        self._name = SHUFFLED_NAME if is_shuffled else gaussian.NAME
        is_bound = is_shuffled or not sensitivity.is_exact
        self._kind = "bound" if is_bound else "exact"
        self.claims = ((self._name, self._kind, ZERO_OUT),)

    def calibrate(self, epsilon: float, delta: float) -> Calibration:
        multiplier = gaussian.calibrate_noise_multiplier(epsilon, delta)
        return Calibration(
            multiplier * self._sensitivity,
            multiplier,
            "sensitivity",
            self._with(epsilon, delta, multiplier),
        )

    def guarantee(self, noise_stddev: float, delta: float) -> Guarantee:
        multiplier = noise_stddev / self._sensitivity
        epsilon = gaussian.gaussian_epsilon(multiplier, delta)
        return self._with(_meaningful(epsilon, noise_stddev, delta), delta, multiplier)

    def confirms(self, noise_stddev: float, guarantee: Guarantee) -> bool:
        multiplier = noise_stddev / self._sensitivity
        found = gaussian.gaussian_delta(multiplier, guarantee.epsilon)
        return found <= guarantee.delta * (1.0 + 1e-6)

    def event(self, noise_stddev: float) -> dp_accounting.DpEvent:
        return dp_accounting.GaussianDpEvent(noise_stddev / self._sensitivity)

    def _with(self, epsilon: float, delta: float, multiplier: float) -> Guarantee:
        rho = gaussian.zcdp_rho(multiplier)
        return Guarantee(epsilon, delta, self._kind, self._name, zcdp_rho=rho)


class _CyclicPoisson(Accountant):
    """Noise per unit of column norm."""

    claims = ((cyclic_poisson.NAME, "exact", ZERO_OUT),)

    def __init__(self, strategy: Strategy, participation: CyclicPoisson) -> None:
        accountant = cyclic_poisson.CyclicPoissonAccountant
        self._accountant, self._norm = accountant.of_strategy(
            strategy.matrix, participation.num_parts, participation.sampling_probability
        )

    def calibrate(self, epsilon: float, delta: float) -> Calibration:
        multiplier = self._accountant.calibrate_noise_multiplier(epsilon, delta)
        guarantee = Guarantee(epsilon, delta, "exact", cyclic_poisson.NAME)
        return Calibration(
            multiplier * self._norm, multiplier, "column_norm", guarantee
        )

    def guarantee(self, noise_stddev: float, delta: float) -> Guarantee:
        epsilon = self._accountant.epsilon(delta, noise_stddev / self._norm)
        epsilon = _meaningful(epsilon, noise_stddev, delta)
        return Guarantee(epsilon, delta, "exact", cyclic_poisson.NAME)

    def event(self, noise_stddev: float) -> dp_accounting.DpEvent:
        return self._accountant.event(noise_stddev / self._norm)

    def confirms(self, noise_stddev: float, guarantee: Guarantee) -> bool:
        found = self._accountant.delta(guarantee.epsilon, noise_stddev / self._norm)
        return found <= guarantee.delta * (1.0 + 1e-6)


class _CyclicFixedSize(Accountant):
    """Noise per unit of column norm; a proven bound."""

    claims = (
        (cyclic_fixed_size.NAME, "bound", REPLACE_ONE),
        (cyclic_fixed_size.UNAMPLIFIED_NAME, "bound", ZERO_OUT),
    )

    def __init__(self, strategy: Strategy, participation: CyclicFixedSize) -> None:
        accountant = cyclic_fixed_size.CyclicFixedSizeAccountant
        self._accountant, self._norm = accountant.of_strategy(
            strategy.matrix,
            participation.num_parts,
            participation.part_size,
            participation.batch_size,
        )

    def calibrate(self, epsilon: float, delta: float) -> Calibration:
        multiplier = self._accountant.calibrate_noise_multiplier(epsilon, delta)
        guarantee = self._with(epsilon, delta, multiplier)
        return Calibration(
            multiplier * self._norm, multiplier, "column_norm", guarantee
        )

    def guarantee(self, noise_stddev: float, delta: float) -> Guarantee:
        multiplier = noise_stddev / self._norm
        epsilon = self._accountant.epsilon(delta, multiplier)
        return self._with(_meaningful(epsilon, noise_stddev, delta), delta, multiplier)

    def event(self, noise_stddev: float) -> dp_accounting.DpEvent:
        return self._accountant.event(noise_stddev / self._norm)

    def confirms(self, noise_stddev: float, guarantee: Guarantee) -> bool:
        found = self._accountant.delta(guarantee.epsilon, noise_stddev / self._norm)
        return found <= guarantee.delta * (1.0 + 1e-6)

    def _with(self, epsilon: float, delta: float, multiplier: float) -> Guarantee:
        if self._accountant.is_amplified(epsilon, multiplier):
            return Guarantee(
                epsilon, delta, "bound", cyclic_fixed_size.NAME, REPLACE_ONE
            )
        name = cyclic_fixed_size.UNAMPLIFIED_NAME
        return Guarantee(epsilon, delta, "bound", name)


class _BallsInBins(Accountant):
    """Noise on the raw `C`; by simulation."""

    claims = tuple(
        (balls_in_bins.NAME, kind, ZERO_OUT) for kind in ("estimate", "bound")
    )

    def __init__(
        self,
        strategy: Strategy,
        participation: BallsInBins,
        confidence: float | None,
        seed: int,
        progress: bool,
    ) -> None:
        self._accountant = balls_in_bins.BallsInBinsAccountant.of_strategy(
            strategy.matrix,
            participation.num_bins,
            confidence=confidence,
            seed=seed,
            progress=progress,
        )

    def calibrate(self, epsilon: float, delta: float) -> Calibration:
        found = self._accountant.calibrate_noise_stddev(epsilon, delta)
        guarantee = self._with(epsilon, delta, found.delta)
        return Calibration(found.noise_stddev, found.noise_stddev, "raw", guarantee)

    def guarantee(self, noise_stddev: float, delta: float) -> Guarantee:
        found = self._accountant.epsilon(delta, noise_stddev)
        epsilon = found.value
        if isinstance(found, Estimate):
            epsilon += 2.0 * found.standard_error
        epsilon = _meaningful(epsilon, noise_stddev, delta)
        return self._with(epsilon, delta, found)

    def confirms(self, noise_stddev: float, guarantee: Guarantee) -> bool:
        found = self._accountant.rough_delta(guarantee.epsilon, noise_stddev)
        least = found.value - _CHECK_ERRORS * found.standard_error
        return least <= guarantee.delta * _CHECK_FACTOR

    def _with(self, epsilon: float, delta: float, found: MonteCarloValue) -> Guarantee:
        confidence = found.confidence if isinstance(found, Bound) else None
        return Guarantee(
            epsilon, delta, found.kind, balls_in_bins.NAME, confidence=confidence
        )


def accountant_for(
    strategy: Strategy,
    participation: Participation,
    confidence: float | None = None,
    seed: int = 0,
    progress: bool = False,
) -> Accountant:
    """The accountant of a participation.

    Args:
      strategy: C.
      participation: what the sampler does.
      confidence: for accountants that simulate: None for an estimate, or `1 - beta` for
        a bound. Other accountants need none.
      seed: of a simulation.
      progress: show progress on what takes longer than 2 seconds.

    Raises:
      ValueError: if the participation contradicts the strategy.
      TypeError: for a participation without an accountant.
    """
    participation.validate_num_steps(strategy.num_steps)
    if isinstance(participation, BallsInBins):
        return _BallsInBins(strategy, participation, confidence, seed, progress)
    builder = _ACCOUNTANTS.get(type(participation))
    if builder is None:
        raise TypeError(f"No accountant knows {type(participation).__name__}.")
    return builder(strategy, participation)


_ACCOUNTANTS: dict[type[Participation], Callable[..., Accountant]] = {
    CyclicFixedSize: _CyclicFixedSize,
    CyclicPoisson: _CyclicPoisson,
    FixedEpochOrder: _Gaussian,
    MinSep: _Gaussian,
    Poisson: _CyclicPoisson,
    Shuffled: _Gaussian,
}


def _meaningful(epsilon: float, noise_stddev: float, delta: float) -> float:
    if epsilon == 0.0:
        raise ValueError(
            f"noise_stddev = {noise_stddev} gives epsilon = 0 at delta = {delta}: a "
            f"statement needs epsilon > 0. Use a smaller noise_multiplier (or delta)."
        )
    return epsilon
