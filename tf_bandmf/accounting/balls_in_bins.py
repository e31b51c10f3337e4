"""Accounting of balls in bins by simulation, for every non-negative strategy.

Each example is put into one of `b` bins, once, and takes part at the steps of its bin in
every epoch (arXiv:2601.22334, section 5.1). See `bins_mixture` for the distributions.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

import numpy as np

from tf_bandmf import matrices
from tf_bandmf.accounting.bins_mixture import (
    BinsMixture,
    Draws,
    Tilt,
    check_bins,
    factorize,
    gram_matrix,
)
from tf_bandmf.accounting.checks import whole_number
from tf_bandmf.accounting.simulated_accountant import SimulatedAccountant
from tf_bandmf.accounting.simulator import MAIN, PILOT, Proposal, Simulator, Stage

NAME = "balls in bins, Monte Carlo with importance sampling"
NUM_DRAWS = 50_000
# Standard deviations by which the pilot run moves its draws, and draws of each tilt.
_STRENGTHS = (1.0, 2.0, 3.0, 4.0, 5.0, 6.5, 8.0)
_ROUGH_STRENGTHS = (1.0, 2.5, 4.0, 6.5)
_PILOT_DRAWS = 400, 250
# Candidates for a bound: tilts with certain weights, in standard deviations.
_CERTAIN_STRENGTHS = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.5)


class BinsSimulator(Simulator):
    """Simulates the privacy loss of balls in bins in both directions.

    Args:
      gram: G, shape [b, b].
      num_draws: of a main run that does not say otherwise.
      seed: equal seeds give equal draws.
    """

    def __init__(self, gram: np.ndarray, num_draws: int, seed: int) -> None:
        super().__init__(gram.shape[0], num_draws, _PILOT_DRAWS)
        self._mixture = functools.lru_cache(maxsize=2)(
            functools.partial(BinsMixture, gram)
        )
        self._factor, self._seed = factorize(gram), seed
        self._kept: dict[tuple[Stage, bool, int], Draws] = {}

    def pilot_tilts(
        self, noise: float, add: bool, is_rough: bool = False
    ) -> list[Tilt]:
        strengths = _ROUGH_STRENGTHS if is_rough else _STRENGTHS
        return self._mixture(noise, add).grid(strengths)

    def certain_tilts(self, noise: float, add: bool) -> list[Tilt]:
        mixture = self._mixture(noise, add)
        return mixture.tilts_with_certain_weights(_CERTAIN_STRENGTHS)

    def certain_density(
        self, tilt: Tilt, noise: float, add: bool
    ) -> tuple[float, float] | None:
        return self._mixture(noise, add).certain_density(tilt)

    def chunks(
        self, noise: float, proposal: Proposal, add: bool, stage: Stage, count: int
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        key = stage, add, count
        draws = self._kept.get(key)
        if draws is None:
            seed = [self._seed, *stage, int(add)]
            draws = Draws(self._factor, count, seed)
            if stage == PILOT or (stage == MAIN and count == self.num_draws):
                self._kept[key] = draws
        return self._mixture(noise, add).chunks(draws, proposal)


class BallsInBinsAccountant(SimulatedAccountant):
    """(epsilon, delta) of balls in bins for one strategy and number of bins.

    For the formal guarantee see `SimulatedAccountant`.

    Args:
      gram: G of `bins_mixture.gram_matrix`, shape [b, b].
      confidence: None for estimates, or 1 - beta, for example `1 - 1e-6`.
      num_draws: of an estimate, for each direction.
      seed: of the simulation, >= 0; equal seeds give equal results.

    Raises:
      ValueError: on invalid arguments.
    """

    def __init__(
        self,
        gram: np.ndarray,
        confidence: float | None = None,
        num_draws: int = NUM_DRAWS,
        seed: int = 0,
    ) -> None:
        gram = np.array(gram, dtype=np.float64)
        if gram.ndim != 2 or gram.shape[0] != gram.shape[1] or not gram.size:
            raise ValueError(f"gram must have shape [b, b], found {gram.shape}.")
        check_bins(len(gram))
        if not np.all(np.isfinite(gram)) or np.any(gram < 0.0):
            raise ValueError("gram must be finite and non-negative.")
        if np.any(np.diagonal(gram) <= 0.0):
            raise ValueError("gram must have a positive diagonal.")
        num_draws = whole_number("num_draws", num_draws, least=1000)
        seed = whole_number("seed", seed, least=0)
        simulator = BinsSimulator(gram, num_draws, seed)
        norm = math.sqrt(float(gram.diagonal().max()))
        super().__init__(NAME, simulator, norm, confidence)

    @classmethod
    def of_strategy(
        cls,
        matrix: matrices.LowerTriangular,
        num_bins: int,
        confidence: float | None = None,
        num_draws: int = NUM_DRAWS,
        seed: int = 0,
    ) -> BallsInBinsAccountant:
        """The accountant of a strategy matrix `C`; see `gram_matrix` for errors."""
        gram = gram_matrix(matrix, num_bins)
        return cls(gram, confidence, num_draws, seed)
