"""The base class of simulators, which draw privacy losses with importance sampling.

The draws of the main run come from a proposal, which is a mixture of tilted versions of
the simulated distribution. A pilot run chooses the mixture. For an estimate, it is the
mixture with the smallest variance. For a bound, it is the mixture that needs the fewest
draws among mixtures whose weights have a guaranteed bound.
"""

from __future__ import annotations

import abc
import copy
import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from tf_bandmf.accounting import gaussian
from tf_bandmf.accounting.monte_carlo import Run

# Each stage of a simulation has its own random numbers; the i-th check with fresh draws
# is the stage (CHECK, i).
PILOT, MAIN, CHECK = (0, 0), (1, 0), 2
Stage = tuple[int, int]

# The amount by which a confidence bound may exceed delta, as a fraction of delta.
BOUND_SLACK = 0.3
# The share of the failure probability that the direction with the smaller delta gets.
_MINOR_PART = 0.1
_LARGEST_BOUND_DRAWS, _LARGEST_BOUND_ENTRIES = 5e7, 2e10
# The mixture for an estimate has no tilts with a share of the draws below _LEAST_SHARE.
# The untilted target distribution gets at least the share _DEFENSIVE, in case the pilot
# run is misleading.
_LEAST_SHARE, _DEFENSIVE = 0.02, 0.1
_ALMOST_CERTAIN = np.array([0.01, 0.99])
# For a bound, mixtures with these shares of the target distribution are tried, and with
# these shares of a tilt from `certain_tilts` in the rest of the mixture. The target
# distribution has at least the share _LEAST_TARGET, and tilts with shares below
# _LEAST_KEPT are omitted.
_TARGET_SHARES = (0.01, 0.05, 0.2, 0.5, 0.9)
_CERTAIN_PARTS = (0.0, 0.2, 0.4, 0.6, 0.75, 0.85, 0.95, 1.0)
_LEAST_TARGET = _LEAST_KEPT = 0.01
# The number of share updates in `_least_variance`.
_UPDATES = 100
# The values of loss - epsilon at which `largest_value` evaluates the weight.
_BEYOND = np.geomspace(1e-4, 60.0, 4000)

Self = TypeVar("Self", bound="Simulator")


class TooManyDraws(ValueError):
    """Raised if a simulated bound would take too many draws."""


@dataclasses.dataclass(frozen=True)
class Proposal:
    """A mixture of tilts, the first of which is the target distribution (share > 0).

    Attributes:
      tilts: the components of the mixture.
      shares: the share of the draws for each tilt, shape [len(tilts)], sum 1.
    """

    tilts: tuple[Any, ...]
    shares: np.ndarray

    def choose(self, generator: np.random.Generator, count: int) -> np.ndarray:
        """Draws the indices of the tilts for `count` draws, shape [count]."""
        shares = np.asarray(self.shares) / np.sum(self.shares)
        return generator.choice(len(self.tilts), count, p=shares)

    @classmethod
    def of_shares(cls, tilts: Sequence[Any], shares: np.ndarray) -> Proposal:
        """Returns the proposal with these shares, without the tilts whose share is 0."""
        positive = shares > 0.0
        chosen = tuple(tilt for tilt, keep in zip(tilts, positive) if keep)
        return cls(chosen, shares[positive] / shares[positive].sum())


