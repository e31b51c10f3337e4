"""The base class of accountants, which compute guarantees from noise and vice versa.

All functions take and return noise as `noise_stddev`, the standard deviation of the
noise on the **raw** strategy `C` (not scaled to sensitivity 1) for l2_norm_clip = 1: a
run releases `C x + noise_stddev * z`, where `x` are the clipped gradients and `z` is
standard normal. `Plan` states the noise as a noise multiplier instead.

During a run, other Gaussian mechanisms may release statistics of the same records, and
later steps may depend on these releases. Without amplification by sampling, the run
composed with the releases is one Gaussian mechanism. Its noise multiplier sigma
satisfies `1 / sigma^2 = sum_i 1 / sigma_i^2`, where the `sigma_i` are the noise
multipliers of the run and of each release (Dong, Roth, Su, 2019, arXiv:1905.02383,
Corollary 3.3). With amplification, the dominating pair of the run is composed with the
pairs of the releases (Zhu, Dong, Wang, 2022, arXiv:2106.08567, Theorem 10). This
composition holds even if a release occurs between two steps that depend on the same
random numbers of the sampler (Vadhan and Zhang, 2022, arXiv:2207.08335).
"""

from __future__ import annotations

import abc
import copy
import dataclasses
import math
from typing import TYPE_CHECKING, TypeVar

from tf_bandmf.accounting import gaussian
from tf_bandmf.accounting.checks import (
    LARGEST_STATED_EPSILON,
    check_delta,
    check_positive,
    no_privacy,
)
from tf_bandmf.accounting.guarantee import ZERO_OUT, Calibration, Guarantee
from tf_bandmf.accounting.root_finding import log, near_root, smallest, to_safe_side

if TYPE_CHECKING:
    import dp_accounting

# _LEAST_EPSILON is the minimum epsilon of a guarantee with amplification by sampling.
# _ROUGH_TOLERANCE is the tolerance, in log noise, of the search in
# `rough_noise_stddev`. The initial slope of this search is a difference quotient with
# the step _WIDTH.
_LEAST_EPSILON, _ROUGH_TOLERANCE, _WIDTH = 1e-6, 2e-3, 1e-3

Self = TypeVar("Self", bound="Accountant")


