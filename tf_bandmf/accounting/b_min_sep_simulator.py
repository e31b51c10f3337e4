"""The simulator behind b-min-sep sampling: pilot run, choice of the proposal, main run.

Draws come from the mixtures of `b_min_sep_tilts`; weights are ratios of forward passes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

import numpy as np

from tf_bandmf.accounting import importance
from tf_bandmf.accounting.b_min_sep_passes import Passes
from tf_bandmf.accounting.b_min_sep_tilts import (
    FULL,
    ROUGH,
    Pilot,
    Proposal,
    Tilt,
    Tilts,
    mixture,
)
from tf_bandmf.accounting.importance import Run, least_variance
from tf_bandmf.accounting.simulated_bounds import MAIN, PILOT, Stage

_LEAST_SHARE, _DEFENSIVE = 0.02, 0.1
# Numbers of the draws that are made at once, and draws of so many numbers are kept for the
# next noise level: a step of many draws costs little more than one of few.
_CHUNK = _KEPT_ENTRIES = 20_000_000
_ALMOST_CERTAIN = np.array([0.01, 0.99])


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


class BMinSepSimulator:
    """Simulates the privacy loss of b-min-sep sampling in both directions.

    Args:
      passes: of the strategy.
      num_draws: of a main run, for each direction.
      seed: equal seeds give equal draws.
    """

    def __init__(self, passes: Passes, num_draws: int, seed: int) -> None:
        self.passes, self.num_draws, self._seed = passes, num_draws, seed
        self.tilts = Tilts(passes)
        self._kept: dict[tuple[Stage, bool], tuple[object, _Draws]] = {}

    @property
    def entries(self) -> int:
        """Numbers per draw."""
        return self.passes.num_steps

    def rough_runs(self, noise: float) -> list[Run]:
        """Both directions from few draws."""
        return [self._pilot(noise, add, ROUGH)[1] for add in (False, True)]

    def runs(self, epsilon: float, noise: float, stage: Stage = MAIN) -> list[Run]:
        """Both directions, each from a proposal that suits epsilon."""
        return [
            self.simulate(noise, self.propose(add, epsilon, noise), add, stage)
            for add in (False, True)
        ]

    def simulate(
        self, noise: float, proposal: Proposal, add: bool, stage: Stage
    ) -> Run:
        """One direction from a proposal."""
        return self.bound_run(add, noise, proposal, self.num_draws, stage)

    def propose(self, add: bool, epsilon: float, noise: float) -> Proposal:
        """The mixture with the smallest variance in a pilot run."""
        tilts, run, ratios = self._pilot(noise, add)
        values = run.values(epsilon)
        shares = np.full(len(tilts), 1.0 / len(tilts))
        if np.any(values > 0.0):
            squares = (values / values.max()) ** 2
            shares = least_variance(ratios, squares, shares, _DEFENSIVE, 100)
        kept = shares >= _LEAST_SHARE
        kept[0] = True
        return mixture(tilts, np.where(kept, np.maximum(shares, _LEAST_SHARE), 0.0))

    def propose_for_bound(
        self, add: bool, epsilon: float, noise: float, log_odds: float, slack: float
    ) -> tuple[Proposal, float, int]:
        target = self.tilts.pilot(noise, add)[0]

        def alone(tilt: Tilt) -> float:
            proposal = Proposal((target, tilt), _ALMOST_CERTAIN)
            return self.tilts.largest_value(proposal, epsilon, noise, add)

        certain = min(self.tilts.certain(noise, add), key=alone)
        tilts, run, ratios = self._pilot(noise, add, more=(certain,))
        shares, largest, count = importance.cheapest_shares(
            ratios,
            run.values(epsilon),
            lambda shares: self.tilts.largest_value(
                mixture(tilts, shares), epsilon, noise, add
            ),
            log_odds,
            slack,
        )
        return mixture(tilts, shares), largest, count

    def bound_run(
        self, add: bool, noise: float, proposal: Proposal, count: int, stage: Stage
    ) -> Run:
        """A run of at least `count` draws."""
        count = max(count, self.num_draws)
        losses, log_weights = np.empty((2, count))
        log_shares = np.log(proposal.shares)[:, None]
        for part, found, densities in self._chunks(noise, proposal, add, stage, count):
            losses[part] = found
            mixed = np.logaddexp.reduce(densities + log_shares, axis=0)
            log_weights[part] = densities[0] - mixed
        return Run(add, losses, log_weights)

    def _pilot(
        self,
        noise: float,
        add: bool,
        pilot: Pilot = FULL,
        more: tuple[Tilt, ...] = (),
    ) -> tuple[tuple[Tilt, ...], Run, np.ndarray]:
        """All tilts, a run of their even mixture, density ratios [T, N]."""
        tilts = (*self.tilts.pilot(noise, add, pilot), *more)
        even = Proposal(tilts, np.full(len(tilts), 1.0 / len(tilts)))
        count = pilot.each * len(tilts)
        parts = list(self._chunks(noise, even, add, PILOT, count))
        losses = np.concatenate([found for _, found, _ in parts])
        densities = np.concatenate([density for _, _, density in parts], axis=1)
        mixed = np.logaddexp.reduce(densities, axis=0) - math.log(len(tilts))
        run = Run(add, losses, densities[0] - mixed)
        return tilts, run, np.exp(densities - mixed)

    def _chunks(
        self, noise: float, proposal: Proposal, add: bool, stage: Stage, count: int
    ) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
        """`log dP/dQ` [N] and log densities of the components relative to Q [T, N]."""
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
            yield slice(start, start + number), losses, densities

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
                found -= self.tilts.log_total(noise, length)
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
                weights = self.tilts.log_weights(noise, tilt.length)
                found[rows] = self.passes.draw_weighted(generator, rows.size, weights)
        return found
