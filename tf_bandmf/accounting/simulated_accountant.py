"""The base class of accountants that simulate the privacy loss."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Sequence
from typing import Callable

import scipy.optimize

from tf_bandmf.accounting import checks, gaussian
from tf_bandmf.accounting.base import Accountant, meaningful
from tf_bandmf.accounting.guarantee import (
    UNAMPLIFIED,
    ZERO_OUT,
    Calibration,
    Guarantee,
)
from tf_bandmf.accounting.monte_carlo import MonteCarloValue, Run
from tf_bandmf.accounting.root_finding import log, near_root
from tf_bandmf.accounting.simulator import (
    BOUND_SLACK,
    CHECK,
    MAIN,
    Proposal,
    Simulator,
    Stage,
    TooManyDraws,
)

# The safety margin that calibrations and guarantees add to an estimate, in standard
# errors.
SAFETY = 2.0
# When a stored guarantee is checked, delta is estimated from few draws. Therefore the
# check accepts an estimate if the estimate minus _CHECK_ERRORS standard errors is at
# most CHECK_FACTOR times the guarantee's delta.
_CHECK_ERRORS, CHECK_FACTOR = 5.0, 1.1
# The number of draws for a simulated bound on delta is chosen as if delta were at least
# _LEAST_BOUNDED. If the true delta is smaller, the bound is about _LEAST_BOUNDED.
_LEAST_BOUNDED = 1e-6
# A search for the noise ends after a step of at most _PRECISION in log noise.
_PRECISION = 1e-4
# A search for the noise stops simulating a direction ("add" or "remove") if its delta
# plus _ERRORS standard errors is below _MINOR times the delta of the other direction.
_ERRORS, _MINOR = 5.0, 0.5
# The maximum number of noise levels that a calibration checks with fresh draws, and the
# relative increase of the noise after the first failed check.
_ATTEMPTS, _MORE_NOISE = 8, 1e-3
# The step in epsilon of the difference quotient that estimates the slope of delta.
_WIDTH = 1e-4


class SimulatedAccountant(Accountant):
    """Computes (epsilon, delta) of one strategy from draws of the privacy loss.

    Formal guarantee: with a `confidence`, each method returns a bound. In each call,
    the true value exceeds the bound with probability at most `1 - confidence` over the
    randomness of the simulation. The results hold for both directions of zero-out or
    add-or-remove adjacency. In the direction "remove", an example's contribution
    becomes zero; in the direction "add", a zero contribution becomes non-zero. If a
    bound would take too many draws, epsilon and the calibrated noise are computed
    without amplification by sampling, for the run as one Gaussian mechanism.

    Args:
      name: name of the accountant, for guarantees.
      simulator: simulator of the privacy loss.
      norm: the maximum l2 norm of an example's contribution `C x`. This is the
        sensitivity of the run as one Gaussian mechanism, without amplification.
      confidence: the confidence of bounds, for example `1 - 1e-6`, or None for
        estimates.
    """

    # A value below 1 tells the base class that this accountant has amplification by
    # sampling. Apart from that, the value only determines where searches start.
    sampling_probability = 1.0 / 3.0

    def __init__(
        self, name: str, simulator: Simulator, norm: float, confidence: float | None
    ) -> None:
        checks.check_confidence(confidence)
        self._simulator, self.whole_sensitivity = simulator, norm
        self.confidence = confidence
        kind = "estimate" if confidence is None else "bound"
        whole = f"{name.partition(',')[0]} {UNAMPLIFIED}"
        self.claims = ((name, kind, ZERO_OUT), (whole, "bound", ZERO_OUT))

    def beside(self, releases: float) -> SimulatedAccountant:
        both = super().beside(releases)
        both._simulator = copy.copy(self._simulator)
        both._simulator.releases = both.releases
        return both

    def delta(
        self, epsilon: float, noise_stddev: float, rough: bool = False
    ) -> MonteCarloValue:
        """Returns delta at epsilon, in the direction of adjacency where it is larger.

        Args:
          epsilon: >= 0.
          noise_stddev: > 0.
          rough: True for an estimate from a few draws, which are the same at every
            noise level.

        Raises:
          ValueError: on invalid input, or if a bound would take too many draws.
        """
        checks.check_nonnegative("epsilon", epsilon)
        checks.check_positive("noise_stddev", noise_stddev)
        if rough:
            return worst(self._simulator.rough_runs(noise_stddev), epsilon)
        if self.confidence is None:
            return worst(self._simulator.runs(epsilon, noise_stddev), epsilon)
        aim = max(self.delta(epsilon, noise_stddev, rough=True), _LEAST_BOUNDED)
        beta = 1.0 - self.confidence
        return self._delta_bound(epsilon, noise_stddev, beta, aim, MAIN)

    def epsilon(self, delta: float, noise_stddev: float) -> MonteCarloValue:
        """Returns epsilon at delta; 0 if (0, delta)-DP holds.

        Raises:
          ValueError: on invalid input, or if epsilon without amplification exceeds 10**5.
        """
        checks.check_delta(delta)
        checks.check_positive("noise_stddev", noise_stddev)
        # Epsilon without amplification is an upper bound, because the distribution of
        # the outputs is a mixture over the possible participations of an example.
        upper = gaussian.gaussian_epsilon(self.multiplier(noise_stddev), delta)
        rough_runs = self._simulator.rough_runs(noise_stddev)
        rough = _falling_root(lambda e: worst(rough_runs, e), delta, upper)
        if self.confidence is not None:
            beta = 1.0 - self.confidence
            return self._epsilon_bound(delta, noise_stddev, rough, upper, beta)
        runs = self._simulator.runs(rough, noise_stddev)
        value = _falling_root(lambda e: worst(runs, e), delta, upper)
        here = worst(runs, value)
        slope = (here - worst(runs, value + _WIDTH)) / _WIDTH
        error = here.standard_error / slope if slope > 0.0 else 0.0
        return MonteCarloValue(value, error)

    def calibrate(self, epsilon: float, delta: float) -> Calibration:
        """Returns the minimum noise that meets the budget, rounded up.

        Without a `confidence`, the noise meets two conditions. First, an estimate of
        delta from the draws of the search, plus two standard errors, is at most
        `delta`. Second, an estimate from independent draws is at most `delta`. With a
        `confidence`, a bound on delta at this confidence is at most `delta`. The bound
        is computed from draws that the search did not use.

        Raises:
          ValueError: on invalid input.
          ArithmeticError: if the simulation overflows.
        """
        largest = self.largest_noise(epsilon, delta)
        # A bound exceeds the true delta by about BOUND_SLACK * delta, or by more if the
        # draws are unlucky. Therefore the search for a bound aims below `delta`.
        is_estimate = self.confidence is None
        aim = delta if is_estimate else delta / (1.0 + 1.1 * BOUND_SLACK)
        near = min(self.rough_noise_stddev(epsilon, aim), largest)
        proposals = self.proposals(epsilon, near)
        safety = SAFETY if is_estimate else 1.0
        noise = self.noise_by(proposals, epsilon, aim, near, safety)
        noise = self._confirmed(epsilon, delta, noise * math.exp(_PRECISION), largest)
        return Calibration(noise, self.stated(epsilon, delta, noise))

    def guarantee(self, noise_stddev: float, delta: float) -> Guarantee:
        value = self.epsilon(delta, noise_stddev)
        epsilon = meaningful(value, noise_stddev, delta) + SAFETY * value.standard_error
        return self.stated(epsilon, delta, noise_stddev)

    def confirms(self, noise_stddev: float, guarantee: Guarantee) -> bool:
        if guarantee.is_unamplified:
            least = self.whole_delta(guarantee.epsilon, noise_stddev)
            return least <= guarantee.delta * (1.0 + 1e-6)
        rough = self.delta(guarantee.epsilon, noise_stddev, rough=True)
        least = rough - _CHECK_ERRORS * rough.standard_error
        return least <= guarantee.delta * CHECK_FACTOR

    def proposals(self, epsilon: float, noise_stddev: float) -> list[Proposal]:
        """Returns, for each direction, the proposal to draw from at this noise."""
        both = (self._simulator.at(noise_stddev, add) for add in (False, True))
        return [one.propose(epsilon) for one in both]

    def noise_by(
        self,
        proposals: Sequence[Proposal],
        epsilon: float,
        delta: float,
        near: float,
        safety: float = 0.0,
    ) -> float:
        """Returns the noise at which the estimated delta plus a margin equals `delta`.

        The random numbers are the same at every noise level. For balls-in-bins
        sampling, they are also the same for every accountant with the same number of
        bins.

        Args:
          proposals: result of the method `proposals` of this accountant, or of an
            accountant for a similar strategy.
          epsilon: > 0.
          delta: in (0, 1).
          near: the noise at which the search starts.
          safety: the safety margin, in standard errors.
        """
        directions = [False, True]

        def excess(log_noise: float) -> float:
            noise = math.exp(log_noise)
            runs = {
                add: self._simulator.at(noise, add).simulate(proposals[add], MAIN)
                for add in directions
            }
            deltas = {add: run.estimate(epsilon) for add, run in runs.items()}
            larger = max(deltas.values())
            # If the delta of one direction is far below the other delta, the rest of
            # the search omits this direction. The final noise is checked in both
            # directions.
            directions[:] = [
                add
                for add, one in deltas.items()
                if one + _ERRORS * one.standard_error >= _MINOR * larger
            ]
            return log(larger + safety * larger.standard_error) - log(delta)

        largest = math.log(self.largest_noise(epsilon, delta))
        return math.exp(near_root(excess, math.log(near), largest, _PRECISION))

    def _confirmed(
        self, epsilon: float, delta: float, noise: float, largest: float
    ) -> float:
        """Returns the noise, increased until fresh draws show that it meets the budget.

        If a bound would take too many draws, or if none of _ATTEMPTS noise levels meets
        the budget, the result is `largest`.
        """
        for attempt in range(_ATTEMPTS):
            if noise >= largest:
                break
            stage = CHECK, attempt
            if self.confidence is None:
                reached = worst(self._simulator.runs(epsilon, noise, stage), epsilon)
            else:
                # The first attempt may use half of the failure probability 1 -
                # confidence, the second attempt a quarter, and so on.
                part = (1.0 - self.confidence) * 0.5 ** (attempt + 1)
                try:
                    reached = self._delta_bound(epsilon, noise, part, delta, stage)
                except TooManyDraws as error:
                    _warn(error)
                    break
            if reached <= delta:
                return noise
            noise *= 1.0 + _MORE_NOISE * 2**attempt
        # The noise `largest` meets the budget even without amplification, so it needs
        # no check.
        return largest

    def _delta_bound(
        self, epsilon: float, noise: float, beta: float, aim: float, stage: Stage
    ) -> MonteCarloValue:
        """Returns a bound on the larger of the two directions' deltas.

        The bound holds with confidence 1 - beta.
        """
        runs = self._simulator.bound_runs(epsilon, noise, beta, aim, stage)
        value = max(
            run.bound(epsilon, largest, part, 1e-12) for run, largest, part in runs
        )
        return MonteCarloValue(min(value, 1.0))

    def _epsilon_bound(
        self, delta: float, noise: float, rough: float, upper: float, beta: float
    ) -> MonteCarloValue:
        """Returns a bound on epsilon at delta, at confidence 1 - beta.

        Args:
          delta: in (0, 1).
          noise: the noise on the raw `C`.
          rough: an estimate of epsilon.
          upper: epsilon without amplification, which is the result if the bound would
            take too many draws.
          beta: the probability with which the bound may be wrong.
        """
        # The bound on the simulated values (`largest`) holds for every epsilon >=
        # `least`. The value of `least` must not depend on the draws of the main run.
        least = 0.97 * rough
        try:
            runs = self._simulator.bound_runs(least, noise, beta, delta, MAIN)
        except TooManyDraws as error:
            _warn(error)
            return MonteCarloValue(upper)

        def bound(epsilon: float) -> float:
            return max(
                run.bound(epsilon, largest, part, 1e-4 * delta)
                for run, largest, part in runs
            )

        value = _falling_root(bound, delta, upper, least)
        if least < value < upper:
            value = min(value * (1.0 + 1e-6), upper)
        return MonteCarloValue(value)


def _warn(error: TooManyDraws) -> None:
    warnings.warn(f"{error} The result claims no amplification.", stacklevel=5)


def worst(runs: Sequence[Run], epsilon: float) -> MonteCarloValue:
    """Returns the maximum of the deltas that several runs estimate at epsilon."""
    return max(run.estimate(epsilon) for run in runs)


def _falling_root(
    function: Callable[[float], float], delta: float, upper: float, lower: float = 0.0
) -> float:
    """Returns the epsilon in [lower, upper] at which a falling function equals delta.

    The result is `lower` or `upper` if the function does not reach delta in between.
    """

    def excess(epsilon: float) -> float:
        return log(function(epsilon)) - math.log(delta)

    if excess(lower) <= 0.0:
        return lower
    if excess(upper) >= 0.0:
        return upper
    return float(scipy.optimize.brentq(excess, lower, upper, xtol=1e-9, rtol=1e-8))
