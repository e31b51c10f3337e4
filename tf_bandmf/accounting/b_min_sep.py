"""Accounting of b-min-sep sampling by simulation, for strategies with bands.

Dong and Ganesh, arXiv:2602.09338; the distributions are in `b_min_sep_passes`, the draws in
`b_min_sep_simulator`. Results are typed: an `Estimate`, or, if a confidence is asked for, a
`Bound`.
"""

from __future__ import annotations

import math

from tf_bandmf import matrices
from tf_bandmf.accounting.b_min_sep_passes import Passes
from tf_bandmf.accounting.b_min_sep_simulator import BMinSepSimulator
from tf_bandmf.accounting.base import Simulation
from tf_bandmf.accounting.checks import check_delta, check_positive
from tf_bandmf.accounting.cyclic_poisson import CyclicPoissonAccountant
from tf_bandmf.accounting.guarantee import ZERO_OUT, Calibration, Guarantee
from tf_bandmf.accounting.monte_carlo import MonteCarloValue
from tf_bandmf.accounting.root_finding import log, near_root
from tf_bandmf.accounting.simulated_accountant import (
    SAFETY,
    SimulatedAccountant,
    worst,
)
from tf_bandmf.accounting.simulated_bounds import (
    BOUND_SLACK,
    CHECK,
    MAIN,
    enough_noise,
)

NAME = "b-min-sep sampling, Monte Carlo with importance sampling"
# Draws for each direction: fewer of long runs, whose draws have more numbers.
NUM_DRAWS, _LEAST_DRAWS, _ENTRIES = 10_000, 2_000, 20_000_000
# Steps times bands, with what a step costs in units of a band: a plan of 9,000 steps and
# 16 bands takes 20 seconds of one core (benchmarks/planning.py sizes).
_LARGEST_WORK, _STEP = 1_900_000, 250

_ATTEMPTS = 6
# Tolerance of the log of the noise.
_PRECISION = 1e-4
# A direction that is by so many standard errors below so large a part of the other one is
# left out of the search.
_ERRORS, _MINOR = 5.0, 0.5


def check_size(num_steps: int, bands: int) -> None:
    """Raises ValueError if a simulation would take more than about half a minute."""
    most = _LARGEST_WORK // (bands + _STEP)
    if num_steps > most:
        raise ValueError(
            f"b-min-sep sampling is accounted for by simulating every step: with {bands} "
            f"bands num_steps must be <= {most}, found {num_steps}. Use "
            f'sampling="cyclic-poisson" (CyclicPoisson), which is not simulated, larger '
            f"batches or fewer epochs."
        )


class BMinSepAccountant(SimulatedAccountant[BMinSepSimulator]):
    """(epsilon, delta) of b-min-sep sampling for one strategy.

    For the formal guarantee see `SimulatedAccountant`.

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
        self._passes = passes
        norm = math.sqrt(passes.largest_squared_norm())
        super().__init__(BMinSepSimulator(passes, num_draws, seed), norm, confidence)

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
        draws = simulation.num_draws
        if draws is None:
            fewer = max(_LEAST_DRAWS, _ENTRIES // matrix.num_rows)
            draws = min(NUM_DRAWS, fewer)
        passes = Passes(matrices.as_rows(matrix), separation, rate)
        return cls(passes, draws, simulation.seed, simulation.confidence)

    def delta(self, epsilon: float, noise_stddev: float) -> MonteCarloValue:
        self._check_size()
        return super().delta(epsilon, noise_stddev)

    def epsilon(self, delta: float, noise_stddev: float) -> MonteCarloValue:
        self._check_size()
        return super().epsilon(delta, noise_stddev)

    def _check_size(self) -> None:
        # What was planned before there was a limit is still confirmed.
        check_size(self._passes.num_steps, len(self._passes.columns))

    def rough_noise_stddev(
        self, epsilon: float, delta: float, near: float | None = None
    ) -> float:
        self._check_size()
        if near is None:
            near = self._between_neighbors(epsilon, delta)
        return super().rough_noise_stddev(epsilon, delta, near)

    def _between_neighbors(self, epsilon: float, delta: float) -> float:
        """Noise between that of steps without a rest and that of parts that take turns."""
        check_positive("epsilon", epsilon)
        check_delta(delta)
        passes, b = self._passes, self._passes.separation
        norm = math.sqrt(passes.squares.max())
        rates = passes.rate, min(passes.rate * b, 1.0)
        counts = passes.num_steps, -(-passes.num_steps // b)
        neighbors = [
            CyclicPoissonAccountant(count, rate, norm).rough_noise_stddev(
                epsilon, delta
            )
            for count, rate in zip(counts, rates)
        ]
        return math.sqrt(neighbors[0] * neighbors[1])

    def calibrate(self, epsilon: float, delta: float) -> Calibration:
        self._check_size()
        check_positive("epsilon", epsilon)
        check_delta(delta)
        largest = self._largest_noise(epsilon, delta)
        if self._confidence is not None:
            # A bound takes BOUND_SLACK / (1 + BOUND_SLACK) of it, and some luck.
            aim = delta / (1.0 + 1.1 * BOUND_SLACK)
            noise = self._search(epsilon, aim, largest, 1.0)
            noise, found = enough_noise(
                self._simulator, epsilon, delta, noise, largest, self._confidence
            )
            guarantee = self._stated(epsilon, delta, found)
            return Calibration(noise, guarantee, is_amplified=True)
        noise = self._search(epsilon, delta, largest, SAFETY)
        # By draws that the search did not use.
        for attempt in range(_ATTEMPTS):
            checked = self._simulator.runs(epsilon, noise, (CHECK, attempt))
            if noise >= largest or worst(checked, epsilon).value <= delta:
                break
            noise = min(noise * (1.0 + 2e-3 * 2**attempt), largest)
        else:
            noise = largest
        guarantee = Guarantee(epsilon, delta, "estimate", NAME)
        return Calibration(noise, guarantee, is_amplified=True)

    def _search(
        self, epsilon: float, delta: float, largest: float, safety: float
    ) -> float:
        """Noise at which the estimate plus standard errors equals delta."""
        noise, simulator = self.rough_noise_stddev(epsilon, delta), self._simulator
        noise = min(noise, largest)
        proposals = [simulator.propose(add, epsilon, noise) for add in (False, True)]

        directions = [False, True]

        def excess(log_noise: float) -> float:
            found = [
                simulator.simulate(
                    math.exp(log_noise), proposals[add], add, MAIN
                ).estimate(epsilon)
                for add in directions
            ]
            larger = max(found, key=lambda estimate: estimate.value)
            if len(found) > 1:
                # Far below the other one near this noise; what was found is checked.
                directions[:] = [
                    add
                    for add, estimate in zip(directions, found)
                    if estimate.value + _ERRORS * estimate.standard_error
                    > _MINOR * larger.value
                ]
            return log(larger.value + safety * larger.standard_error) - log(delta)

        found = near_root(excess, math.log(noise), math.log(largest), _PRECISION)
        return min(math.exp(found + _PRECISION), largest)
