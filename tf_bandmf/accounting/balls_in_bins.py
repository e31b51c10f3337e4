"""Accounting of balls in bins by simulation, for every non-negative strategy.

Each example is put into one of `b` bins, once, and takes part at the steps of its bin in
every epoch (arXiv:2601.22334, section 5.1). See `bins_mixture` for the distributions.

Results are typed: an `Estimate`, or, if a confidence is asked for, a `Bound`; where that
takes too many draws, `calibrate` and `guarantee` use `bins_certain`.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np

from tf_bandmf import matrices
from tf_bandmf.accounting.bins_certain import QUICK, CertainBins
from tf_bandmf.accounting.bins_mixture import check_bins, gram_matrix
from tf_bandmf.accounting.bins_simulator import DEFENSIVE, BinsSimulator
from tf_bandmf.accounting.checks import check_delta, check_positive, whole_number
from tf_bandmf.accounting.guarantee import ZERO_OUT, Calibration, Guarantee
from tf_bandmf.accounting.monte_carlo import Estimate, MonteCarloValue
from tf_bandmf.accounting.root_finding import log, near_root
from tf_bandmf.accounting.simulated_accountant import SAFETY, SimulatedAccountant, worst
from tf_bandmf.accounting.simulated_bounds import (
    BOUND_SLACK,
    CHECK,
    MAIN,
    TooManyDraws,
    enough_noise,
)

NAME = "balls in bins, Monte Carlo with importance sampling"

_ATTEMPTS = 8
NUM_DRAWS = 50_000
# Tolerance of the log of the noise.
_PRECISION = 1e-5
# Up to so many bins a statement computes a certain bound, too: it takes seconds.
_MOST_CERTAIN_BINS = 1_024


@dataclasses.dataclass(frozen=True)
class Calibrated:
    """Noise for a budget.

    Attributes:
      noise_stddev: sigma on the raw `C`, for l2_norm_clip = 1.
      delta: at the budget's epsilon, found with draws that the search did not use.
    """

    noise_stddev: float
    delta: MonteCarloValue


class BallsInBinsAccountant(SimulatedAccountant[BinsSimulator]):
    """(epsilon, delta) of balls in bins for one strategy and number of bins.

    For the formal guarantee see `SimulatedAccountant`.

    Args:
      gram: G of `bins_mixture.gram_matrix`, shape [b, b].
      confidence: None for estimates, or 1 - beta, for example `1 - 1e-6`.
      num_draws: of an estimate, for each direction.
      seed: of the simulation, >= 0; equal seeds give equal results.
      progress: show progress on what takes longer than 2 seconds.

    Raises:
      ValueError: on invalid arguments.
    """

    claims = (
        (NAME, "estimate", ZERO_OUT),
        (NAME, "bound", ZERO_OUT),
        *CertainBins.claims,
    )

    def __init__(
        self,
        gram: np.ndarray,
        confidence: float | None = None,
        num_draws: int = NUM_DRAWS,
        seed: int = 0,
        progress: bool = False,
    ) -> None:
        gram = np.array(gram, dtype=np.float64)
        if gram.ndim != 2 or gram.shape[0] != gram.shape[1] or not gram.size:
            raise ValueError(f"gram must have shape [b, b], found {gram.shape}.")
        check_bins(len(gram))
        if not np.all(np.isfinite(gram)) or np.any(gram < 0.0):
            raise ValueError("gram must be finite and non-negative.")
        if np.any(np.diagonal(gram) <= 0.0):
            raise ValueError("gram must have a positive diagonal.")
        if confidence is not None and not 0.5 <= confidence < 1.0:
            raise ValueError(f"confidence must be in [0.5, 1), found {confidence}.")
        num_draws = whole_number("num_draws", num_draws, least=1000)
        seed = whole_number("seed", seed, least=0)
        self._gram = gram
        simulator = BinsSimulator(gram, num_draws, seed, progress)
        norm = math.sqrt(float(gram.diagonal().max()))
        super().__init__(simulator, norm, confidence)

    @classmethod
    def of_strategy(
        cls,
        matrix: matrices.LowerTriangular,
        num_bins: int,
        confidence: float | None = None,
        num_draws: int = NUM_DRAWS,
        seed: int = 0,
        progress: bool = False,
    ) -> BallsInBinsAccountant:
        """The accountant of a strategy matrix `C`; see `gram_matrix` for errors."""
        gram = gram_matrix(matrix, num_bins)
        return cls(gram, confidence, num_draws, seed, progress)

    @property
    def num_bins(self) -> int:
        return self._gram.shape[0]

    def calibrate_noise_stddev(self, epsilon: float, delta: float) -> Calibrated:
        """The smallest noise for the budget, on the safe side.

        For an estimate: delta plus two standard errors is within the budget in the draws
        that the search used, and in independent ones. For a bound: delta is, at the
        confidence, by draws that the search did not use.

        Args:
          epsilon: > 0.
          delta: in (0, 1).

        Raises:
          ValueError: on invalid input, or if a bound would take too many draws.
          ArithmeticError: if the simulation overflows.
        """
        check_positive("epsilon", epsilon)
        check_delta(delta)
        largest = self._largest_noise(epsilon, delta)
        if self._confidence is None:
            return self._calibrate_estimate(epsilon, delta, largest)
        return self._calibrate_bound(epsilon, delta, largest)

    def calibrate(self, epsilon: float, delta: float) -> Calibration:
        try:
            found = self.calibrate_noise_stddev(epsilon, delta)
        except TooManyDraws:
            return CertainBins(self._gram).calibrate(epsilon, delta)
        guarantee = self._stated(epsilon, delta, found.delta)
        return Calibration(found.noise_stddev, guarantee, is_amplified=True)

    def guarantee(self, noise_stddev: float, delta: float) -> Guarantee:
        try:
            return super().guarantee(noise_stddev, delta)
        except TooManyDraws:
            return CertainBins(self._gram).guarantee(noise_stddev, delta)

    def remark(self, noise_stddev: float, guarantee: Guarantee) -> str:
        """The bound that holds for certain, beside an estimate."""
        if guarantee.kind != "estimate" or self.num_bins > _MOST_CERTAIN_BINS:
            return ""
        epsilon = _certain_epsilon(
            self._gram.tobytes(), self.num_bins, guarantee.delta, noise_stddev
        )
        return (
            f"Certain, without simulation: epsilon <= {epsilon:.6g} at this delta "
            f"(plan with confidence=1 for noise by this bound)."
        )

    def _calibrate_estimate(
        self, epsilon: float, delta: float, largest: float
    ) -> Calibrated:
        noise = self._search(epsilon, delta, largest, SAFETY)
        for attempt in range(_ATTEMPTS):
            runs = self._simulator.runs(epsilon, noise, (CHECK, attempt))
            found = worst(runs, epsilon)
            if found.value <= delta:
                return Calibrated(noise, found)
            noise *= 1.0 + 1e-3 * 2**attempt
            if noise >= largest:
                break
        # Certain: without amplification.
        return Calibrated(largest, Estimate(delta, 0.0, 0))

    def _calibrate_bound(
        self, epsilon: float, delta: float, largest: float
    ) -> Calibrated:
        assert self._confidence is not None
        # A bound takes BOUND_SLACK / (1 + BOUND_SLACK) of it, and some luck.
        aim = delta / (1.0 + 1.1 * BOUND_SLACK)
        noise = self._search(epsilon, aim, largest, 1.0)
        return Calibrated(
            *enough_noise(
                self._simulator, epsilon, delta, noise, largest, self._confidence
            )
        )

    def _search(
        self, epsilon: float, delta: float, largest: float, safety: float
    ) -> float:
        """Noise at which the estimate plus standard errors equals delta."""
        noise, simulator = self.rough_noise_stddev(epsilon, delta), self._simulator
        if noise >= largest:
            return largest
        proposals = [
            simulator.propose(add, epsilon, noise, DEFENSIVE) for add in (False, True)
        ]
        draws = [
            simulator.draws(simulator.num_draws, add, MAIN) for add in (False, True)
        ]

        @functools.cache
        def value(add: int, log_noise: float) -> float:
            noise = math.exp(log_noise)
            run = simulator.simulate(noise, proposals[add], draws[add], bool(add))
            found = run.estimate(epsilon)
            return found.value + safety * found.standard_error

        start = math.log(noise)
        at_start = [value(add, start) for add in (0, 1)]
        # A direction that is far below the other cannot decide.
        deciding = [add for add in (0, 1) if at_start[add] >= 0.05 * max(at_start)]

        def excess(log_noise: float) -> float:
            found = max(value(add, log_noise) for add in deciding)
            return log(found) - math.log(delta)

        found = near_root(excess, start, math.log(largest), _PRECISION)
        return min(math.exp(found + _PRECISION), largest)


@functools.lru_cache(maxsize=16)
def _certain_epsilon(
    gram: bytes, num_bins: int, delta: float, noise_stddev: float
) -> float:
    matrix = np.frombuffer(gram).reshape(num_bins, num_bins)
    certain = CertainBins(matrix, QUICK)
    return certain.epsilon(delta, noise_stddev) * (1.0 + 1e-5)
