"""Monte Carlo draws of a privacy loss, and values of delta computed from them.

A Monte Carlo value is never returned as a plain float: `MonteCarloValue` also says whether
it is an estimate, or a bound at a stated confidence.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import scipy.optimize

from tf_bandmf.accounting import gaussian

# Allowance for rounding errors of losses and log weights in single precision. Sums of
# losses and log weights reach 300, so this is several times `300 * 2^-24`.
_ROUNDING = 1e-4
# Simulated values are rounded up to powers of exp(_GRID) to compute a bound from them.
_GRID = 5e-4
# The bets of `betting_upper_bound`, as fractions of the maximum bet, and each bet's
# share of the initial wealth.
_BETS = 0.999 * 3.0 ** -np.arange(12.0)
_STAKES = np.concatenate([[0.5], np.full(11, 0.5 / 11)])


class MonteCarloValue(float):
    """A simulated value with its uncertainty.

    Formal guarantee of a bound: over the randomness of the simulation, the true value
    exceeds the bound with probability at most 1 minus the accountant's confidence. An
    estimate may be too small.

    Attributes:
      standard_error: standard error of an estimate, computed from its own draws; 0 for
        a bound.
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
      releases: the joint noise multiplier of other Gaussian releases. The privacy
        losses of the other releases are integrated, not drawn.
    """

    losses: np.ndarray
    log_weights: np.ndarray
    releases: float = math.inf

    def values(self, epsilon: float) -> np.ndarray:
        """Returns the weight times `(1 - exp(epsilon - loss))_+` of each draw, shape [N].

        The expectation of the values is delta.
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

        Losses and weights have single precision. Each value is computed as if rounding
        had reduced both of them by `_ROUNDING`. Then it is clipped to `largest`, an
        upper bound on the exact value.
        """
        most = float(self.values(epsilon).max(initial=0.0))
        if not most <= largest * (1.0 + _ROUNDING):
            raise ArithmeticError(
                f"Values must be <= {largest}, a proven bound, found {most} instead."
            )
        values = self.values(epsilon - _ROUNDING) * math.exp(_ROUNDING)
        values = np.minimum(values, largest)
        return betting_upper_bound(values, largest, beta, resolution)


def betting_upper_bound(
    values: np.ndarray, largest: float, beta: float, resolution: float
) -> float:
    """Returns an upper confidence bound on the mean of independent draws.

    This is a betting bound (Waudby-Smith, Ramdas, 2024, arXiv:2010.09686). For the true
    mean `mu`, the wealth `prod_i (1 + bet (mu - values[i]))` has expectation 1, so it
    reaches `1 / beta` with probability at most `beta`. The same holds for the mean
    wealth over several bets. The bound is the value of `mu` above which the mean wealth
    is at least `1 / beta`.

    The bound is monotone in every value, so a bound on a monotone function of the draws
    may be inverted without a union bound.

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
    # The comparisons are False for NaN.
    if not (
        values.size and values.min() >= 0.0 and values.max() <= largest * (1 + 1e-4)
    ):
        raise ValueError(f"values must be in [0, {largest}], found a value outside.")
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