class Simulator(abc.ABC):
    """Simulates the privacy loss of one strategy under one sampler.

    The method `at` sets the noise level and the direction of adjacency of the draws.

    Args:
      entries: number of random numbers in a draw.
      num_draws: number of draws per direction in a main run.
      pilot_draws: number of draws per tilt, in a pilot run and in a rough pilot run.
      seed: equal seeds give equal draws.

    Attributes:
      noise: sigma, the noise level on the raw `C` (not scaled to sensitivity 1).
      add: False for the direction "remove" (draws from P), True for "add" (from Q).
      releases: the joint noise multiplier of other Gaussian releases, as in `Run`.
    """

    # The method `at` sets `noise` and `add`; without them a simulator cannot draw.
    noise: float
    add: bool
    releases = math.inf

    def __init__(
        self, entries: int, num_draws: int, pilot_draws: tuple[int, int], seed: int
    ) -> None:
        self.num_draws, self.seed = num_draws, seed
        self._entries, self._pilot_draws = entries, pilot_draws

    def at(self: Self, noise: float, add: bool) -> Self:
        """Returns a copy for this noise and direction; copies share cached draws."""
        there = copy.copy(self)
        there.noise, there.add = noise, add
        return there

    @abc.abstractmethod
    def pilot_tilts(self, is_rough: bool = False) -> list[Any]:
        """Returns the tilts of a pilot run, starting with the target distribution."""

    @abc.abstractmethod
    def certain_tilts(self) -> list[Any]:
        """Returns tilts whose density `certain_density` can bound."""

    @abc.abstractmethod
    def certain_density(self, tilt: Any) -> tuple[float, float] | None:
        """Returns slope (> 0) and offset of a lower bound on a tilt's density, or None.

        The density of the tilt relative to the target distribution is at least
        `exp(slope l + offset)` at every loss `l`. None means that no bound is known.
        """

    @abc.abstractmethod
    def chunks(
        self, proposal: Proposal, stage: Stage, count: int
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields chunks of draws as (privacy losses, log densities of the tilts).

        For N draws and T tilts, the losses are `log dP/dQ`, shape [N], and the log
        densities are relative to Q, shape [T, N].
        """

    def generator(self, *which: int) -> np.random.Generator:
        """Returns the random generator for a stage and chunk, given as integers."""
        # SFC64 is twice as fast as NumPy's default. These random numbers need not be
        # secret.
        seed = np.random.SeedSequence([self.seed, *which])
        return np.random.Generator(np.random.SFC64(seed))

    def rough_runs(self, noise: float) -> list[Run]:
        """Returns one short run per direction, with draws for every epsilon."""
        return [self.at(noise, add)._pilot(is_rough=True)[1] for add in (False, True)]

    def runs(self, epsilon: float, noise: float, stage: Stage = MAIN) -> list[Run]:
        """Returns one run per direction, each from a proposal chosen for epsilon."""
        both = (self.at(noise, add) for add in (False, True))
        return [one.simulate(one.propose(epsilon), stage) for one in both]

    def simulate(self, proposal: Proposal, stage: Stage, count: int = 0) -> Run:
        """Returns a run of at least `count` draws from a proposal."""
        return self._collected(proposal, stage, max(count, self.num_draws), rows=1)[0]

    def largest_value(self, proposal: Proposal, epsilon: float) -> float:
        """Returns a guaranteed upper bound on all values that `Run.values` returns.

        The density of the proposal relative to the target distribution is at least
        `sum_i exp(slope_i l + offset_i)` at every loss `l`. The bound is the supremum
        over `l` of the value for this density; it decreases as `epsilon` increases.
        """
        slopes, offsets = [0.0], [math.log(proposal.shares[0])]
        for tilt, share in zip(proposal.tilts[1:], proposal.shares[1:]):
            density = self.certain_density(tilt)
            if density is not None:
                slopes.append(density[0])
                offsets.append(math.log(share) + density[1])
        beyond = np.append(0.0, _BEYOND)
        if self.releases < math.inf:
            beyond = np.append(-_BEYOND[::-1], beyond)
        terms = np.outer(slopes, epsilon + beyond) + np.array(offsets)[:, None]
        # The grid `beyond` divides the losses into cells. In each cell, including the
        # first and the last one, the weight is largest at the left end, and the excess
        # is largest at the right end.
        log_weights = np.append(-offsets[0], -np.logaddexp.reduce(terms, axis=0))
        excess = np.append(gaussian.gaussian_excess(self.releases, -beyond), 1.0)
        return float(np.max(excess * np.exp(log_weights))) * (1.0 + 1e-9)

    def propose(self, epsilon: float) -> Proposal:
        """Returns the proposal with the smallest variance in a pilot run."""
        tilts, run, ratios = self._pilot()
        shares = _least_variance(ratios, run.values(epsilon) ** 2, _DEFENSIVE)
        kept = shares >= _LEAST_SHARE
        kept[0] = True
        shares = np.where(kept, np.maximum(shares, _LEAST_SHARE), 0.0)
        return Proposal.of_shares(tilts, shares)

    def propose_for_bound(
        self, epsilon: float, log_odds: float, slack: float
    ) -> tuple[Proposal, float, int]:
        """Returns the proposal that needs the fewest draws for a confidence bound.

        A pilot run evaluates the proposals. A bound exceeds the mean by about
        `S L / N + sqrt(2 V L / N)`, where `S` is the largest possible value, `V` the
        second moment, `L` the `log_odds` and `N` the number of draws. A tilt with a
        guaranteed bound on its weights keeps `S` small; the other tilts keep `V` small.

        Args:
          epsilon: the epsilon at which a bound on delta is wanted, or the smallest of
            several.
          log_odds: `log(1 / p)` for the probability p with which the bound may fail.
          slack: amount by which the bound may exceed delta.

        Returns:
          The proposal, the largest possible value, and the number of draws needed.
        """
        target = self.pilot_tilts()[0]

        def alone(tilt: Any) -> float:
            proposal = Proposal((target, tilt), _ALMOST_CERTAIN)
            return self.largest_value(proposal, epsilon)

        certain = min(self.certain_tilts(), key=alone)
        tilts, run, ratios = self._pilot(more=(certain,))
        squares = run.values(epsilon) ** 2
        steady = _least_variance(ratios, squares, _LEAST_TARGET)
        first, last = np.eye(len(tilts))[[0, -1]]

        def candidate(share: float, part: float) -> tuple[Proposal, float, int]:
            shares = share * first
            shares = shares + (1.0 - share) * (part * last + (1.0 - part) * steady)
            kept = shares >= _LEAST_KEPT
            kept[0] = True
            shares = np.where(kept, shares, 0.0) / shares[kept].sum()
            proposal = Proposal.of_shares(tilts, shares)
            largest = self.largest_value(proposal, epsilon)
            moment = float((squares / (shares @ ratios)).mean())
            root = math.sqrt(2.0 * moment * log_odds)
            reached = root + math.sqrt(root**2 + 4.0 * largest * log_odds * slack)
            return proposal, largest, math.ceil((reached / (2.0 * slack)) ** 2)

        pairs = itertools.product(_TARGET_SHARES, _CERTAIN_PARTS)
        return min((candidate(*pair) for pair in pairs), key=lambda c: c[2])

    def bound_runs(
        self, epsilon: float, noise: float, beta: float, aim: float, stage: Stage
    ) -> list[tuple[Run, float, float]]:
        """Returns (run, largest value, failure probability) for each direction.

        No value of the run is above the largest value, for any epsilon >= `epsilon`.
        The failure probabilities add up to `beta`. The number of draws is chosen so
        that a bound on delta exceeds a delta of `aim` by about `BOUND_SLACK * aim`.

        Raises:
          TooManyDraws: if a run would need too many draws.
        """
        rough = [run.estimate(epsilon) for run in self.rough_runs(noise)]
        minor = int(rough[0] > rough[1])
        runs = []
        for add in (False, True):
            part = beta * (_MINOR_PART if add == minor else 1.0 - _MINOR_PART)
            # `betting_upper_bound` divides the wealth among several bets, which costs a
            # factor of 2.
            log_odds, there = math.log(2.0 / part), self.at(noise, add)
            proposal, largest, count = there.propose_for_bound(
                epsilon, log_odds, BOUND_SLACK * aim
            )
            if not (
                count <= _LARGEST_BOUND_DRAWS
                and count * self._entries <= _LARGEST_BOUND_ENTRIES
            ):
                raise TooManyDraws(
                    f"A bound at delta = {aim:.3g} and confidence 1 - {beta:.2g} would "
                    f"take {count:.3g} draws of {self._entries} numbers. Use a larger "
                    f"delta or an estimate (confidence=None)."
                )
            runs.append((there.simulate(proposal, stage, count), largest, part))
        return runs

    def _pilot(
        self, is_rough: bool = False, more: tuple[Any, ...] = ()
    ) -> tuple[tuple[Any, ...], Run, np.ndarray]:
        """Makes a pilot run; returns its tilts, its draws, and density ratios.

        The draws come from all tilts in equal shares. The ratios, shape [T, N], are the
        densities of the T tilts relative to this mixture.
        """
        tilts = (*self.pilot_tilts(is_rough), *more)
        even = Proposal(tilts, np.full(len(tilts), 1.0 / len(tilts)))
        count = self._pilot_draws[is_rough] * len(tilts)
        run, ratios = self._collected(even, PILOT, count, rows=len(tilts))
        return tilts, run, np.exp(ratios)

    def _collected(
        self, proposal: Proposal, stage: Stage, count: int, rows: int
    ) -> tuple[Run, np.ndarray]:
        """Returns a run of `count` draws, and log densities relative to the proposal.

        The log densities have shape [rows, count]: one row for each of the first `rows`
        components, of which the first one is the target distribution.
        """
        log_shares = np.log(np.asarray(proposal.shares))[:, None]
        losses, ratios = np.empty(count), np.empty((rows, count))
        start = 0
        for drawn, densities in self.chunks(proposal, stage, count):
            if not (np.all(np.isfinite(drawn)) and np.all(np.isfinite(densities))):
                raise ArithmeticError("The simulation of the privacy loss overflowed.")
            part = slice(start, start + drawn.size)
            mixed = np.logaddexp.reduce(densities + log_shares, axis=0)
            losses[part], ratios[:, part] = drawn, densities[:rows] - mixed
            start += drawn.size
        return Run(-losses if self.add else losses, ratios[0], self.releases), ratios


def _least_variance(
    ratios: np.ndarray, squares: np.ndarray, defensive: float
) -> np.ndarray:
    """Returns the shares of T components that minimize a second moment, shape [T].

    Multiplicative updates minimize `mean(squares / (shares @ ratios))`, which is a
    convex problem. The first share stays >= `defensive`.

    Args:
      ratios: density of each component relative to the pilot run, shape [T, N].
      squares: squared values of the pilot run, shape [N]. If all squares are 0, the
        result is equal shares.
      defensive: the minimum of the first share, in (0, 1).
    """
    shares = np.full(len(ratios), 1.0 / len(ratios))
    if not np.any(squares > 0.0):
        return shares
    squares = squares / squares.max()
    for _ in range(_UPDATES):
        gradient = (ratios * (squares / (shares @ ratios) ** 2)).mean(axis=1)
        shares = shares * np.sqrt(gradient)
        shares = shares / shares.sum()
        if shares[0] < defensive and shares.sum() > shares[0]:
            shares[1:] *= (1.0 - defensive) / shares[1:].sum()
            shares[0] = defensive
    return shares
