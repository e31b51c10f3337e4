"""Monte Carlo draws of a privacy loss, and values of delta computed from them.

Simulated values of delta and epsilon have the type `MonteCarloValue`, a float that also
has a standard error.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import scipy.optimize

from tf_bandmf.accounting import gaussian

# The allowance for rounding errors of losses and log weights in single precision. Sums
# of losses and log weights reach 300, with a relative rounding error of 2^-24. The
# allowance is several times `300 * 2^-24`.
_ROUNDING = 1e-4
# `betting_upper_bound` rounds positive values up to powers of exp(_GRID), so that few
# distinct values remain.
_GRID = 5e-4
# For `betting_upper_bound`: _BETS are the bets, as fractions of the maximum bet.
# _STAKES are the shares of the initial wealth that are placed on these bets.
_BETS = 0.999 * 3.0 ** -np.arange(12.0)
_STAKES = np.concatenate([[0.5], np.full(11, 0.5 / 11)])


class MonteCarloValue(float):
    """A simulated delta or epsilon (an estimate or a bound), with its standard error.

    Formal guarantee of a bound: over the randomness of the simulation, the true value
    exceeds the bound with probability at most 1 minus the accountant's confidence. An
    estimate may be smaller than the true value.

    Attributes:
      standard_error: standard error of an estimate, computed from the same draws as the
        estimate; 0 for a bound.
    """

    standard_error: float

    def __new__(cls, value: float, standard_error: float = 0.0) -> MonteCarloValue:
        made = super().__new__(cls, value)
        made.standard_error = standard_error
        return made


@dataclasses.dataclass(frozen=True)
class Run:
    """Draws of the privacy loss in one direction ("add" or "remove").

    Attributes:
      losses: the drawn privacy losses, shape [N].
      log_weights: the logarithms of the importance weights of the draws, shape [N].
      releases: the joint noise multiplier of other Gaussian releases of the same
        records. The expectation over their privacy loss is computed, not simulated.
    """

    losses: np.ndarray
    log_weights: np.ndarray
    releases: float = math.inf

    def values(self, epsilon: float) -> np.ndarray:
        """Returns `weight * (1 - exp(epsilon - loss))_+` for each draw, shape [N].

        Each of these values has the expectation delta.
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
        return MonteCarloValue(min(float(values.mean()), 1.0), error)

    def bound(
        self, epsilon: float, largest: float, beta: float, resolution: float
    ) -> float:
        """Returns an upper bound on delta at confidence `1 - beta`.

        The value of each draw (see the method `values`) has the expectation delta.
        Losses and log weights may have single precision. Therefore each value is
        computed as if rounding had reduced the loss and the log weight by `_ROUNDING`
        each.

        Args:
          epsilon: the epsilon at which delta is bounded.
          largest: a proven upper bound on every value without rounding errors. Computed
            values are clipped to it.
          beta: the probability in (0, 1) with which the bound may be wrong.
          resolution: positive values below `resolution` are rounded up to it.
        """
        most = float(self.values(epsilon).max(initial=0.0))
        if not most <= largest * (1.0 + _ROUNDING):
            raise ArithmeticError(
                f"Values must be <= {largest} (the proven bound), found {most}."
            )
        values = self.values(epsilon - _ROUNDING) * math.exp(_ROUNDING)
        values = np.minimum(values, largest)
        return betting_upper_bound(values, largest, beta, resolution)


def betting_upper_bound(
    values: np.ndarray, largest: float, beta: float, resolution: float
) -> float:
    """Returns an upper confidence bound on the mean of independent draws.

    This is a betting bound (Waudby-Smith, Ramdas, 2024, arXiv:2010.09686). For the true
    mean `mu` and any fixed `bet`, the wealth `prod_i (1 + bet (mu - values[i]))` has
    expectation 1, so it reaches `1 / beta` with probability at most `beta`. The same
    holds for the mean wealth over several bets. The bound is the value of `mu` above
    which the mean wealth is at least `1 / beta`.

    The bound increases with every value. Therefore, if the values decrease as epsilon
    increases, the bound decreases, too. In this case, a search for the epsilon at which
    the bound reaches a given delta needs no union bound over the epsilons it tries.

    Args:
      values: N independent and identically distributed draws >= 0, shape [N].
      largest: a guaranteed upper bound on every value.
      beta: the probability in (0, 1) with which the bound may be wrong.
      resolution: positive values below `resolution` are rounded up to it.

    Raises:
      ValueError: if a value is outside of [0, largest] or not finite.
    """
    if not (0.0 < beta < 1.0):
        raise ValueError(f"beta must be in (0, 1), found {beta}.")
    values = np.asarray(values, dtype=np.float64)
    # For NaN, these comparisons are False, so the function raises the error.
    if not (
        values.size and values.min() >= 0.0 and values.max() <= largest * (1 + 1e-4)
    ):
        raise ValueError(f"values must be in [0, {largest}], found {np.sort(values)}.")
    levels = np.ceil(np.log(np.maximum(values[values > 0.0], resolution)) / _GRID)
    codes, counts = np.unique(levels.astype(np.int64), return_counts=True)
    support = np.concatenate([[0.0], np.exp(codes * _GRID)])
    counts = np.concatenate([[values.size - counts.sum()], counts]).astype(np.float64)
    largest = max(largest, float(support[-1]))
    bets = _BETS / largest

    def log_wealth(mean: float) -> float:
        gains = np.log1p(bets[:, None] * (mean - support[None])) @ counts
        return float(np.logaddexp.reduce(gains + np.log(_STAKES)))

    target = -math.log(beta)
    if log_wealth(largest) < target:
        return largest
    lowest = 0.0
    if log_wealth(lowest) >= target:
        return lowest
    bound = scipy.optimize.brentq(
        lambda mean: log_wealth(mean) - target, lowest, largest, xtol=1e-18, rtol=1e-10
    )
    return float(bound) * (1.0 + 1e-9)
