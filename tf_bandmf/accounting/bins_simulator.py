"""The simulator behind balls in bins: pilot run, choice of the proposal, main run."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tf_bandmf.accounting.bins_mixture import (
    BinsMixture,
    Draws,
    Proposal,
    Tilt,
    factorize,
)
from tf_bandmf.accounting.importance import Run, cheapest_shares, least_variance
from tf_bandmf.accounting.simulated_bounds import MAIN, PILOT, Stage

# Standard deviations by which the pilot run moves its draws.
_STRENGTHS = (1.0, 2.0, 3.0, 4.0, 5.0, 6.5, 8.0)
_ROUGH_STRENGTHS = (1.0, 2.5, 4.0, 6.5)
# Draws of each tilt.
_ROUGH_DRAWS, _PILOT_DRAWS = 250, 400
# Tilts with a smaller share of the draws are left out.
_LEAST_SHARE = 0.02
# Share of draws from the target itself in an estimate, against a bad pilot run.
DEFENSIVE = 0.1
# Candidates for a bound: tilts with certain weights, in standard deviations.
_CERTAIN_STRENGTHS = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.5)
_ALMOST_CERTAIN = (0.01, 0.99)


class BinsSimulator:
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
        self.gram, self._factor = gram, factorize(gram)
        self.num_draws, self._seed, self._progress = num_draws, seed, progress
        self._pilot_draws: dict[tuple[bool, int], Draws] = {}

    @property
    def entries(self) -> int:
        """Numbers per draw."""
        return self.gram.shape[0]

    def rough_runs(self, noise: float) -> list[Run]:
        """Both directions from few draws, some for every epsilon."""
        return [
            self._pilot(add, noise, _ROUGH_DRAWS, _ROUGH_STRENGTHS)[1]
            for add in (False, True)
        ]

    def runs(self, epsilon: float, noise: float, stage: Stage = MAIN) -> list[Run]:
        """Both directions, each from a proposal that suits epsilon."""
        return [
            self.simulate(
                noise,
                self.propose(add, epsilon, noise, DEFENSIVE),
                self.draws(self.num_draws, add, stage),
                add,
            )
            for add in (False, True)
        ]

    def simulate(
        self, noise: float, proposal: Proposal, draws: Draws, add: bool
    ) -> Run:
        """One direction at one noise level from given draws."""
        mixture = BinsMixture(self.gram, noise, add)
        return Run(add, *mixture.weighted_losses(draws, proposal))

    def draws(self, count: int, add: bool, stage: Stage) -> Draws:
        """Random numbers of a stage and direction, for any noise level."""
        seed = [self._seed, *stage, int(add)]
        return Draws(self._factor, count, seed, self._progress)

    def propose(
        self, add: bool, epsilon: float, noise: float, defensive: float
    ) -> Proposal:
        """The mixture with the smallest variance in a pilot run.

        Args:
          add: direction.
          epsilon: where delta is wanted.
          noise: sigma.
          defensive: share of draws from the target itself, at least.
        """
        pilot, run, ratios = self._pilot(add, noise, _PILOT_DRAWS)
        values = run.values(epsilon)
        if not np.any(values > 0.0):
            # Out of reach of the pilot run: delta is negligible.
            return Proposal((Tilt(), pilot.tilts[-1]), (defensive, 1.0 - defensive))
        squares = (values / values.max()) ** 2
        shares = np.full(len(pilot.tilts), 1.0 / len(pilot.tilts))
        shares = least_variance(ratios, squares, shares, defensive, 100)
        kept = shares >= _LEAST_SHARE
        kept[0] = True
        if not np.any(kept[1:]):
            kept[1] = True
        shares = np.where(kept, np.maximum(shares, _LEAST_SHARE), 0.0)
        shares = least_variance(ratios, squares, shares, defensive, 30)
        tilts = tuple(tilt for tilt, keep in zip(pilot.tilts, kept) if keep)
        return Proposal(tilts, tuple(float(share) for share in shares[kept]))

    def propose_for_bound(
        self, add: bool, epsilon: float, noise: float, log_odds: float, slack: float
    ) -> tuple[Proposal, float, int]:
        mixture = BinsMixture(self.gram, noise, add)
        certain = min(
            mixture.tilts_with_certain_weights(_CERTAIN_STRENGTHS),
            key=lambda tilt: mixture.largest_value(
                Proposal((Tilt(), tilt), _ALMOST_CERTAIN), epsilon
            ),
        )
        pilot, run, ratios = self._pilot(add, noise, _PILOT_DRAWS, more=(certain,))

        def proposal(shares: np.ndarray) -> Proposal:
            kept = shares > 0.0
            return Proposal(
                tuple(tilt for tilt, keep in zip(pilot.tilts, kept) if keep),
                tuple(float(share) for share in shares[kept]),
            )

        shares, largest, count = cheapest_shares(
            ratios,
            run.values(epsilon),
            lambda shares: mixture.largest_value(proposal(shares), epsilon),
            log_odds,
            slack,
        )
        return proposal(shares), largest, count

    def bound_run(
        self, add: bool, noise: float, proposal: Proposal, count: int, stage: Stage
    ) -> Run:
        """A run of at least `count` draws."""
        draws = self.draws(max(count, self.num_draws), add, stage)
        return self.simulate(noise, proposal, draws, add)

    def _pilot(
        self,
        add: bool,
        noise: float,
        each: int,
        strengths: Sequence[float] = _STRENGTHS,
        more: tuple[Tilt, ...] = (),
    ) -> tuple[Proposal, Run, np.ndarray]:
        """The even mixture of all tilts, a run of it, density ratios [T, N]."""
        mixture = BinsMixture(self.gram, noise, add)
        tilts = (*mixture.grid(strengths), *more)
        proposal = Proposal(tilts, (1.0 / len(tilts),) * len(tilts))
        key = (add, each * len(tilts))
        if key not in self._pilot_draws:
            self._pilot_draws[key] = self.draws(each * len(tilts), add, PILOT)
        losses, densities = mixture.component_densities(
            self._pilot_draws[key], proposal
        )
        mixed = np.logaddexp.reduce(densities, axis=0) - math.log(len(tilts))
        return (
            proposal,
            Run(add, losses, densities[0] - mixed),
            np.exp(densities - mixed),
        )
