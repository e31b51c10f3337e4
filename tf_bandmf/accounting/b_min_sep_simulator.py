"""The simulator behind b-min-sep sampling: tilts, draws and certain bounds on weights.

Draws come from mixtures of tilts; weights are ratios of forward passes. Tilts are versions
of `P` with longer means and more participations ("remove"), or of `Q`, moved against the
mean of the means ("add").

Where participations are rare, a large loss comes from few of them with much longer means:
those of `P L^theta`, as it would be if every step were sampled by itself (`rare_tilts`).

A bound needs weights that are bounded for certain. With `v_S` the likelihood ratio of the
participations S, `v_S = exp(<m_S, y> / sigma^2 - |m_S|^2 / (2 sigma^2))`, and
`L = dP/dQ = sum_S P(S) v_S`:

- "remove": means longer by `1 + t`, of participations with the law `P(S) w_S / Z`,
  `w_S = exp(t (1 + t) |m_S|^2 / (2 sigma^2))`. The density over Q is
  `sum_S P(S) v_S^(1 + t) / Z >= L^(1 + t) / Z` (power means), so that the density over P is
  at least `exp(t l) / Z` at the loss `l = log L`. As |m_S|^2 is a sum over the steps of S,
  `Z` is a forward pass, and so is the law.
- "add": `log L >= sum_S P(S) log v_S` (Jensen). The mean moved by `-t` times the mean of
  the means `m` has the density `exp(-t <m, y> / sigma^2 - t^2 |m|^2 / (2 sigma^2))` over Q,
  at least `exp(t (l - sum_S P(S) |m_S|^2 / (2 sigma^2)) - t^2 |m|^2 / (2 sigma^2))` at the
  loss `l = -log L`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

import numpy as np

from tf_bandmf.accounting.b_min_sep_passes import Passes
from tf_bandmf.accounting.simulator import MAIN, PILOT, Proposal, Simulator, Stage

# Numbers of the draws that are made at once, and draws of so many numbers are kept for the
# next noise level: a step of many draws costs little more than one of few.
_CHUNK = _KEPT_ENTRIES = 20_000_000
# Tilts with certain weights that are tried, in standard deviations of a mean.
_CERTAIN_STRENGTHS = tuple(
    s / 20 for s in (2, 4, 7, 10, 15, 20, 25, 30, 40, 50, 60, 80, 120)
)


# Of a pilot run, and of a rough one: draws of each tilt; lengths ("remove") in standard
# deviations, and multiples of p; moves of "add", in standard deviations; negative
# logarithms of probabilities of large losses ("remove").
_PILOT_DRAWS = 150, 200
_LENGTHS = (0.0, 1.5, 3.5)
_RATES = (1.0, 1.5, 2.5), (1.0, 2.0)
_AGAINST = (0.0, 1.0, 2.0, 3.0, 4.5, 6.0), (0.0, 1.5, 3.5, 6.0)
_RARITIES = (2.0, 5.0, 9.0, 14.0, 21.0, 30.0, 42.0), (4.0, 11.0, 20.0, 36.0)
# Logarithms of the exponents theta, halvings, and nodes of the integrals over one step.
_LOG_THETAS, _BISECTIONS, _NODES = (-4.0, 8.0), 24, 1000


@dataclasses.dataclass(frozen=True)
class Tilt:
    """One component of a proposal.

    Attributes:
      length: the mean is `1 + length` times that of the participations ("remove").
      probability: of a participation, in place of p ("remove").
      against: the mean moves by this many times the mean of all means ("add": negative).
      is_weighted: participations have the weights that bound the density ("remove").
    """

    length: float
    probability: float
    against: float = 0.0
    is_weighted: bool = False


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


class BMinSepSimulator(Simulator):
    """Simulates the privacy loss of b-min-sep sampling in both directions.

    Args:
      passes: of the strategy.
      num_draws: of a main run, for each direction.
      seed: equal seeds give equal draws.
    """

    def __init__(self, passes: Passes, num_draws: int, seed: int) -> None:
        super().__init__(passes.num_steps, num_draws, _PILOT_DRAWS, seed)
        self.passes = passes
        self._kept: dict[tuple[Stage, bool], tuple[object, _Draws]] = {}

    def certain_tilts(self) -> list[Tilt]:
        p, unit = self.passes.probability, self._unit
        if self.add:
            return [
                Tilt(0.0, p, -factor * s * unit)
                for s in _CERTAIN_STRENGTHS
                for factor in (1, 4, 16)
            ]
        return [Tilt(s * unit, p, is_weighted=True) for s in _CERTAIN_STRENGTHS]

    def certain_density(self, tilt: Tilt) -> tuple[float, float] | None:
        passes, t = self.passes, tilt.length
        if self.add and tilt.against < 0.0:
            t = -tilt.against
            half = 0.5 * passes.rate * float(passes.squares.sum())
            squared = 0.5 * float(passes.mean @ passes.mean)
            return t, -(t * half + t**2 * squared) / self.noise**2
        return (t, -self._log_total(t)) if tilt.is_weighted else None

    @property
    def _unit(self) -> float:
        """The tilt by a standard deviation: of all, or of a typical sum of columns."""
        passes = self.passes
        if self.add:
            return self.noise / math.sqrt(float(passes.mean @ passes.mean))
        expected = float(passes.rate * passes.squares.sum())
        return self.noise / math.sqrt(max(expected, passes.squares.max()))

    def _log_weights(self, length: float) -> np.ndarray:
        """Log weights of a participation at each step under a tilt, shape [n]."""
        return 0.5 * length * (1.0 + length) * self.passes.squares / self.noise**2

    def _log_total(self, length: float) -> float:
        """Log of `Z`."""
        weights = self._log_weights(length)
        return float(self.passes.log_ratio(weights[None], self.passes.probability)[0])

    def pilot_tilts(self, is_rough: bool = False) -> list[Tilt]:
        passes = self.passes
        p, unit = passes.probability, self._unit
        if self.add:
            return [Tilt(0.0, p, -s * unit) for s in _AGAINST[is_rough]]
        most = 0.5 * (1 + p)
        rates = {min(factor * p, most) for factor in _RATES[is_rough]}
        tilts = {Tilt(s * unit, rate) for s in _LENGTHS for rate in rates}
        column = math.sqrt(float(passes.squares.mean())) / self.noise
        rare = rare_tilts(passes.rate, column, passes.num_steps, _RARITIES[is_rough])
        for length, factor in rare:
            tilts.add(Tilt(length, min(factor * p, most)))
        target = Tilt(0.0, p)
        return sorted(
            tilts, key=lambda tilt: (tilt != target, tilt.length, tilt.probability)
        )

    def chunks(
        self, proposal: Proposal, stage: Stage, count: int
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        passes, tilts, noise = self.passes, proposal.tilts, self.noise
        size = max(1, _CHUNK // passes.num_steps)
        half = 0.5 * passes.squares / noise**2
        for index, start in enumerate(range(0, count, size)):
            number = min(size, count - start)
            draws = self._draws(proposal, stage, index, number)
            # Step by step in memory.
            log_v = np.multiply(draws.normals.T, 1.0 / noise, dtype=np.float64)
            log_v -= half[:, None]
            scratch = np.empty_like(log_v)
            if self.add:
                moved = np.array([tilt.against for tilt in tilts])[draws.choice]
                shift = passes.inner_products(passes.mean[None])[0] / noise**2
                np.multiply(shift[:, None], moved, out=scratch)
            else:
                assert draws.means is not None
                lengths = 1.0 + np.array([tilt.length for tilt in tilts])[draws.choice]
                np.multiply(draws.means.T, lengths / noise**2, out=scratch)
            log_v += scratch
            densities = np.empty((len(tilts), number))
            if self.add:
                losses = passes.log_ratio(log_v.T, passes.probability)
                squared = float(passes.mean @ passes.mean) / noise**2
                along = draws.along / noise + moved * squared
                for row, tilt in zip(densities, tilts):
                    row[:] = tilt.against * along - 0.5 * tilt.against**2 * squared
            else:
                for rows, found in self._densities(tilts, log_v, half, scratch):
                    densities[rows] = found
                losses = densities[0].copy()
            yield losses, densities

    def _densities(
        self,
        tilts: Sequence[Tilt],
        log_v: np.ndarray,
        half: np.ndarray,
        scratch: np.ndarray,
    ) -> Iterator[tuple[list[int], np.ndarray]]:
        """Log densities of "remove" relative to Q, of tilts with the same length at once.

        Args:
          tilts: of the proposal.
          log_v: shape [n, N].
          half: `|c_t|^2 / (2 sigma^2)`, shape [n].
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
                found -= self._log_total(length)
            yield rows, found

    def _draws(
        self, proposal: Proposal, stage: Stage, index: int, number: int
    ) -> _Draws:
        """Random numbers of one chunk; the last ones are kept for other noise levels."""
        rates = tuple(tilt.probability for tilt in proposal.tilts)
        key = (index, number, rates, proposal.shares.tobytes())
        kept = self._kept.get((stage, self.add))
        if kept is not None and kept[0] == key:
            return kept[1]
        tilts, n = proposal.tilts, self.passes.num_steps
        generator = self.generator(*stage, int(self.add), index)
        choice = proposal.choose(generator, number)
        z = generator.standard_normal((number, n))
        # Pilot runs only choose: single precision keeps as many draws in half the memory.
        kind = np.float32 if stage == PILOT else np.float64
        along = z @ self.passes.mean
        normals = self.passes.inner_products(z).astype(kind, copy=False)
        del z
        means = None
        if not self.add:
            means = self._means(generator, tilts, choice)
            means = self.passes.inner_products(means).astype(kind, copy=False)
        found = _Draws(choice, normals, along, means)
        # Weights of participations depend on the noise.
        is_weighted = any(tilt.is_weighted for tilt in tilts)
        if not is_weighted and stage in (PILOT, MAIN) and number * n <= _KEPT_ENTRIES:
            self._kept[stage, self.add] = key, found
        return found

    def _means(
        self,
        generator: np.random.Generator,
        tilts: Sequence[Tilt],
        choice: np.ndarray,
    ) -> np.ndarray:
        """Means of participations as the chosen tilts have them, shape [N, n]."""
        rates = np.array([tilt.probability for tilt in tilts])[choice]
        found = self.passes.draw(generator, rates)
        for index, tilt in enumerate(tilts):
            rows = np.flatnonzero(choice == index)
            if tilt.is_weighted and rows.size:
                weights = self._log_weights(tilt.length)
                found[rows] = self.passes.draw_weighted(generator, rows.size, weights)
        return found


