"""The simulator for b-min-sep sampling: tilts, draws and guaranteed bounds on weights.

The simulator uses importance sampling: it draws from mixtures of tilts, and weights
each draw by a ratio of densities. Tilts are modified forms of the simulated
distribution. Forward passes compute the densities. The following symbols are defined in
`b_min_sep_passes`: S is the set of steps at which an example takes part, `P(S)` its
probability, `m_S` the mean of the output `y` given S, and sigma the noise level. `P` is
the distribution of the output with the example, and `Q` without it. `L = dP/dQ` is the
likelihood ratio, and `m = sum_S P(S) m_S` the expected mean. For the direction
"remove", a tilt is `P` with larger means and more participations. For "add", a tilt is
`Q` with the mean moved from 0 to `-t m` for some t >= 0.

If participations are rare, outputs with large privacy losses look like draws with few
participations but much larger means. `rare_tilts` returns tilts for this case. They
approximate the distribution whose density relative to `P` is proportional to `L^theta`,
for some theta > 0. The approximation treats the steps as sampled independently.

A confidence bound on delta needs a guaranteed bound on the weights. Let
`v_S = exp(<m_S, y> / sigma^2 - |m_S|^2 / (2 sigma^2))` be the likelihood ratio given S,
so that `L = sum_S P(S) v_S`:

- "remove": the tilt draws S with the probability `P(S) w_S / Z`, where
  `w_S = exp(t (1 + t) |m_S|^2 / (2 sigma^2))` and `Z` is the sum of all `P(S) w_S`. The
  means of the tilt are `(1 + t) m_S`. The density of the tilt relative to Q is
  `sum_S P(S) v_S^(1 + t) / Z >= L^(1 + t) / Z` (power mean inequality). Therefore the
  density of the tilt relative to P is at least `exp(t l) / Z` at the loss `l = log L`.
  As `|m_S|^2` is a sum over the steps of S, one forward pass computes `Z`, and another
  pass draws S.
- "add": `log L >= sum_S P(S) log v_S` (Jensen's inequality). The tilt has the mean
  `-t m`. The density of the tilt relative to Q is
  `exp(-t <m, y> / sigma^2 - t^2 |m|^2 / (2 sigma^2))`, which is at least
  `exp(t (l - sum_S P(S) |m_S|^2 / (2 sigma^2)) - t^2 |m|^2 / (2 sigma^2))` at the loss
  `l = -log L`.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tf_bandmf.accounting.b_min_sep_passes import Passes
from tf_bandmf.accounting.simulator import MAIN, PILOT, Proposal, Simulator, Stage

# _CHUNK is the maximum number of random numbers in a chunk of draws. Chunks with at
# most _KEPT_ENTRIES random numbers are cached for use at other noise levels. Chunks are
# large because a step of a forward pass takes little longer for many draws than for
# few.
_CHUNK = _KEPT_ENTRIES = 20_000_000
# The tilts of `certain_tilts` shift the draws by these numbers of standard deviations.
# For "add", there are also tilts with 4 and 16 times these shifts.
_CERTAIN_STRENGTHS = tuple(
    s / 20 for s in (2, 4, 7, 10, 15, 20, 25, 30, 40, 50, 60, 80, 120)
)


# Settings of a pilot run. In a pair, the first entry is for a pilot run and the second
# for a rough pilot run.
# _PILOT_DRAWS: the number of draws per tilt.
# _LENGTHS ("remove" only): the numbers of standard deviations by which tilts shift the
# draws along the mean `m_S`.
# _RATES ("remove" only): the factors by which tilts increase the probability p of a
# participation.
# _RARITIES ("remove" only): the argument `rarities` of `rare_tilts`.
# _AGAINST ("add" only): the numbers of standard deviations by which tilts shift the
# draws opposite to the expected mean.
_PILOT_DRAWS = 150, 200
_LENGTHS = (0.0, 1.5, 3.5)
_RATES = (1.0, 1.5, 2.5), (1.0, 2.0)
_AGAINST = (0.0, 1.0, 2.0, 3.0, 4.5, 6.0), (0.0, 1.5, 3.5, 6.0)
_RARITIES = (2.0, 5.0, 9.0, 14.0, 21.0, 30.0, 42.0), (4.0, 11.0, 20.0, 36.0)
# For `rare_tilts`: the range of log theta, the number of bisection steps, and the
# number of nodes of the numerical integration.
_LOG_THETAS, _BISECTIONS, _NODES = (-4.0, 8.0), 24, 1000


# N draws in a form that does not depend on the noise level or on the scales of tilts:
# 1. the index of each draw's tilt, shape [N];
# 2. `<c_t, z>` for the column `c_t` of C and standard normal noise z, shape [N, n];
# 3. for "remove", `<c_t, m_S>` for the sum m_S of the columns of C at the drawn
#    participations, shape [N, n]; for "add", `<c_t, m>` for the expected mean m, shape
#    [1, n].
_Draws = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Tilt:
    """One component of a proposal distribution for importance sampling.

    Attributes:
      scale: for "remove", the tilt multiplies the mean of the output, given the drawn
        participations, by `scale`. For "add", the mean of the output is `scale` (<= 0)
        times the expected mean with the example.
      probability: for "remove", the probability with which the tilt draws a
        participation at a step at which the example does not rest.
      is_weighted: for "remove", True if the tilt weights the probabilities of the sets
        of participations, so that its density has a guaranteed lower bound.
    """

    scale: float
    probability: float
    is_weighted: bool = False


class BMinSepSimulator(Simulator):
    """Simulates the privacy loss of b-min-sep sampling for "add" and "remove".

    Args:
      passes: draws participations and computes likelihood ratios for the strategy.
      num_draws: number of draws per direction in a main run.
      seed: equal seeds give equal draws.
    """

    def __init__(self, passes: Passes, num_draws: int, seed: int) -> None:
        super().__init__(passes.num_steps, num_draws, _PILOT_DRAWS, seed)
        self.passes = passes
        self._kept: dict[tuple[Stage, bool], tuple[Any, _Draws, Any]] = {}

    def certain_tilts(self) -> list[Tilt]:
        p, unit = self.passes.probability, self._unit
        if self.add:
            factors = (1, 4, 16)
            return [Tilt(-f * s * unit, p) for s in _CERTAIN_STRENGTHS for f in factors]
        return [Tilt(1.0 + s * unit, p, True) for s in _CERTAIN_STRENGTHS]

    def certain_density(self, tilt: Tilt) -> tuple[float, float] | None:
        if self.add and tilt.scale < 0.0:
            t, expected = -tilt.scale, self.passes.rate * self.passes.squares.sum()
            return t, -0.5 * t * (expected / self.noise**2 + t * self._squared)
        return (tilt.scale - 1.0, -self._log_total(tilt)) if tilt.is_weighted else None

    @property
    def _squared(self) -> float:
        """The squared norm of the expected mean m, divided by the noise variance."""
        return float(self.passes.mean @ self.passes.mean) / self.noise**2

    @property
    def _unit(self) -> float:
        """The change of a tilt's scale that moves draws by one standard deviation."""
        if self.add:
            return 1.0 / math.sqrt(self._squared)
        expected = self.passes.rate * self.passes.squares.sum()
        return self.noise / math.sqrt(max(expected, self.passes.squares.max()))

    def _log_weights(self, tilt: Tilt) -> np.ndarray:
        """Returns the log weight of each step, shape [n].

        A weighted tilt multiplies the probability of a set of participations by the
        product of the weights of the steps in this set.
        """
        moved = 0.5 * tilt.scale * (tilt.scale - 1.0) / self.noise**2
        return moved * self.passes.squares

    def _log_total(self, tilt: Tilt) -> float:
        """Returns the log of the sum of a tilt's probabilities before normalization."""
        weights = self._log_weights(tilt)[None]
        return float(self.passes.log_ratios(weights, [self.passes.probability])[0, 0])

    def pilot_tilts(self, is_rough: bool = False) -> list[Tilt]:
        passes, p, unit = self.passes, self.passes.probability, self._unit
        if self.add:
            return [Tilt(-s * unit, p) for s in _AGAINST[is_rough]]
        most = 0.5 * (1 + p)
        rates = {min(factor * p, most) for factor in _RATES[is_rough]}
        tilts = {Tilt(1.0 + s * unit, rate) for s in _LENGTHS for rate in rates}
        column = math.sqrt(float(passes.squares.mean())) / self.noise
        rare = rare_tilts(passes.rate, column, passes.num_steps, _RARITIES[is_rough])
        tilts |= {Tilt(scale, min(factor * p, most)) for scale, factor in rare}
        target = Tilt(1.0, p)
        return sorted(tilts, key=lambda t: (t != target, t.scale, t.probability))

    def chunks(
        self, proposal: Proposal, stage: Stage, count: int
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        passes, tilts, noise = self.passes, proposal.tilts, self.noise
        size = max(1, _CHUNK // passes.num_steps)
        half = 0.5 * passes.squares / noise**2
        scales = np.array([tilt.scale for tilt in tilts])
        for index, start in enumerate(range(0, count, size)):
            number = min(size, count - start)
            choice, normals, means = self._draws(proposal, stage, index, number)
            # The arrays are transposed so that the values of a step are adjacent in
            # memory.
            log_v = np.multiply(normals.T, 1.0 / noise, dtype=np.float64)
            log_v -= half[:, None]
            log_v += means.T * (scales[choice] / noise**2)
            if self.add:
                # The expected mean is `passes.rate` times the sum of C's columns.
                along = passes.rate * (log_v.sum(axis=0) + half.sum())
                densities = np.outer(scales, along)
                densities -= 0.5 * self._squared * scales[:, None] ** 2
                losses = passes.log_ratios(log_v.T, [passes.probability])[0]
            else:
                densities = self._densities(tilts, log_v, half)
                losses = densities[0].copy()
            yield losses, densities

    def _densities(
        self, tilts: Sequence[Tilt], log_v: np.ndarray, half: np.ndarray
    ) -> np.ndarray:
        """Returns the log densities of "remove" tilts relative to Q, shape [T, N].

        Args:
          tilts: tilts of the proposal; tilts with equal scales must be adjacent.
          log_v: `<c_t, y> / sigma^2 - |c_t|^2 / (2 sigma^2)` for each column `c_t` of
            C and each draw y, where sigma is the noise; shape [n, N].
          half: `|c_t|^2 / (2 sigma^2)` for each column, shape [n].

        Returns:
          The log densities of T tilts at N draws.
        """
        exponents, densities = np.empty_like(log_v), []
        for _, alike in itertools.groupby(tilts, lambda t: (t.scale, t.is_weighted)):
            tilt, *others = alike
            np.multiply(log_v, tilt.scale, out=exponents)
            if not tilt.is_weighted:
                # The exponents are scale * (log_v + half) - scale^2 * half.
                exponents -= (tilt.scale * (tilt.scale - 1.0) * half)[:, None]
            rates = [one.probability for one in (tilt, *others)]
            total = self._log_total(tilt) if tilt.is_weighted else 0.0
            densities.append(self.passes.log_ratios(exponents.T, rates) - total)
        return np.concatenate(densities)

    def _draws(
        self, proposal: Proposal, stage: Stage, index: int, number: int
    ) -> _Draws:
        """Returns the random numbers of one chunk of draws, cached ones if possible."""
        tilts, passes = proposal.tilts, self.passes
        rates = np.array([tilt.probability for tilt in tilts])
        key = (index, number, rates.tobytes(), proposal.shares.tobytes())
        kept = self._kept.get((stage, self.add))
        if kept is not None and kept[0] == key:
            return kept[1]
        # A pilot run only chooses the mixture for the main run, so its draws are stored
        # in single precision, which needs half as much memory as double precision.
        kind = np.float32 if stage == PILOT else np.float64
        generator = self.generator(*stage, int(self.add), index)
        choice = proposal.choose(generator, number)
        if kept is not None and kept[0][:2] == key[:2]:
            # The cached draws are for a proposal with other tilts or shares, but their
            # normals can be reused: `choose` always takes the same number of random
            # numbers, so the generator would return the same normals again.
            normals, generator.bit_generator.state = kept[1][1], kept[2]
        else:
            normals = generator.standard_normal((number, passes.num_steps))
            normals = passes.inner_products(normals).astype(kind, copy=False)
        state = generator.bit_generator.state
        means = passes.mean[None]
        if not self.add:
            means = passes.draw(generator, rates[choice])
            for which, tilt in enumerate(tilts):
                rows = np.flatnonzero(choice == which)
                if tilt.is_weighted and rows.size:
                    weights = self._log_weights(tilt)
                    means[rows] = passes.draw_weighted(generator, rows.size, weights)
        means = passes.inner_products(means).astype(kind, copy=False)
        # Draws of weighted tilts are not cached, because their weights depend on the
        # noise.
        is_weighted = any(tilt.is_weighted for tilt in tilts)
        is_small = number * passes.num_steps <= _KEPT_ENTRIES
        if is_small and not is_weighted and stage in (PILOT, MAIN):
            self._kept[stage, self.add] = key, (choice, normals, means), state
        return choice, normals, means


def rare_tilts(
    rate: float, unit: float, num_steps: int, rarities: Sequence[float]
) -> list[tuple[float, float]]:
    """Returns tilts for large losses if participations are rare.

    Let `P` be the distribution of the output with the example, `Q` the distribution
    without it, and `L = dP/dQ`. For theta > 0, large losses are typical under the
    distribution whose density relative to `P` is proportional to `L^theta`. A tilt
    approximates this distribution as if the n steps were sampled independently.

    For one step, `L(x) = 1 - q + q exp(u x - u^2 / 2)`, where x is standard normal
    under Q. Let `K(theta)` be the logarithm of the mean of `L(x)^theta` under P. For
    each r in `rarities`, theta is the solution of `n (theta K'(theta) - K(theta)) = r`.
    The losses that are typical for this theta have a probability of about `exp(-r)`
    under P. The tilt of one step is a mixture of a standard normal distribution and a
    shifted one, with the same first two moments as the approximated distribution. The
    weight of the shifted one is q times a power of 2, so that the weight does not
    change if the noise changes a little.

    Args:
      rate: q, the probability that an example takes part at a given step.
      unit: u, the norm of a column of C divided by sigma.
      num_steps: n.
      rarities: the values of r, which determine the probabilities `exp(-r)`.

    Returns:
      A list with at most one pair for each rarity. A pair consists of the `scale` of a
      tilt, and the factor by which the tilt increases the probability of a
      participation.
    """
    leave = math.log1p(-rate) if rate < 1.0 else -math.inf
    wanted = np.array(rarities)
    lower, upper = np.full((2, wanted.size), np.array(_LOG_THETAS)[:, None])
    for _ in range(_BISECTIONS):
        middle = 0.5 * (lower + upper)
        theta = np.exp(middle)[:, None]
        x = np.linspace(0.0, 1.0, _NODES) * (18.0 + (1.0 + theta) * unit) - 9.0
        loss = np.logaddexp(leave, math.log(rate) + unit * x - 0.5 * unit**2)
        exponents = (1.0 + theta) * loss - 0.5 * x**2
        totals = np.logaddexp.reduce(exponents, axis=1)
        weights = np.exp(exponents - totals[:, None])
        totals += np.log((x[:, 1] - x[:, 0]) / math.sqrt(2.0 * math.pi))
        means = (weights * loss).sum(axis=1)
        is_rarer = num_steps * (theta[:, 0] * means - totals) > wanted
        lower = np.where(is_rarer, lower, middle)
        upper = np.where(is_rarer, middle, upper)
    first, second = (weights * x).sum(axis=1), (weights * x**2).sum(axis=1) - 1.0
    tilts = []
    for moved, spread in zip(first, second):
        if moved > 0.0 and spread > 0.0:
            share = min(moved**2 / spread, 1.0)
            factor = 2.0 ** round(math.log2(share / rate))
            scale = min(moved / (factor * rate), spread / moved) / unit
            tilts.append((max(float(scale), 1.0), factor))
    return tilts
