"""The simulator behind b-min-sep sampling.

Draws come from mixtures of `b_min_sep_tilts`; weights are ratios of forward passes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from tf_bandmf.accounting.b_min_sep_passes import Passes
from tf_bandmf.accounting.b_min_sep_tilts import Tilt, TiltedSimulator
from tf_bandmf.accounting.simulator import MAIN, PILOT, Proposal, Stage

# Numbers of the draws that are made at once, and draws of so many numbers are kept for the
# next noise level: a step of many draws costs little more than one of few.
_CHUNK = _KEPT_ENTRIES = 20_000_000


@dataclasses.dataclass(frozen=True, eq=False)
class _Draws:
    """Random numbers of N draws, for any noise level and any lengths of the tilts.

    Attributes:
      choice: which tilt, shape [N].
      normals: `<c_t, z>` of unit normals z, shape [N, n].
      along: `<m, z>` with the mean of the means, shape [N].
      means: `<c_t, m_S>` of the participations of "remove", shape [N, n].
    """

    choice: np.ndarray
    normals: np.ndarray
    along: np.ndarray
    means: np.ndarray | None


class BMinSepSimulator(TiltedSimulator):
    """Simulates the privacy loss of b-min-sep sampling in both directions.

    Args:
      passes: of the strategy.
      num_draws: of a main run, for each direction.
      seed: equal seeds give equal draws.
    """

    def __init__(self, passes: Passes, num_draws: int, seed: int) -> None:
        super().__init__(passes, num_draws)
        self._seed = seed
        self._kept: dict[tuple[Stage, bool], tuple[object, _Draws]] = {}

    def chunks(
        self, noise: float, proposal: Proposal, add: bool, stage: Stage, count: int
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        passes, tilts = self.passes, proposal.tilts
        size = max(1, _CHUNK // passes.num_steps)
        half = 0.5 * passes.squares / noise**2
        for index, start in enumerate(range(0, count, size)):
            number = min(size, count - start)
            draws = self._draws(noise, proposal, add, stage, index, number)
            # Step by step in memory.
            log_v = np.multiply(draws.normals.T, 1.0 / noise, dtype=np.float64)
            log_v -= half[:, None]
            scratch = np.empty_like(log_v)
            if add:
                moved = np.array([tilt.against for tilt in tilts])[draws.choice]
                shift = passes.inner_products(passes.mean[None])[0] / noise**2
                np.multiply(shift[:, None], moved, out=scratch)
            else:
                assert draws.means is not None
                lengths = 1.0 + np.array([tilt.length for tilt in tilts])[draws.choice]
                np.multiply(draws.means.T, lengths / noise**2, out=scratch)
            log_v += scratch
            densities = np.empty((len(tilts), number))
            if add:
                losses = passes.log_ratio(log_v.T, passes.probability)
                squared = float(passes.mean @ passes.mean) / noise**2
                along = draws.along / noise + moved * squared
                for row, tilt in zip(densities, tilts):
                    row[:] = tilt.against * along - 0.5 * tilt.against**2 * squared
            else:
                for rows, found in self._densities(tilts, log_v, half, noise, scratch):
                    densities[rows] = found
                losses = densities[0].copy()
            if not (np.all(np.isfinite(losses)) and np.all(np.isfinite(densities))):
                raise ArithmeticError("The simulation of the privacy loss overflowed.")
            yield losses, densities

    def _densities(
        self,
        tilts: Sequence[Tilt],
        log_v: np.ndarray,
        half: np.ndarray,
        noise: float,
        scratch: np.ndarray,
    ) -> Iterator[tuple[list[int], np.ndarray]]:
        """Log densities of "remove" relative to Q, of tilts with the same length at once.

        Args:
          tilts: of the proposal.
          log_v: shape [n, N].
          half: `|c_t|^2 / (2 sigma^2)`, shape [n].
          noise: sigma.
          scratch: like log_v, overwritten.
        """
        alike: dict[tuple[float, bool], list[int]] = {}
        for index, tilt in enumerate(tilts):
            alike.setdefault((tilt.length, tilt.is_weighted), []).append(index)
        for (length, is_weighted), rows in alike.items():
            np.multiply(log_v, 1.0 + length, out=scratch)
            if length != 0.0 and not is_weighted:
                # scale (log_v + half) - scale^2 half
                scratch -= ((1.0 + length) * length * half)[:, None]
            rates = [tilts[i].probability for i in rows]
            found = self.passes.log_ratios(scratch.T, rates, overwrite=True)
            if is_weighted:
                found -= self.log_total(noise, length)
            yield rows, found

    def _draws(
        self,
        noise: float,
        proposal: Proposal,
        add: bool,
        stage: Stage,
        index: int,
        number: int,
    ) -> _Draws:
        """Random numbers of one chunk; the last ones are kept for other noise levels."""
        rates = tuple(tilt.probability for tilt in proposal.tilts)
        key = (index, number, rates, proposal.shares.tobytes())
        kept = self._kept.get((stage, add))
        if kept is not None and kept[0] == key:
            return kept[1]
        tilts, n = proposal.tilts, self.passes.num_steps
        seed = [self._seed, *stage, int(add), index]
        generator = np.random.Generator(np.random.SFC64(np.random.SeedSequence(seed)))
        cumulative = np.cumsum(proposal.shares) / np.sum(proposal.shares)
        choice = np.searchsorted(cumulative, generator.random(number), side="right")
        choice = np.minimum(choice, len(tilts) - 1)
        z = generator.standard_normal((number, n))
        # Pilot runs only choose: single precision keeps as many draws in half the memory.
        kind = np.float32 if stage == PILOT else np.float64
        along = z @ self.passes.mean
        normals = self.passes.inner_products(z).astype(kind, copy=False)
        del z
        means = None
        if not add:
            means = self._means(generator, noise, tilts, choice)
            means = self.passes.inner_products(means).astype(kind, copy=False)
        found = _Draws(choice, normals, along, means)
        # Weights of participations depend on the noise.
        is_weighted = any(tilt.is_weighted for tilt in tilts)
        if not is_weighted and stage in (PILOT, MAIN) and number * n <= _KEPT_ENTRIES:
            self._kept[stage, add] = key, found
        return found

    def _means(
        self,
        generator: np.random.Generator,
        noise: float,
        tilts: Sequence[Tilt],
        choice: np.ndarray,
    ) -> np.ndarray:
        """Means of participations as the chosen tilts have them, shape [N, n]."""
        rates = np.array([tilt.probability for tilt in tilts])[choice]
        found = self.passes.draw(generator, rates)
        for index, tilt in enumerate(tilts):
            rows = np.flatnonzero(choice == index)
            if tilt.is_weighted and rows.size:
                weights = self.log_weights(noise, tilt.length)
                found[rows] = self.passes.draw_weighted(generator, rows.size, weights)
        return found
