"""Poisson-sampled Gaussian queries by an exponentially tilted Fourier transform.

One query has the loss `l(x) = log(1 - q + q exp((x - 1/2) / sigma^2))` of
`P = (1 - q) N(0, sigma^2) + q N(1, sigma^2)` against `Q = N(0, sigma^2)`; under "add" the
roles are exchanged and the loss is `-l`. Of `k` queries

    delta(epsilon) = E (1 - exp(epsilon - L))_+,   L = l_1 + ... + l_k.

**Discretization.** Losses are moved to multiples of `h`, those of a cell to its two
ends so that mass and `E exp(-l)` of the cell stay as they are. In each `y = exp(-l)` the
function `(1 - exp(epsilon) y_1 ... y_k)_+` is convex and falls: moving `y` to the ends of
an interval, its mean kept, can only increase its mean (Doroshenko, Ghazi, Kamath, Kumar
and Manurangsi, arXiv:2207.04380, "connect the dots"), and so does what rounding adds: mass,
and mass moved to the upper end. Losses beyond the last cell are infinite.

**Composition.** A Fourier transform errs in absolute terms, by about `k 2^-53`, which is
all that is left of small deltas. So the law is tilted first, `w_i = p_i exp(theta l_i) /
M`. The k-fold convolution `W` of `w` has its mass around epsilon if theta minimizes the
Chernoff bound `M^k exp(-theta epsilon)`, and

    delta = M^k sum_s W(s) exp(-theta s h) (1 - exp(epsilon - s h))_+:

an error of W is one relative to the Chernoff bound. Any theta and any M > 0 are right.

**Errors, each added.** Circular convolution moves mass of W from outside of the window of
N places into it, which adds to it; what is lost above the window is at most
`M^k exp(-theta a) P_theta(L >= a)`, `a` its end, `P_theta(L >= a) <= M(theta + t)^k
exp(-t a) / M^k`. The transform `F` of `w` errs by at most `eta = 8 log2(N) 2^-53` at each
frequency: every output is a sum of the `w_i`, whose sum is 1, times products of twiddle
factors along a path of additions and multiplications (Higham, Accuracy and Stability,
2002, section 24.1, entry by entry). So `F^k` errs by at most `k eta (|F| + eta)^(k - 1)`,
and by its own rounding; W at each place by the mean of that over the frequencies, and by
eta times the mean of `|F|^k`.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
import scipy.fft
import scipy.optimize

from tf_bandmf.accounting import tails

# By how much, of its logarithm, the discretization may increase delta: to state a number,
# and to search for one.
FINE, ROUGH = 0.0005, 0.05
# Losses beyond so many standard deviations of the noise are infinite.
_REACH = 12.0
# Half of the window in standard deviations of the tilted sum.
_WINDOW = 9.0
# Places of the window, usually and at most: beyond the first number the discretization
# may increase delta by so many times as much. Cells of one query, at most.
_USUAL_PLACES, _MOST_PLACES, _MORE_EXCESS = 2**20, 2**22, 10.0
_MOST_CELLS = 2**21
_LEAST_PLACES = 2**12
_UNIT = 2.0**-53
# Nodes of the quadrature that chooses theta.
_NODES = 4_001
# The least log theta; the most of theta times epsilon, where delta is 0.
_LEAST_LOG_THETA, _MOST_EXPONENT = -7.0, 2_000.0


@dataclasses.dataclass(frozen=True)
class Query:
    """One query that takes an example with probability q.

    Attributes:
      probability: q in (0, 1).
      noise: sigma, per unit of the example's contribution.
      add: whether the loss is that of `Q` against `P`.
    """

    probability: float
    noise: float
    add: bool

    @property
    def largest_decrease(self) -> float:
        """`-log(1 - q)`, by which a loss of "remove" falls at most."""
        return -math.log1p(-self.probability)

    @property
    def rounding(self) -> float:
        """What the loss at the computed place of a cell's end may err by.

        Where `exp(l) - 1 + q` cancels, the sum errs by rounding of q, and l by that over
        `exp(l) >= 1 - q`.
        """
        return 32.0 * _UNIT * self.largest_decrease / (1.0 - self.probability)

    def losses(self, x: np.ndarray) -> np.ndarray:
        """Losses of `P` against `Q` at values x; they rise with x."""
        q, s = self.probability, self.noise
        exponents = (x - 0.5) / s**2
        small = np.log1p(q * np.expm1(np.minimum(exponents, 1.0)))
        large = np.logaddexp(math.log1p(-q), math.log(q) + exponents)
        return np.where(exponents < 1.0, small, large)

    def place(self, losses: np.ndarray) -> np.ndarray:
        """The values x at which `losses` is that; -inf below the least loss."""
        q, s = self.probability, self.noise
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            small = np.log(np.maximum(np.expm1(losses) / q + 1.0, 0.0))
            # log((exp(l) - 1 + q) / q) for large l.
            large = losses - math.log(q) + np.log1p(-(1.0 - q) * np.exp(-losses))
        found = np.where(losses > 1.0, large, small)
        return np.where(np.isnan(found), -np.inf, found) * s**2 + 0.5


def delta(
    probability: float,
    noise: float,
    count: int,
    epsilon: float,
    excess: float = FINE,
) -> float:
    """An upper bound on delta of `count` queries, of both directions.

    Args:
      probability: q in (0, 1).
      noise: sigma, per unit of one query's sensitivity.
      count: k.
      epsilon: > 0.
      excess: by how much the discretization may increase log delta; more where that
        takes too many cells.
    """
    removed = _delta(Query(probability, noise, False), count, epsilon, excess)
    add = Query(probability, noise, True)
    if _delta(add, count, epsilon, max(excess, ROUGH)) <= removed:
        return removed
    return max(removed, _delta(add, count, epsilon, excess))


@functools.lru_cache(maxsize=512)
def _delta(query: Query, count: int, epsilon: float, excess: float) -> float:
    theta, mean, variance, top = _tilt(query, count, epsilon)
    lowest, highest = _range_of(query)
    deviation = math.sqrt(count * variance)
    # The window begins below epsilon and holds the tilted sum.
    begin = min(epsilon, mean * count - _WINDOW * deviation)
    end = max(epsilon, mean * count + _WINDOW * deviation) + 2.0 / theta
    # Within a cell `exp(theta l)` lies below its chord by a factor of at most
    # `1 + theta (theta + 1) h^2 / 8` or about that, once for each query.
    step = math.sqrt(8.0 * excess / (count * theta * (theta + 1.0)))
    most = math.sqrt(_MORE_EXCESS) * step
    step = min(max(step, (end - begin) / _USUAL_PLACES), most)
    step = max(
        step,
        (end - begin) / _MOST_PLACES,
        (highest - lowest) / _MOST_CELLS,
        1e-13 * max(abs(lowest), abs(highest)),
    )
    places = 2 ** math.ceil(math.log2(max((end - begin) / step, _LEAST_PLACES)))
    first, masses, infinite = _discretized(query, step)
    losses = step * np.arange(first, first + masses.size)
    with np.errstate(divide="ignore"):
        logs = np.log(masses) + theta * losses
    log_m = float(np.logaddexp.reduce(logs))
    weights = np.exp(logs - log_m)
    folded = np.bincount(
        np.arange(first, first + masses.size) % places, weights, minlength=places
    )
    window = _power(folded, count)
    # Place s of the window is the sum congruent to it between `start` and the end.
    start = math.floor(begin / step)
    window = np.roll(window, -(start % places))
    sums = step * np.arange(start, start + places)
    # Each loss errs by rounding, of itself and of the place of its cell; the sum of their
    # sizes is at most that of the losses and twice what they fall by.
    drop, largest = query.largest_decrease, float(np.abs(sums[[0, -1]]).max())
    rounding = 2.0 * count * query.rounding
    rounding += 32.0 * _UNIT * (2.0 * count * drop + largest + epsilon)
    over = sums - (epsilon - rounding)
    reached = over > 0.0
    terms = window[reached] * np.exp(-theta * over[reached]) * -np.expm1(-over[reached])
    # Beyond the window: by a larger tilt.
    after = sums[-1] + step
    log_top = float(np.logaddexp.reduce(logs + (top - theta) * losses))
    beyond = min(count * (log_top - log_m) - (top - theta) * after, 0.0)
    lost = math.exp(beyond - theta * (after - epsilon + rounding))
    exponent = count * log_m - theta * (epsilon - rounding)
    # Rounding of tilted masses, of the logarithms of M and of the exponents here.
    exponent += 8.0 * _UNIT * count * (4.0 + abs(log_m) + abs(log_top))
    exponent += 8.0 * _UNIT * (theta + top) * (largest + epsilon + 2.0 * count * drop)
    total = math.log(float(terms.sum()) + lost + 1e-300) + exponent
    found = math.exp(min(total, 0.0)) * (1.0 + 1e-9) + count * infinite
    return min(found, 1.0)


def _range_of(query: Query) -> tuple[float, float]:
    """The least loss, and the largest that is finite.

    Where an example is added, losses are bounded by -log(1 - q), which no x within reach
    comes near if the noise is large: steps that are a part of it would be too wide.
    """
    s = query.noise
    if query.add:
        ends = -query.losses(np.array([_REACH * s, -_REACH * s]))
    else:
        ends = query.losses(np.array([-np.inf, 1.0 + _REACH * s]))
    return float(ends[0]), float(ends[1])


def _tilt(
    query: Query, count: int, epsilon: float
) -> tuple[float, float, float, float]:
    """Theta, mean and variance of one tilted loss, and a larger theta for what is beyond.

    By a quadrature that only chooses: any theta is right.
    """
    s = query.noise
    # As far as the discretization goes: large powers weigh the last losses most.
    x = np.linspace(-_REACH * s, (0.0 if query.add else 1.0) + _REACH * s, _NODES)
    density = -0.5 * (x / s) ** 2
    losses = query.losses(x)
    if query.add:
        losses = -losses
    else:
        density = density + losses
    density -= np.logaddexp.reduce(density)

    def bound(log_theta: float) -> float:
        theta = math.exp(log_theta)
        return count * float(np.logaddexp.reduce(density + theta * losses)) - (
            theta * epsilon
        )

    found = scipy.optimize.minimize_scalar(
        bound,
        bounds=(_LEAST_LOG_THETA, math.log(_MOST_EXPONENT / epsilon)),
        method="bounded",
        options={"xatol": 1e-4},
    )
    theta = math.exp(found.x)
    tilted = density + theta * losses
    tilted = np.exp(tilted - np.logaddexp.reduce(tilted))
    mean = float(tilted @ losses)
    variance = max(float(tilted @ (losses - mean) ** 2), 1e-300)
    more = _WINDOW / math.sqrt(count * variance)
    return theta, mean, variance, theta + min(more, theta)


def _discretized(query: Query, step: float) -> tuple[int, np.ndarray, float]:
    """First index, masses at multiples of the step from above, and that of infinity."""
    q, s = query.probability, query.noise
    lowest, highest = _range_of(query)
    first, last = math.floor(lowest / step), math.ceil(highest / step)
    grid = step * np.arange(first, last + 1)
    if query.add:
        x = query.place(-grid[::-1])
        x[0], x[-1] = min(x[0], -_REACH * s), np.inf
    else:
        x = query.place(grid)
        x[0] = -np.inf
    x = np.maximum.accumulate(x)
    none, none_error = tails.cells(x / s)
    moved, moved_error = tails.cells((x - 1.0) / s)
    mixed = (1.0 - q) * none + q * moved
    mixed_error = (1.0 - q) * none_error + q * moved_error
    if query.add:
        upper, lower, error = none[::-1], mixed[::-1], mixed_error[::-1]
        infinite = float(tails.lower_tail(x[0] / s))
    else:
        upper, lower, error = mixed, none, none_error
        infinite = float(
            (1.0 - q) * tails.upper_tail(x[-1] / s)
            + q * tails.upper_tail((x[-1] - 1.0) / s)
        )
    # E[1 - exp(left - l); cell] over its largest value: what goes to the upper end.
    scale = np.exp(np.minimum(grid[:-1], 700.0))
    other = np.maximum(lower - error, 0.0) * scale
    right = upper - other + 4.0 * _UNIT * (upper + other)
    right = np.clip(right / -math.expm1(-step), 0.0, upper)
    masses = np.zeros(grid.size)
    masses[:-1] += upper - right
    masses[1:] += right
    return first, masses, infinite


def _power(weights: np.ndarray, count: int) -> np.ndarray:
    """The circular convolution of `count` copies, from above."""
    places = weights.size
    eta = 8.0 * math.log2(places) * _UNIT
    transform = scipy.fft.rfft(weights)
    size = np.abs(transform)
    with np.errstate(divide="ignore"):
        logs = np.log(np.where(size == 0.0, 1e-300, transform))
    raised = np.exp(count * logs)
    upper = np.exp((count - 1.0) * np.log(size + eta))
    rounding = 8.0 * _UNIT * (count + 8.0)
    error = count * eta * upper + (rounding + eta) * np.abs(raised)
    # The mean over all frequencies: all but the first and the last stand once for two.
    mean_error = (2.0 * float(error.sum()) - float(error[0])) / places
    found = scipy.fft.irfft(raised, n=places)
    return np.maximum(found, 0.0) + mean_error * (1.0 + 1e-6)
