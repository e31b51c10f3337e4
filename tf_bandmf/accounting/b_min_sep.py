"""Accounting of b-min-sep sampling by simulation, for strategies with bands.

Dong and Ganesh, arXiv:2602.09338; the distributions are in `b_min_sep_passes`, the draws in
`b_min_sep_simulator`. Results are typed: an `Estimate`, or, if a confidence is asked for, a
`Bound`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Callable

import scipy.optimize

from tf_bandmf import matrices
from tf_bandmf.accounting import gaussian
from tf_bandmf.accounting.b_min_sep_passes import Passes
from tf_bandmf.accounting.b_min_sep_simulator import BMinSepSimulator
from tf_bandmf.accounting.base import Accountant, Simulation, meaningful
from tf_bandmf.accounting.checks import check_delta, check_positive
from tf_bandmf.accounting.guarantee import ZERO_OUT, Calibration, Guarantee
from tf_bandmf.accounting.importance import Run
from tf_bandmf.accounting.monte_carlo import Bound, Estimate, MonteCarloValue
from tf_bandmf.accounting.root_finding import log
from tf_bandmf.accounting.simulated_bounds import (
    BOUND_SLACK,
    CHECK,
    MAIN,
    delta_bound,
    enough_noise,
    epsilon_bound,
    falling_root,
)

NAME = "b-min-sep sampling, Monte Carlo with importance sampling"
NUM_DRAWS = 10_000

# A calibrated or stated estimate is on the safe side by so many standard errors.
_SAFETY = 2.0
_CHECK_ERRORS, _CHECK_FACTOR = 5.0, 1.1
_ATTEMPTS = 6
# Smaller values of delta are bounded by about this much.
_LEAST_BOUNDED = 1e-6


class BMinSepAccountant(Accountant):
    """(epsilon, delta) of b-min-sep sampling for one strategy.

    Formal guarantee: with a `confidence`, a returned `Bound` is exceeded by the true
    value with probability at most `1 - confidence` over the simulation, in each call.
    Both directions of adjacency are covered (zero-out).

    Args:
      passes: of the strategy.
      num_draws: for each direction.
      seed: of the simulation, >= 0; equal seeds give equal results.
      confidence: None for estimates, or 1 - beta, for example `1 - 1e-6`.
    """

    claims = ((NAME, "estimate", ZERO_OUT), (NAME, "bound", ZERO_OUT))

    def __init__(
        self,
        passes: Passes,
        num_draws: int,
        seed: int,
        confidence: float | None = None,
    ) -> None:
        if confidence is not None and not 0.5 <= confidence < 1.0:
            raise ValueError(
                f"confidence must be in [0.5, 1) under b-min-sep sampling, found "
                f"{confidence}: no bound without simulation is known."
            )
        self._simulator = BMinSepSimulator(passes, num_draws, seed)
        self._confidence = confidence
        self._norm = math.sqrt(passes.largest_squared_norm())

    @classmethod
    def of_strategy(
        cls,
        matrix: matrices.LowerTriangular,
        separation: int,
        rate: float,
        simulation: Simulation,
    ) -> BMinSepAccountant:
        """The accountant of `C`.

        Raises:
          ValueError: if C has more bands than b or a negative entry, or if the
            confidence is 1: no bound without simulation is known.
        """
        bands = matrix.bands
        if bands > separation:
            raise ValueError(
                f"b-min-sep sampling with b = {separation} amplifies strategies with at "
                f"most {separation} bands, found {bands}."
            )
        if not matrix.is_nonnegative():
            raise ValueError(
                "The accounting of b-min-sep sampling needs a strategy C without "
                "negative entries, found one with some. Use CyclicPoisson."
            )
        draws = NUM_DRAWS if simulation.num_draws is None else simulation.num_draws
        passes = Passes(matrices.as_rows(matrix), separation, rate)
        return cls(passes, draws, simulation.seed, simulation.confidence)

    def delta(self, epsilon: float, noise_stddev: float) -> MonteCarloValue:
        """Delta at epsilon >= 0, of the worse direction.

        Raises:
          ValueError: on invalid input, or if a bound would take too many draws.
        """
        check_positive("noise_stddev", noise_stddev)
        if self._confidence is None:
            return _worst(self._simulator.runs(epsilon, noise_stddev), epsilon)
        rough = _worst(self._simulator.rough_runs(noise_stddev), epsilon).value
        beta, aim = 1.0 - self._confidence, max(rough, _LEAST_BOUNDED)
        return delta_bound(self._simulator, epsilon, noise_stddev, beta, aim, MAIN)

    def epsilon(self, delta: float, noise_stddev: float) -> MonteCarloValue:
        """Epsilon at delta; 0 where delta is spent before.

        Raises:
          ValueError: on invalid input, or if a bound would take too many draws.
        """
        check_delta(delta)
        check_positive("noise_stddev", noise_stddev)
        upper = gaussian.gaussian_epsilon(noise_stddev / self._norm, delta)
        rough = _solve(self._simulator.rough_runs(noise_stddev), delta, upper)
        if self._confidence is not None:
            return epsilon_bound(
                self._simulator, delta, noise_stddev, rough, upper, self._confidence
            )
        runs = self._simulator.runs(rough, noise_stddev)
        value = _solve(runs, delta, upper)
        run = max(runs, key=lambda run: run.estimate(value).value)
        slope = run.slope(value)
        error = run.estimate(value).standard_error / slope if slope > 0.0 else 0.0
        return Estimate(value, error, self._simulator.num_draws)

    def calibrate(self, epsilon: float, delta: float) -> Calibration:
        check_positive("epsilon", epsilon)
        check_delta(delta)
        largest = gaussian.calibrate_noise_stddev(epsilon, delta) * self._norm
        if self._confidence is not None:
            # A bound takes BOUND_SLACK / (1 + BOUND_SLACK) of it, and some luck.
            aim = delta / (1.0 + 1.1 * BOUND_SLACK)
            noise = self._search(epsilon, aim, largest, 1.0)
            noise, found = enough_noise(
                self._simulator, epsilon, delta, noise, largest, self._confidence
            )
            guarantee = self._guarantee(epsilon, delta, found)
            return Calibration(noise, guarantee, is_amplified=True)
        noise = self._search(epsilon, delta, largest, _SAFETY)
        # By draws that the search did not use.
        for attempt in range(_ATTEMPTS):
            checked = self._simulator.runs(epsilon, noise, (CHECK, attempt))
            if noise >= largest or _worst(checked, epsilon).value <= delta:
                break
            noise = min(noise * (1.0 + 2e-3 * 2**attempt), largest)
        else:
            noise = largest
        guarantee = Guarantee(epsilon, delta, "estimate", NAME)
        return Calibration(noise, guarantee, is_amplified=True)

    def guarantee(self, noise_stddev: float, delta: float) -> Guarantee:
        found = self.epsilon(delta, noise_stddev)
        epsilon = found.value
        if isinstance(found, Estimate):
            epsilon += _SAFETY * found.standard_error
        epsilon = meaningful(epsilon, noise_stddev, delta)
        return self._guarantee(epsilon, delta, found)

    def confirms(self, noise_stddev: float, guarantee: Guarantee) -> bool:
        found = _worst(self._simulator.rough_runs(noise_stddev), guarantee.epsilon)
        least = found.value - _CHECK_ERRORS * found.standard_error
        return least <= guarantee.delta * _CHECK_FACTOR

    def _guarantee(
        self, epsilon: float, delta: float, found: MonteCarloValue
    ) -> Guarantee:
        confidence = found.confidence if isinstance(found, Bound) else None
        return Guarantee(epsilon, delta, found.kind, NAME, confidence=confidence)

    def _search(
        self, epsilon: float, delta: float, largest: float, safety: float
    ) -> float:
        """Noise at which the estimate plus standard errors equals delta."""

        def excess(
            runs: Callable[[float], list[Run]],
        ) -> Callable[[float], float]:
            def at(log_noise: float) -> float:
                found = _worst(runs(math.exp(log_noise)), epsilon)
                return log(found.value + safety * found.standard_error) - log(delta)

            return at

        simulator = self._simulator
        rough = excess(simulator.rough_runs)
        upper = math.log(largest)
        lower = upper - 0.5
        while rough(lower) <= 0.0:
            upper, lower = lower, lower - 0.5
            if lower < math.log(largest) - 30.0:
                raise ArithmeticError("Calibration found no lower limit of the noise.")
        noise = largest
        if rough(upper) < 0.0:
            noise = math.exp(scipy.optimize.brentq(rough, lower, upper, xtol=1e-2))
        proposals = [simulator.propose(add, epsilon, noise) for add in (False, True)]

        def main(noise: float) -> list[Run]:
            return [
                simulator.simulate(noise, proposal, bool(add), MAIN)
                for add, proposal in enumerate(proposals)
            ]

        fine = excess(main)
        lower = upper = math.log(noise)
        while fine(lower) <= 0.0:
            lower -= 0.03
        while upper < math.log(largest) and fine(upper) > 0.0:
            upper += 0.03
        found = scipy.optimize.brentq(fine, lower, upper, xtol=1e-4)
        return min(math.exp(found + 1e-4), largest)


def _worst(runs: Sequence[Run], epsilon: float) -> Estimate:
    return max((run.estimate(epsilon) for run in runs), key=lambda found: found.value)


def _solve(runs: Sequence[Run], delta: float, upper: float) -> float:
    """Where the estimate of delta falls to `delta`, within [0, upper]."""
    return falling_root(lambda e: _worst(runs, e).value, delta, upper)
