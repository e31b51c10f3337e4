"""Importance sampling of a privacy loss: from weighted draws to delta."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Callable

import numpy as np

from tf_bandmf.accounting.monte_carlo import Estimate, betting_upper_bound

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
    """Losses `log dP/dQ` and log weights of the draws of one direction, shape [N]."""

    add: bool
    losses: np.ndarray
    log_weights: np.ndarray

    def values(self, epsilon: float) -> np.ndarray:
        """Weight times `(1 - exp(epsilon - loss))_+`; their mean is delta."""
        losses = -self.losses if self.add else self.losses
        reached = losses > epsilon
        values = np.zeros(losses.size)
        weights = np.exp(self.log_weights[reached])
        values[reached] = -np.expm1(epsilon - losses[reached]) * weights
        return values

    def estimate(self, epsilon: float) -> Estimate:
        values = self.values(epsilon)
        error = float(values.std()) / math.sqrt(values.size)
        return Estimate(min(float(values.mean()), 1.0), error, values.size)

    def slope(self, epsilon: float) -> float:
        """`-d delta / d epsilon`."""
        losses = -self.losses if self.add else self.losses
        reached = losses > epsilon
        terms = np.exp(self.log_weights[reached] + epsilon - losses[reached])
        return float(terms.sum()) / losses.size

    def bound(
        self, epsilon: float, largest: float, beta: float, resolution: float
    ) -> float:
        """An upper bound on delta at confidence `1 - beta`.

        Losses and weights are those of single precision: each value is computed as if
        both erred by `_ROUNDING` to the unsafe side. The value itself is `largest` at
        most, so that more is not needed.
        """
        found = float(self.values(epsilon).max(initial=0.0))
        if not found <= largest * (1.0 + _ROUNDING):
            raise ArithmeticError(
                f"A simulated value must be at most {largest}, found {found}."
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
    slopes: Sequence[float], offsets: Sequence[float], epsilon: float
) -> float:
    """An upper bound on weight times `1 - exp(epsilon - loss)`, for certain.

    Where the proposal's density over the target's is at least `sum_i exp(slopes[i] l +
    offsets[i])` at every loss `l`: the supremum over `l >= epsilon` of
    `(1 - exp(epsilon - l))` over that. It falls in `epsilon`.

    Args:
      slopes: >= 0.
      offsets: of the same length.
      epsilon: >= 0.
    """
    beyond = np.concatenate([[0.0], np.geomspace(1e-4, 60.0, 4000)])
    terms = np.outer(slopes, epsilon + beyond) + np.array(offsets)[:, None]
    log_weights = -np.logaddexp.reduce(terms, axis=0)
    # Within a cell the weight is largest at the left, the excess at the right end.
    excess = np.append(-np.expm1(-beyond[1:]), 1.0)
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
    count = len(ratios)
    steady = np.full(count, 1.0 / count)
    if squares.max() > 0.0:
        scaled = squares / squares.max()
        steady = least_variance(ratios, scaled, steady, _LEAST_TARGET, 100)
    target, last = np.eye(count)[0], np.eye(count)[-1]
    best: tuple[np.ndarray, float, int] | None = None
    for share in _TARGET_SHARES:
        for part in _CERTAIN_PARTS:
            shares = share * target
            shares = shares + (1.0 - share) * (part * last + (1.0 - part) * steady)
            kept = shares >= _LEAST_SHARE
            kept[0] = True
            shares = np.where(kept, shares, 0.0) / shares[kept].sum()
            most = largest(shares)
            moment = float((squares / (shares @ ratios)).mean())
            root = math.sqrt(2.0 * moment * log_odds)
            reached = root + math.sqrt(root**2 + 4.0 * most * log_odds * slack)
            draws = math.ceil((reached / (2.0 * slack)) ** 2)
            if best is None or draws < best[2]:
                best = shares, most, draws
    assert best is not None
    return best