def rare_tilts(
    rate: float, unit: float, num_steps: int, rarities: Sequence[float]
) -> list[tuple[float, float]]:
    """Lengths, and factors of the rate, of `P L^theta` for steps that are independent.

    With `L(x) = 1 - q + q exp(u x - u^2 / 2)` for one step, at a unit normal `x`, and
    `K(theta) = log E L^(1 + theta)`, losses as under theta have about the probability
    `exp(-num_steps (theta K' - K))`. A step of that law has the first two moments of a
    normal variable that is moved by some length with some probability. Factors are powers
    of 2, so that they stay the same when the noise changes a little.

    Args:
      rate: q.
      unit: u, the norm of a column over sigma.
      num_steps: n.
      rarities: negative logarithms of probabilities.
    """
    leave = math.log1p(-rate) if rate < 1.0 else -math.inf
    wanted = np.array(rarities)
    lower, upper = np.full((2, wanted.size), np.array(_LOG_THETAS)[:, None])
    for _ in range(_BISECTIONS):
        theta = np.exp(0.5 * (lower + upper))[:, None]
        x = np.linspace(0.0, 1.0, _NODES) * (18.0 + (1.0 + theta) * unit) - 9.0
        loss = np.logaddexp(leave, math.log(rate) + unit * x - 0.5 * unit**2)
        exponents = (1.0 + theta) * loss - 0.5 * x**2
        top = exponents.max(axis=1, keepdims=True)
        weights = np.exp(exponents - top)
        sums = weights.sum(axis=1)
        steps = x[:, 1] - x[:, 0]
        totals = np.log(sums * steps / math.sqrt(2.0 * math.pi)) + top[:, 0]
        means = (weights * loss).sum(axis=1) / sums
        is_rarer = num_steps * (theta[:, 0] * means - totals) > wanted
        upper = np.where(is_rarer, np.log(theta[:, 0]), upper)
        lower = np.where(is_rarer, lower, np.log(theta[:, 0]))
    first = (weights * x).sum(axis=1) / sums
    second = (weights * x**2).sum(axis=1) / sums - 1.0
    found = []
    for moved, spread in zip(first, second):
        if not (moved > 0.0 and spread > 0.0):
            continue
        share = min(moved**2 / spread, 1.0)
        factor = 2.0 ** round(math.log2(share / rate))
        length = moved / (factor * rate) / unit - 1.0
        length = min(length, spread / moved / unit - 1.0)
        found.append((max(float(length), 0.0), factor))
    return found
