"""Importance sampling of a privacy loss: from weighted draws to delta."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Callable

import numpy as np

from tf_bandmf.accounting import gaussian
from tf_bandmf.accounting.monte_carlo import MonteCarloValue, betting_upper_bound

# Candidates for a bound: the target's share, that of the certain tilt in the rest, and
# the least share of the draws that is kept.
_TARGET_SHARES = (0.01, 0.05, 0.2, 0.5, 0.9)
_CERTAIN_PARTS = (0.0, 0.2, 0.4, 0.6, 0.75, 0.85, 0.95, 1.0)
_LEAST_TARGET, _LEAST_SHARE = 0.01, 0.01
# Rounding of losses and log weights in single precision, whose sums have up to 300 units
# of the logarithm: 300 2^-24, several times.
_ROUNDING = 1e-4


@dataclasses.dataclass(frozen=True)
class Run:
    """Draws of the privacy loss of one direction.

    Attributes:
      losses: shape [N].
      log_weights: shape [N].
      releases: noise multiplier of the Gaussian releases beside the run, whose losses are
        integrated out.
    """

    losses: np.ndarray
    log_weights: np.ndarray
    releases: float = math.inf

    def values(self, epsilon: float) -> np.ndarray:
        """Weight times what exceeds epsilon, `(1 - exp(epsilon - loss))_+`.

        Their mean is delta.
        """
        short = epsilon - self.losses
        reached = short < (0.0 if self.releases == math.inf else math.inf)
        values = np.zeros(short.size)
        excess = gaussian.gaussian_excess(self.releases, short[reached])
        values[reached] = excess * np.exp(self.log_weights[reached])
        return values

    def estimate(self, epsilon: float) -> MonteCarloValue:
        values = self.values(epsilon)
        error = float(values.std()) / math.sqrt(values.size)
        return MonteCarloValue(min(float(values.mean()), 1.0), values.size, error)

    def bound(
        self, epsilon: float, largest: float, beta: float, resolution: float
    ) -> float:
        """An upper bound on delta at confidence `1 - beta`.

        Losses and weights are those of single precision: each value is computed as if
        both erred by `_ROUNDING` to the unsafe side. The value itself is `largest` at
        most, so that more is not needed.
        """
        most = float(self.values(epsilon).max(initial=0.0))
        if not most <= largest * (1.0 + _ROUNDING):
            raise ArithmeticError(
                f"A simulated value must be at most {largest}, found {most}."
            )
        values = self.values(epsilon - _ROUNDING) * math.exp(_ROUNDING)
        values = np.minimum(values, largest)
        return betting_upper_bound(values, largest, beta, resolution)


def least_variance(
    ratios: np.ndarray,
    squares: np.ndarray,
    shares: np.ndarray,
    defensive: float,
    iterations: int,
) -> np.ndarray:
    """Shares that minimize the second moment `mean(squares / (shares @ ratios))`.

    Multiplicative updates of a convex problem; the first share stays >= `defensive`.
    """
    for _ in range(iterations):
        gradient = (ratios * (squares / (shares @ ratios) ** 2)).mean(axis=1)
        shares = shares * np.sqrt(gradient)
        shares = shares / shares.sum()
        if shares[0] < defensive and shares.sum() > shares[0]:
            shares[1:] *= (1.0 - defensive) / shares[1:].sum()
            shares[0] = defensive
    return shares


def largest_value(
    slopes: Sequence[float],
    offsets: Sequence[float],
    epsilon: float,
    releases: float = math.inf,
) -> float:
    """An upper bound on weight times what exceeds epsilon, for certain.

    Where the proposal's density over the target's is at least `sum_i exp(slopes[i] l +
    offsets[i])` at every loss `l`: the supremum over `l` of `Run.values` with that weight.
    It falls in `epsilon`.

    Args:
      slopes: >= 0, the first of them 0.
      offsets: of the same length.
      epsilon: >= 0.
      releases: as of `Run`.
    """
    above = np.geomspace(1e-4, 60.0, 4000)
    beyond = np.append(0.0, above)
    if releases < math.inf:
        beyond = np.append(-above[::-1], beyond)
    terms = np.outer(slopes, epsilon + beyond) + np.array(offsets)[:, None]
    # Within a cell, also the first and the last, the weight is largest at the left, the
    # excess at the right end.
    log_weights = np.append(-offsets[0], -np.logaddexp.reduce(terms, axis=0))
    excess = np.append(gaussian.gaussian_excess(releases, -beyond), 1.0)
    return float(np.max(excess * np.exp(log_weights))) * (1.0 + 1e-9)


def cheapest_shares(
    ratios: np.ndarray,
    values: np.ndarray,
    largest: Callable[[np.ndarray], float],
    log_odds: float,
    slack: float,
) -> tuple[np.ndarray, float, int]:
    """Shares of a proposal for the cheapest confidence bound, by a pilot run.

    A bound exceeds the mean by about `S L / N + sqrt(2 V L / N)`: `S` the largest value
    that is possible, `V` the second moment, `L` the `log_odds`, `N` draws. A tilt whose
    weights are bounded for certain keeps S small, others keep V small.

    Args:
      ratios: density of each component over the pilot run's, shape [T, N]; the first is
        the target, the last a tilt with certain weights.
      values: of the pilot run, shape [N].
      largest: `largest_value` with given shares.
      log_odds: log of one over the probability with which the bound may fail.
      slack: by how much the bound may exceed delta.

    Returns:
      Shares [T], some of them 0; the largest value; how many draws it takes.
    """
    squares = values**2
    steady = np.full(len(ratios), 1.0 / len(ratios))
    if squares.max() > 0.0:
        scaled = squares / squares.max()
        steady = least_variance(ratios, scaled, steady, _LEAST_TARGET, 100)
    target, last = np.eye(len(ratios))[[0, -1]]

    def shares_of(share: float, part: float) -> np.ndarray:
        shares = share * target
        shares = shares + (1.0 - share) * (part * last + (1.0 - part) * steady)
        kept = shares >= _LEAST_SHARE
        kept[0] = True
        return np.where(kept, shares, 0.0) / shares[kept].sum()

    def candidate(shares: np.ndarray) -> tuple[np.ndarray, float, int]:
        most = largest(shares)
        moment = float((squares / (shares @ ratios)).mean())
        root = math.sqrt(2.0 * moment * log_odds)
        reached = root + math.sqrt(root**2 + 4.0 * most * log_odds * slack)
        return shares, most, math.ceil((reached / (2.0 * slack)) ** 2)

    pairs = itertools.product(_TARGET_SHARES, _CERTAIN_PARTS)
    return min((candidate(shares_of(*pair)) for pair in pairs), key=lambda c: c[2])
