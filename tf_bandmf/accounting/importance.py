"""Importance sampling of a privacy loss: from weighted draws to delta."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from tf_bandmf.accounting.monte_carlo import Estimate, betting_upper_bound


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
        return betting_upper_bound(self.values(epsilon), largest, beta, resolution)


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
