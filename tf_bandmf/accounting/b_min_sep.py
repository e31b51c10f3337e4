"""Accounting of b-min-sep sampling by simulation, for strategies with bands.

Dong and Ganesh, arXiv:2602.09338; the distributions are in `b_min_sep_passes`. Draws come
from mixtures of tilted versions of `P` (longer means, more participations) or of `Q`
(against the mean of the means); weights are ratios of forward passes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Callable

import numpy as np
import scipy.optimize

from tf_bandmf import matrices
from tf_bandmf.accounting import gaussian
from tf_bandmf.accounting.b_min_sep_passes import Passes
from tf_bandmf.accounting.base import Accountant, Simulation, meaningful
from tf_bandmf.accounting.checks import check_delta, check_positive
from tf_bandmf.accounting.guarantee import ZERO_OUT, Calibration, Guarantee
from tf_bandmf.accounting.importance import Run, least_variance
from tf_bandmf.accounting.monte_carlo import Estimate
from tf_bandmf.accounting.root_finding import log

NAME = "b-min-sep sampling, Monte Carlo with importance sampling"
NUM_DRAWS = 10_000

_PILOT_EACH, _LEAST_SHARE, _DEFENSIVE = 150, 0.02, 0.1
_CHUNK = 4_000_000
# A calibrated or stated estimate is on the safe side by so many standard errors.
_SAFETY = 2.0
_CHECK_ERRORS, _CHECK_FACTOR = 5.0, 1.1
_PILOT, _MAIN, _CHECK = 0, 1, 2
_ATTEMPTS = 6


@dataclasses.dataclass(frozen=True)
class Tilt:
    """One component of a proposal.

    Attributes:
      length: the mean is `1 + length` times that of the participations ("remove").
      probability: of a participation, in place of p ("remove").
      against: the mean moves by this many times the mean of all means ("add": negative).
    """

    length: float
    probability: float
    against: float = 0.0


class BMinSepAccountant(Accountant):
    """(epsilon, delta) of b-min-sep sampling for one strategy: estimates, typed as such.

    Args:
      passes: of the strategy.
      num_draws: for each direction.
      seed: of the simulation, >= 0; equal seeds give equal results.
    """

    claims = ((NAME, "estimate", ZERO_OUT),)

    def __init__(self, passes: Passes, num_draws: int, seed: int) -> None:
        self._passes, self._num_draws, self._seed = passes, num_draws, seed
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
          ValueError: if C has more bands than b or a negative entry, or if a confidence
            is given: no bound is known.
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
        if simulation.confidence is not None:
            raise ValueError(
                f"b-min-sep sampling is accounted for by an estimate: confidence must be "
                f"None, found {simulation.confidence}. Use CyclicPoisson for a bound."
            )
        draws = NUM_DRAWS if simulation.num_draws is None else simulation.num_draws
        passes = Passes(matrices.as_rows(matrix), separation, rate)
        return cls(passes, draws, simulation.seed)

    def delta(self, epsilon: float, noise_stddev: float) -> Estimate:
        """Delta at epsilon >= 0, of the worse direction."""
        check_positive("noise_stddev", noise_stddev)
        return _worst(self._runs(epsilon, noise_stddev, _MAIN), epsilon)

    def epsilon(self, delta: float, noise_stddev: float) -> Estimate:
        """Epsilon at delta; 0 where delta is spent before."""
        check_delta(delta)
        check_positive("noise_stddev", noise_stddev)
        upper = gaussian.gaussian_epsilon(noise_stddev / self._norm, delta)
        rough = _solve(self._pilot_runs(noise_stddev), delta, upper)
        runs = self._runs(rough, noise_stddev, _MAIN)
        value = _solve(runs, delta, upper)
        run = max(runs, key=lambda run: run.estimate(value).value)
        slope = run.slope(value)
        error = run.estimate(value).standard_error / slope if slope > 0.0 else 0.0
        return Estimate(value, error, self._num_draws)

    def calibrate(self, epsilon: float, delta: float) -> Calibration:
        check_positive("epsilon", epsilon)
        check_delta(delta)
        largest = gaussian.calibrate_noise_stddev(epsilon, delta) * self._norm

        def excess(
            runs: Callable[[float], list[Run]],
        ) -> Callable[[float], float]:
            def at(log_noise: float) -> float:
                found = _worst(runs(math.exp(log_noise)), epsilon)
                return log(found.value + _SAFETY * found.standard_error) - log(delta)

            return at

        rough = excess(self._pilot_runs)
        upper = math.log(largest)
        lower = upper - 0.5
        while rough(lower) <= 0.0:
            upper, lower = lower, lower - 0.5
            if lower < math.log(largest) - 30.0:
                raise ArithmeticError("Calibration found no lower limit of the noise.")
        noise = largest
        if rough(upper) < 0.0:
            noise = math.exp(scipy.optimize.brentq(rough, lower, upper, xtol=1e-2))
        proposals = self._proposals(epsilon, noise)

        def main(noise: float) -> list[Run]:
            return [self._run(noise, p, add, _MAIN) for add, p in enumerate(proposals)]

        fine = excess(main)
        lower = upper = math.log(noise)
        while fine(lower) <= 0.0:
            lower -= 0.03
        while upper < math.log(largest) and fine(upper) > 0.0:
            upper += 0.03
        found = scipy.optimize.brentq(fine, lower, upper, xtol=1e-4)
        noise = min(math.exp(found + 1e-4), largest)
        # By draws that the search did not use.
        for attempt in range(_ATTEMPTS):
            checked = self._runs(epsilon, noise, _CHECK + attempt)
            if noise >= largest or _worst(checked, epsilon).value <= delta:
                break
            noise = min(noise * (1.0 + 2e-3 * 2**attempt), largest)
        else:
            noise = largest
        guarantee = Guarantee(epsilon, delta, "estimate", NAME)
        return Calibration(noise, guarantee, is_amplified=True)

    def guarantee(self, noise_stddev: float, delta: float) -> Guarantee:
        found = self.epsilon(delta, noise_stddev)
        epsilon = found.value + _SAFETY * found.standard_error
        return Guarantee(
            meaningful(epsilon, noise_stddev, delta), delta, "estimate", NAME
        )

    def confirms(self, noise_stddev: float, guarantee: Guarantee) -> bool:
        found = _worst(self._pilot_runs(noise_stddev), guarantee.epsilon)
        least = found.value - _CHECK_ERRORS * found.standard_error
        return least <= guarantee.delta * _CHECK_FACTOR

    def _tilts(self, noise: float, add: bool) -> list[Tilt]:
        """The first one is the target."""
        passes = self._passes
        p = passes.probability
        if add:
            unit = noise / math.sqrt(float(passes.mean @ passes.mean))
            return [Tilt(0.0, p, -s * unit) for s in (0.0, 1.0, 2.0, 3.0, 4.5, 6.0)]
        # Of a typical sum of columns.
        expected = float(passes.rate * passes.squares.sum())
        unit = noise / math.sqrt(max(expected, passes.squares.max()))
        rates = sorted({p, min(1.5 * p, 0.5 * (1 + p)), min(2.5 * p, 0.5 * (1 + p))})
        tilts = [Tilt(s * unit, r) for s in (0.0, 1.0, 2.0, 3.0, 4.5) for r in rates]
        return sorted(tilts, key=lambda tilt: (tilt.length, tilt.probability))

    def _run(
        self,
        noise: float,
        proposal: tuple[Sequence[Tilt], np.ndarray],
        add: bool | int,
        stage: int,
    ) -> Run:
        tilts, shares = proposal
        losses, densities = self._simulate(
            noise, tilts, shares, bool(add), stage, self._num_draws
        )
        mixed = np.logaddexp.reduce(densities + np.log(shares)[:, None], axis=0)
        return Run(bool(add), losses, densities[0] - mixed)

    def _runs(self, epsilon: float, noise: float, stage: int) -> list[Run]:
        proposals = self._proposals(epsilon, noise)
        return [self._run(noise, p, add, stage) for add, p in enumerate(proposals)]

    def _pilot(self, noise: float, add: bool) -> tuple[list[Tilt], Run, np.ndarray]:
        tilts = self._tilts(noise, add)
        shares = np.full(len(tilts), 1.0 / len(tilts))
        losses, densities = self._simulate(
            noise, tilts, shares, add, _PILOT, _PILOT_EACH * len(tilts)
        )
        mixed = np.logaddexp.reduce(densities, axis=0) - math.log(len(tilts))
        run = Run(add, losses, densities[0] - mixed)
        return tilts, run, np.exp(densities - mixed)

    def _pilot_runs(self, noise: float) -> list[Run]:
        return [self._pilot(noise, add)[1] for add in (False, True)]

    def _proposals(
        self, epsilon: float, noise: float
    ) -> list[tuple[Sequence[Tilt], np.ndarray]]:
        """For both directions the mixture with the smallest variance in a pilot run."""
        found: list[tuple[Sequence[Tilt], np.ndarray]] = []
        for add in (False, True):
            tilts, run, ratios = self._pilot(noise, add)
            values = run.values(epsilon)
            shares = np.full(len(tilts), 1.0 / len(tilts))
            if np.any(values > 0.0):
                squares = (values / values.max()) ** 2
                shares = least_variance(ratios, squares, shares, _DEFENSIVE, 100)
            kept = shares >= _LEAST_SHARE
            kept[0] = True
            part = np.where(kept, np.maximum(shares, _LEAST_SHARE), 0.0)[kept]
            chosen = [tilt for tilt, keep in zip(tilts, kept) if keep]
            found.append((chosen, part / part.sum()))
        return found

    def _simulate(
        self,
        noise: float,
        tilts: Sequence[Tilt],
        shares: np.ndarray,
        add: bool,
        stage: int,
        count: int,
    ) -> tuple[np.ndarray, np.ndarray]:
        """`log dP/dQ` [N] and log densities of the components relative to Q [T, N]."""
        parts = list(self._chunks(noise, tilts, shares, add, stage, count))
        losses = np.concatenate([part[0] for part in parts])
        return losses, np.concatenate([part[1] for part in parts], axis=1)

    def _chunks(
        self,
        noise: float,
        tilts: Sequence[Tilt],
        shares: np.ndarray,
        add: bool,
        stage: int,
        count: int,
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        passes = self._passes
        n, size = passes.num_steps, max(1, _CHUNK // passes.num_steps)
        cumulative = np.cumsum(shares) / np.sum(shares)
        half = 0.5 * passes.squares / noise**2
        for index, start in enumerate(range(0, count, size)):
            number = min(size, count - start)
            seed = [self._seed, stage, int(add), index]
            generator = np.random.Generator(
                np.random.SFC64(np.random.SeedSequence(seed))
            )
            choice = np.searchsorted(cumulative, generator.random(number), side="right")
            choice = np.minimum(choice, len(tilts) - 1)
            y = noise * generator.standard_normal((number, n))
            if add:
                y += (
                    np.array([tilt.against for tilt in tilts])[choice, None]
                    * passes.mean
                )
            else:
                rates = np.array([tilt.probability for tilt in tilts])[choice]
                lengths = 1.0 + np.array([tilt.length for tilt in tilts])[choice, None]
                y += lengths * passes.draw(generator, rates)
            u = passes.inner_products(y) / noise**2
            losses = passes.log_ratio(u - half, passes.probability)
            along = y @ passes.mean / noise**2
            squared = float(passes.mean @ passes.mean) / noise**2
            densities = np.empty((len(tilts), number))
            for row, tilt in zip(densities, tilts):
                if add:
                    row[:] = tilt.against * along - 0.5 * tilt.against**2 * squared
                elif tilt == tilts[0]:
                    row[:] = losses
                else:
                    scale = 1.0 + tilt.length
                    exponents = scale * u - scale**2 * half
                    row[:] = passes.log_ratio(exponents, tilt.probability)
            if not (np.all(np.isfinite(losses)) and np.all(np.isfinite(densities))):
                raise ArithmeticError("The simulation of the privacy loss overflowed.")
            yield losses, densities


def _worst(runs: Sequence[Run], epsilon: float) -> Estimate:
    return max((run.estimate(epsilon) for run in runs), key=lambda found: found.value)


def _solve(runs: Sequence[Run], delta: float, upper: float) -> float:
    """Where the estimate of delta falls to `delta`, within [0, upper]."""

    def excess(epsilon: float) -> float:
        return log(_worst(runs, epsilon).value) - math.log(delta)

    if excess(0.0) <= 0.0:
        return 0.0
    if excess(upper) >= 0.0:
        return upper
    return float(scipy.optimize.brentq(excess, 0.0, upper, rtol=1e-8))