class Accountant(abc.ABC):
    """Accounting for one strategy and one participation pattern.

    A subclass implements `sampled_delta`. The base class computes epsilon and noise
    from it by root finding, and rounds both up.

    `noise_stddev` is the standard deviation of the noise in each entry of the released
    `C x`, for l2_norm_clip = 1. Here `C` is not divided by its sensitivity.
    """

    # The labels that this accountant's guarantees may have: tuples (name of the
    # accountant, kind of guarantee, adjacency). The first label is for guarantees with
    # amplification by sampling, the last one for guarantees without it.
    claims: tuple[tuple[str, str, str], ...]
    # The sampling probability; 1 without amplification.
    sampling_probability = 1.0
    # The sensitivity of the whole run as one Gaussian mechanism, without amplification.
    whole_sensitivity: float
    # The maximum distance between a privacy unit's contributions in two neighboring
    # data sets, as a multiple of the clipping norm: 1 if the contribution becomes zero
    # (zero-out adjacency), 2 if the privacy unit is replaced (replace-one adjacency).
    moved_by = 1.0
    # The joint noise multiplier of other Gaussian mechanisms that release statistics of
    # the same records (the "other releases"); infinity if there are none.
    releases = math.inf
    # The confidence of simulated bounds; None if nothing is simulated.
    confidence: float | None = None

    def beside(self: Self, releases: float) -> Self:
        """Returns an accountant for the run composed with other Gaussian mechanisms.

        Args:
          releases: the joint noise multiplier of all releases of these mechanisms,
            relative to their zero-out sensitivity. It is `sigma / sqrt(R)` for R
            releases with the noise multiplier sigma.
        """
        check_positive("noise_multiplier", releases)
        both = copy.copy(self)
        both.releases = float(releases)
        return both

    def multiplier(self, noise_stddev: float) -> float:
        """Returns the joint noise multiplier of the run and other Gaussian releases."""
        alone = noise_stddev / self.whole_sensitivity
        if self.releases == math.inf:
            return alone
        return 1.0 / math.hypot(1.0 / alone, 1.0 / self.releases)

    def whole_delta(self, epsilon: float, noise_stddev: float) -> float:
        """Returns delta at epsilon (>= 0) without amplification by sampling."""
        return gaussian.gaussian_delta(self.multiplier(noise_stddev), epsilon)

    def sampled_delta(
        self, epsilon: float, noise_stddev: float, rough: bool = False
    ) -> float:
        """Returns an upper bound on delta of the run with amplification by sampling.

        The bound includes the other Gaussian releases of the same records.

        Args:
          epsilon: > 0.
          noise_stddev: > 0.
          rough: True for a cheaper approximation, for use in a search.
        """
        return 1.0

    def delta(self, epsilon: float, noise_stddev: float, rough: bool = False) -> float:
        """Returns an upper bound on delta at epsilon.

        Args:
          epsilon: > 0, or >= 0 for an accountant without amplification by sampling.
          noise_stddev: > 0.
          rough: True for a cheaper approximation, for use in a search.

        Raises:
          ValueError: on invalid input.
        """
        whole = self.whole_delta(epsilon, noise_stddev)
        if self.sampling_probability == 1.0:
            return whole
        check_positive("epsilon", epsilon)
        return min(whole, self.sampled_delta(epsilon, noise_stddev, rough))

    def epsilon(self, delta: float, noise_stddev: float) -> float:
        """Returns an upper bound on epsilon at delta; 0 if (0, delta)-DP holds.

        Raises:
          ValueError: on invalid input, or if epsilon is above `LARGEST_STATED_EPSILON`.
        """
        upper, is_whole = LARGEST_STATED_EPSILON, self.sampling_probability == 1.0
        check_delta(delta)
        if is_whole or self.whole_delta(upper, noise_stddev) <= delta:
            upper = gaussian.gaussian_epsilon(self.multiplier(noise_stddev), delta)
        elif self.delta(upper, noise_stddev) > delta:
            raise no_privacy(noise_stddev, delta, upper)
        least = min(_LEAST_EPSILON, upper)
        if is_whole or upper == least:
            return upper
        if self.delta(least, noise_stddev) <= delta:
            return least
        return smallest(
            lambda epsilon: self.delta(epsilon, noise_stddev, rough=True),
            lambda epsilon: self.delta(epsilon, noise_stddev),
            delta,
            # The search starts at the geometric mean of two values: epsilon without
            # amplification, and the product of this epsilon and the sampling
            # probability.
            upper * math.sqrt(self.sampling_probability),
            upper,
        )

    def largest_noise(self, epsilon: float, delta: float) -> float:
        """Returns the noise that meets the budget without amplification by sampling.

        The noise that is needed with amplification is at most this noise.

        Raises:
          ValueError: on invalid input, if no practical noise level meets the budget, or
            if the other Gaussian releases use up the budget.
        """
        multiplier = gaussian.calibrate_noise_stddev(epsilon, delta)
        if self.releases < math.inf:
            left = multiplier**-2 - self.releases**-2
            if left <= 0.0:
                raise ValueError(
                    f"Nothing is left for training: other releases use up epsilon = "
                    f"{epsilon:g}, delta = {delta:g}. Raise the budget or their noise."
                )
            whole = self.whole_sensitivity
            multiplier = to_safe_side(
                left**-0.5,
                lambda noise: self.whole_delta(epsilon, noise * whole) <= delta,
            )
        return multiplier * self.whole_sensitivity

    def rough_noise_stddev(
        self, epsilon: float, delta: float, near: float = 0.0
    ) -> float:
        """Returns the noise that meets a budget, accurate to 1%.

        This accuracy suffices to compare runs.

        Args:
          epsilon: > 0.
          delta: in (0, 1).
          near: the noise at which the search starts; 0 for the result of `first_noise`.
        """
        largest = self.largest_noise(epsilon, delta)
        if self.sampling_probability == 1.0:
            return largest
        near = near or self.first_noise(epsilon, delta)

        def excess(log_noise: float) -> float:
            reached = self.delta(epsilon, math.exp(log_noise), rough=True)
            return log(reached) - log(delta)

        # The initial slope of the search is the slope of log delta as a function of the
        # log noise, without amplification.
        less = self.whole_delta(epsilon, largest * math.exp(-_WIDTH))
        slope = (log(delta) - log(less)) / _WIDTH
        edges = math.log(near), math.log(largest)
        return math.exp(near_root(excess, *edges, _ROUGH_TOLERANCE, slope))

    def first_noise(self, epsilon: float, delta: float) -> float:
        """Returns the noise at which a search for the required noise starts."""
        # If the required noise is large, it is approximately the noise without
        # amplification times the sampling probability.
        least = min(1.5 * self.sampling_probability, 1.0)
        return least * self.largest_noise(epsilon, delta)

    def calibrate(self, epsilon: float, delta: float) -> Calibration:
        """Returns the minimum noise that meets the budget, rounded up.

        The method checks that `self.delta(epsilon, result.noise_stddev) <= delta`.

        Raises:
          ValueError: on invalid input, or if no practical noise level meets the budget.
        """
        noise = self.largest_noise(epsilon, delta)
        if self.sampling_probability < 1.0:
            noise = smallest(
                lambda noise: self.delta(epsilon, noise, rough=True),
                lambda noise: self.delta(epsilon, noise),
                delta,
                self.first_noise(epsilon, delta),
                noise,
            )
        return Calibration(noise, self.stated(epsilon, delta, noise))

    def guarantee(self, noise_stddev: float, delta: float) -> Guarantee:
        """Returns the (epsilon, delta) guarantee of a run with this noise.

        Raises:
          ValueError: if delta is so large that epsilon would be 0.
        """
        epsilon = meaningful(self.epsilon(delta, noise_stddev), noise_stddev, delta)
        return self.stated(epsilon, delta, noise_stddev)

    def stated(self, epsilon: float, delta: float, noise_stddev: float) -> Guarantee:
        """Returns the (epsilon, delta) guarantee that a run with this noise satisfies.

        The guarantee claims amplification by sampling only if delta would be too large
        without amplification.
        """
        is_whole = self.whole_delta(epsilon, noise_stddev) <= delta
        name, kind, adjacency = self.claims[-1 if is_whole else 0]
        return Guarantee(epsilon, delta, kind, name, adjacency, self.confidence)

    def confirms(self, noise_stddev: float, guarantee: Guarantee) -> bool:
        """Returns True if a quick check confirms that the noise gives the guarantee."""
        reached = self.delta(guarantee.epsilon, noise_stddev)
        return reached <= guarantee.delta * (1.0 + 1e-6)

    def event(self, noise_stddev: float) -> dp_accounting.DpEvent:
        """Returns the run and the other Gaussian releases as one dp-accounting event.

        Raises:
          ValueError: if dp-accounting has no event for this sampler.
        """
        raise ValueError(
            f"dp-accounting has no event for the accountant {self.claims[0][0]!r}. "
            f"Call the plan's guarantee_at(delta) instead, or make a plan with "
            f"CyclicPoisson, Poisson or FixedEpochOrder, which have events."
        )

    def validate(self, noise_stddev: float, guarantee: Guarantee) -> None:
        """Raises ValueError unless the noise gives the guarantee of a stored plan."""
        claim = (guarantee.accountant, guarantee.kind, guarantee.adjacency)
        if claim not in self.claims:
            raise ValueError(
                f"The guarantee must be {self.claims[0]}, found {claim}. Make a new plan."
            )
        if not self.confirms(noise_stddev, guarantee):
            raise ValueError(
                f"The plan was damaged: its noise (standard deviation {noise_stddev} for "
                f"l2_norm_clip = 1) does not give its epsilon = {guarantee.epsilon} and "
                f"delta = {guarantee.delta}. Make the plan again."
            )


