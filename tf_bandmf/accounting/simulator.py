"""The base class of simulators, which draw privacy losses by importance sampling.

In a simulation, P is the distribution of a mechanism's output with an example, and Q is
the distribution without it. The target distribution is P for the direction of adjacency
"remove", and Q for "add". Instead of the target distribution, a simulator draws from a
proposal, a mixture of the target distribution and of tilts. A tilt is the target
distribution, modified so that large privacy losses occur more often. The weight of a
draw is the density of the target distribution relative to the proposal.

A pilot run chooses the proposal for the main run. For an estimate of delta, it chooses
the mixture that gives the estimate the smallest variance. For a confidence bound, it
chooses the mixture that needs the fewest draws. A bound also needs an upper limit on
the weights. Tilts with a guaranteed lower bound on their density provide this limit.
The methods for such tilts have "certain" in their names.
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

# The stages of a simulation are the pilot run, the main run, and checks with fresh
# draws. The i-th check is the stage (CHECK, i). Each stage has its own random numbers.
PILOT, MAIN, CHECK = (0, 0), (1, 0), 2
Stage = tuple[int, int]

# The amount by which a confidence bound may exceed delta, as a fraction of delta.
BOUND_SLACK = 0.3
# The fraction of a bound's failure probability that is assigned to the direction ("add"
# or "remove") with the smaller delta.
_MINOR_PART = 0.1
_LARGEST_BOUND_DRAWS, _LARGEST_BOUND_ENTRIES = 5e7, 2e10
# In the mixture for an estimate, tilts that would get less than the share _LEAST_SHARE
# of the draws are omitted. The target distribution gets at least the share _DEFENSIVE,
# in case the pilot run is misleading.
_LEAST_SHARE, _DEFENSIVE = 0.02, 0.1
_ALMOST_CERTAIN = np.array([0.01, 0.99])
# For a bound, `propose_for_bound` tries several ways to divide the draws:
# - The target distribution gets one of the shares _TARGET_SHARES of the draws.
# - A tilt from `certain_tilts` gets one of the fractions _CERTAIN_PARTS of the rest.
# - The result of `_least_variance`, a mixture of all tilts, gets all other draws. In
#   this mixture, the target distribution has at least the share _LEAST_TARGET.
# Tilts that would get less than the share _LEAST_KEPT in total are omitted.
_TARGET_SHARES = (0.01, 0.05, 0.2, 0.5, 0.9)
_CERTAIN_PARTS = (0.0, 0.2, 0.4, 0.6, 0.75, 0.85, 0.95, 1.0)
_LEAST_TARGET = _LEAST_KEPT = 0.01
# The number of times that `_least_variance` updates the shares of a mixture.
_UPDATES = 100
# The values of `loss - epsilon` at which `largest_value` evaluates the weight of a
# draw.
_BEYOND = np.geomspace(1e-4, 60.0, 4000)

Self = TypeVar("Self", bound="Simulator")


class TooManyDraws(ValueError):
    """Raised if a simulated bound would take too many draws."""


@dataclasses.dataclass(frozen=True)
class Proposal:
    """A mixture of distributions from which a simulator draws (importance sampling).

    Attributes:
      tilts: the components of the mixture. The first one is the target distribution.
      shares: the share of the draws for each component, shape [len(tilts)]. The sum is
        1, and the first share is positive.
    """

    tilts: tuple[Any, ...]
    shares: np.ndarray

    def choose(self, generator: np.random.Generator, count: int) -> np.ndarray:
        """Chooses a component for each of `count` draws; returns indices of `tilts`."""
        shares = np.asarray(self.shares) / np.sum(self.shares)
        return generator.choice(len(self.tilts), count, p=shares)

    @classmethod
    def of_shares(cls, tilts: Sequence[Any], shares: np.ndarray) -> Proposal:
        """Returns a proposal of the tilts that have a positive share."""
        positive = shares > 0.0
        chosen = tuple(tilt for tilt, keep in zip(tilts, positive) if keep)
        return cls(chosen, shares[positive] / shares[positive].sum())


class Simulator(abc.ABC):
    """Simulates the privacy loss of one strategy under one sampler.

    Only a simulator that the method `at` returns can draw, because only such a
    simulator has a noise level and a direction of adjacency.

    Args:
      entries: number of random numbers per draw.
      num_draws: number of draws per direction in a main run.
      pilot_draws: two numbers of draws per tilt, for a pilot run and for a rough pilot
        run.
      seed: equal seeds give equal draws.

    Attributes:
      noise: sigma, the noise level on the raw `C` (not scaled to sensitivity 1).
      add: False for the direction "remove" (the target distribution is P), True for
        "add" (it is Q).
      releases: the joint noise multiplier of other Gaussian releases, as in `Run`.
    """

    # The method `at` sets `noise` and `add` of the copy that it returns.
    noise: float
    add: bool
    releases = math.inf

    def __init__(
        self, entries: int, num_draws: int, pilot_draws: tuple[int, int], seed: int
    ) -> None:
        self.num_draws, self.seed = num_draws, seed
        self._entries, self._pilot_draws = entries, pilot_draws

    def at(self: Self, noise: float, add: bool) -> Self:
        """Returns a copy for this noise and direction; both share the cached draws."""
        there = copy.copy(self)
        there.noise, there.add = noise, add
        return there

    @abc.abstractmethod
    def pilot_tilts(self, is_rough: bool = False) -> list[Any]:
        """Returns the components of the mixture from which a pilot run draws.

        The first one is the target distribution, and the others are tilts.
        """

    @abc.abstractmethod
    def certain_tilts(self) -> list[Any]:
        """Returns tilts for which `certain_density` returns a lower bound."""

    @abc.abstractmethod
    def certain_density(self, tilt: Any) -> tuple[float, float] | None:
        """Returns slope (> 0) and offset of a lower bound on a tilt's density, or None.

        At every output with the privacy loss `l`, the density of the tilt relative to
        the target distribution is at least `exp(slope * l + offset)`. The result is
        None if no such bound is known.
        """

    @abc.abstractmethod
    def chunks(
        self, proposal: Proposal, stage: Stage, count: int
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields `count` draws in chunks of (`log dP/dQ`, log densities of the tilts).

        For a chunk of N draws and T tilts, `log dP/dQ` has the shape [N]. It is the
        privacy loss for "remove", and minus the privacy loss for "add". The log
        densities of the tilts are relative to Q and have the shape [T, N].
        """

    def generator(self, *which: int) -> np.random.Generator:
        """Returns the random generator for a stage, direction and chunk.

        Args:
          which: integers that identify the stage, the direction and the chunk.
        """
        # SFC64 is twice as fast as NumPy's default. These random numbers need not be
        # secret.
        seed = np.random.SeedSequence([self.seed, *which])
        return np.random.Generator(np.random.SFC64(seed))

    def rough_runs(self, noise: float) -> list[Run]:
        """Returns a short run for each direction, with draws that suit any epsilon."""
        return [self.at(noise, add)._pilot(is_rough=True)[1] for add in (False, True)]

    def runs(self, epsilon: float, noise: float, stage: Stage = MAIN) -> list[Run]:
        """Returns a run for each direction, from the best proposal for this epsilon."""
        both = (self.at(noise, add) for add in (False, True))
        return [one.simulate(one.propose(epsilon), stage) for one in both]

    def simulate(self, proposal: Proposal, stage: Stage, count: int = 0) -> Run:
        """Returns a run of at least `count` draws from the proposal's mixture."""
        return self._collected(proposal, stage, max(count, self.num_draws), rows=1)[0]

    def largest_value(self, proposal: Proposal, epsilon: float) -> float:
        """Returns a guaranteed upper bound on `Run.values` for draws from the proposal.

        At every privacy loss `l`, the density of the proposal relative to the target
        distribution is at least `sum_i share_i exp(slope_i l + offset_i)`. Slopes and
        offsets come from `certain_density`; both are 0 for the target distribution. If
        the density equals this lower bound, a draw with the loss `l` has the largest
        possible value. The result bounds this value for all `l`, and decreases as
        `epsilon` increases.
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
        # A value is a weight times an excess, where the excess is the expectation of
        # (1 - exp(epsilon - loss))_+ over the other releases. The grid `beyond` divides
        # the range of `loss - epsilon` into cells. In each cell, the weight is largest
        # at the left end, and the excess is largest at the right end. This also holds
        # for the unbounded first and last cells.
        log_weights = np.append(-offsets[0], -np.logaddexp.reduce(terms, axis=0))
        excess = np.append(gaussian.gaussian_excess(self.releases, -beyond), 1.0)
        return float(np.max(excess * np.exp(log_weights))) * (1.0 + 1e-9)

    def propose(self, epsilon: float) -> Proposal:
        """Returns the proposal that estimates delta with the least variance.

        A pilot run estimates the variance of each proposal.
        """
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

        A pilot run evaluates several proposals. Each draw has a value whose mean is
        delta. A confidence bound that is computed from N values exceeds delta by about
        `S L / N + sqrt(2 V L / N)`, where `S` is the maximum possible value, `V` the
        second moment of the values, and `L` the `log_odds`. A tilt with a guaranteed
        bound on its density keeps `S` small; the other tilts keep `V` small.

        Args:
          epsilon: the epsilon of the bound on delta, or the smallest epsilon if there
            are several bounds.
          log_odds: `log(1 / p)` for the probability p with which the bound may fail.
          slack: the amount by which the bound may exceed delta.

        Returns:
          The proposal, the maximum possible value, and the number of draws needed.
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
        """Returns (run, maximum value, failure probability) for each direction.

        For any e >= `epsilon`, none of the run's `values(e)` is above the maximum
        value. The failure probabilities of the two directions add up to `beta`. The
        number of draws is chosen so that, if delta is `aim`, a bound exceeds it by
        about `BOUND_SLACK * aim`.

        Raises:
          TooManyDraws: if a run would need too many draws.
        """
        rough = [run.estimate(epsilon) for run in self.rough_runs(noise)]
        minor = int(rough[0] > rough[1])
        runs = []
        for add in (False, True):
            part = beta * (_MINOR_PART if add == minor else 1.0 - _MINOR_PART)
            # `betting_upper_bound` divides the initial wealth among several bets. In
            # practice, it needs about as many draws as a single bet at half of the
            # failure probability.
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
                    f"take {count:.3g} draws of {self._entries} random numbers each. "
                    f"Use a larger delta, or confidence=None for an estimate."
                )
            runs.append((there.simulate(proposal, stage, count), largest, part))
        return runs

    def _pilot(
        self, is_rough: bool = False, more: tuple[Any, ...] = ()
    ) -> tuple[tuple[Any, ...], Run, np.ndarray]:
        """Makes a pilot run; returns its T tilts, its N draws, and the density ratios.

        The pilot run draws from a mixture of all tilts, those of `pilot_tilts` and
        `more`, with equal shares. The density ratios, shape [T, N], are the densities
        of the tilts relative to this mixture.
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

        The log densities have the shape [rows, count]: one row for each of the first
        `rows` components of the proposal, starting with the target distribution.
        """
        log_shares = np.log(np.asarray(proposal.shares))[:, None]
        losses, ratios = np.empty(count), np.empty((rows, count))
        start = 0
        for drawn, densities in self.chunks(proposal, stage, count):
            if not (np.all(np.isfinite(drawn)) and np.all(np.isfinite(densities))):
                raise ArithmeticError("The privacy loss overflowed. Use more noise.")
            part = slice(start, start + drawn.size)
            mixed = np.logaddexp.reduce(densities + log_shares, axis=0)
            losses[part], ratios[:, part] = drawn, densities[:rows] - mixed
            start += drawn.size
        return Run(-losses if self.add else losses, ratios[0], self.releases), ratios


def _least_variance(
    ratios: np.ndarray, squares: np.ndarray, defensive: float
) -> np.ndarray:
    """Returns the mixture shares, shape [T], for which values have the least variance.

    Each draw has a value (`Run.values`), whose mean is delta for all shares. The second
    moment of a value is estimated by `mean(squares / (shares @ ratios))`, a convex
    function of the shares. This estimate is minimized by multiplicative updates, which
    keep the first share >= `defensive`.

    Args:
      ratios: density of each component relative to the mixture of the pilot run, at
        the N draws of the pilot run, shape [T, N].
      squares: the squared values of these draws (`Run.values`), shape [N]. If all are
        0, the shares are equal.
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
