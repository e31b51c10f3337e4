"""The simulator behind balls in bins; the distributions are in `bins_mixture`."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np

from tf_bandmf.accounting.bins_mixture import BinsMixture, Draws, Tilt, factorize
from tf_bandmf.accounting.simulator import MAIN, PILOT, Proposal, Simulator, Stage

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
      progress: show progress on what takes longer than 2 seconds.
    """

    def __init__(
        self, gram: np.ndarray, num_draws: int, seed: int, progress: bool
    ) -> None:
        super().__init__(gram.shape[0], num_draws, _PILOT_DRAWS)
        self._mixture = functools.lru_cache(maxsize=2)(
            functools.partial(BinsMixture, gram)
        )
        self._factor, self._seed, self._progress = factorize(gram), seed, progress
        self._kept: dict[tuple[Stage, bool, int], Draws] = {}

    def pilot_tilts(
        self, noise: float, add: bool, is_rough: bool = False
    ) -> list[Tilt]:
        strengths = _ROUGH_STRENGTHS if is_rough else _STRENGTHS
        return self._mixture(noise, add).grid(strengths)

    def certain_tilts(self, noise: float, add: bool) -> list[Tilt]:
        mixture = self._mixture(noise, add)
        return mixture.tilts_with_certain_weights(_CERTAIN_STRENGTHS)

    def largest_value(
        self, proposal: Proposal, epsilon: float, noise: float, add: bool
    ) -> float:
        return self._mixture(noise, add).largest_value(proposal, epsilon)

    def chunks(
        self, noise: float, proposal: Proposal, add: bool, stage: Stage, count: int
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        key = stage, add, count
        draws = self._kept.get(key)
        if draws is None:
            seed = [self._seed, *stage, int(add)]
            draws = Draws(self._factor, count, seed, self._progress)
            if stage == PILOT or (stage == MAIN and count == self.num_draws):
                self._kept[key] = draws
        return self._mixture(noise, add).chunks(draws, proposal)