class GaussianAccountant(Accountant):
    """An accountant without amplification, for a run that is one Gaussian mechanism.

    Args:
      sensitivity: the sensitivity of C under the participation pattern, or an upper
        bound on it.
      is_exact: False if `sensitivity` is only an upper bound. Guarantees then have the
        kind "bound" instead of "exact".
      name: the name of the accountant in guarantees; None for `gaussian.NAME`.
    """

    def __init__(
        self, sensitivity: float, is_exact: bool, name: str | None = None
    ) -> None:
        check_positive("sensitivity", sensitivity)
        self.whole_sensitivity = sensitivity
        name = name or gaussian.NAME
        self.claims = ((name, "exact" if is_exact else "bound", ZERO_OUT),)

    def event(self, noise_stddev: float) -> dp_accounting.DpEvent:
        # Importing dp-accounting is slow, so this module does it only where needed.
        import dp_accounting

        return dp_accounting.GaussianDpEvent(self.multiplier(noise_stddev))

    def stated(self, epsilon: float, delta: float, noise_stddev: float) -> Guarantee:
        rho = gaussian.zcdp_rho(self.multiplier(noise_stddev))
        stated = super().stated(epsilon, delta, noise_stddev)
        return dataclasses.replace(stated, zcdp_rho=rho)


class EpsilonIsZero(ValueError):
    """Raised if no guarantee can be stated because delta is so large that epsilon is 0."""


def meaningful(epsilon: float, noise_stddev: float, delta: float) -> float:
    """Returns epsilon, after checking that it is positive, as guarantees require.

    Args:
      epsilon: the epsilon of a run, >= 0.
      noise_stddev: the noise of the run, for the error message.
      delta: the delta of the run, for the error message.

    Raises:
      EpsilonIsZero: if epsilon is 0.
    """
    if epsilon == 0.0:
        raise EpsilonIsZero(
            f"A guarantee needs epsilon > 0, but noise_stddev = {noise_stddev} gives "
            f"epsilon = 0 at delta = {delta}. Use a smaller noise_multiplier or delta."
        )
    return epsilon
