"""Composition of (sampled) Gaussian queries by Fourier transforms of tilted losses.

A query with the sampling probability q and the noise sigma has the dominating pair
`P = (1 - q) N(0, sigma^2) + q N(1, sigma^2)` (with the example) against
`Q = N(0, sigma^2)` (without it). Its privacy loss at an output `x` is
`l(x) = log(1 - q + q exp((x - 1/2) / sigma^2))`. In the direction "add", P and Q are
swapped and the loss is `-l(x)`. For `k` independent queries with losses l_1, ..., l_k

    delta(epsilon) = E (1 - exp(epsilon - L))_+,   L = l_1 + ... + l_k.

**Fixed-size samples.** If samples have a fixed size and neighboring data sets differ by
the replacement of one example, a query's delta is at most that of `P` against `Q` at
each epsilon >= 0, in both directions (Balle, Barthe, Gaboardi, 2018, arXiv:1807.01647,
Theorem 9). Here sigma is the noise level divided by the change of the query's value
that a replacement causes. Such queries compose like a pair of distributions that has
this delta in both directions (arXiv:2106.08567, Theorem 10). The positive losses of
that pair are the positive losses `l(x)` for `x` from `P`. Its negative losses are
`-l(x)` for those `x` from `Q` for which `l(x) > 0`. The remaining probability,
`(1 - q) P(|x| < 1/2)` for `x` from `Q`, has the loss 0.

**Discretization.** Losses are moved to multiples of a spacing `h`. A cell is the
interval between two consecutive multiples; the losses in a cell move to its two ends,
so that the probability and `E exp(-l)` of the cell do not change. As a function of each
`y_i = exp(-l_i)`, `(1 - exp(epsilon) y_1 ... y_k)_+` is convex and decreasing.
Therefore delta, the mean of this function, can only grow if `y_i` moves to the ends of
an interval and keeps its mean (Doroshenko, Ghazi, Kamath, Kumar and Manurangsi,
arXiv:2207.04380, "connect the dots"). The allowances for rounding errors add
probability and move probability to the upper end of a cell, so they also increase
delta. Losses above the last cell become infinite; losses below the first cell are
moved up to it.

**Composition.** A Fourier transform has an absolute error of about `k 2^-53`, which can
exceed a small delta. Therefore the probabilities `p_i` of the discrete losses `l_i` of
each query are tilted first: `w_i = p_i exp(theta l_i) / M`, where M is the sum of all
`p_i exp(theta l_i)`. Let `W(s)` be the convolution of the `w` of all k queries at the
loss `s h`. Its mass is around epsilon if theta minimizes the Chernoff bound
`M_1 ... M_k exp(-theta epsilon)`, and

    delta = M_1 ... M_k sum_s W(s) exp(-theta s h) (1 - exp(epsilon - s h))_+.

An error of W therefore causes an error of delta that is proportional to the Chernoff
bound. The formula holds for any theta and any M > 0.

**Errors.** The transform computes W for a window of N consecutive losses. A bound on
each of the following errors is added to delta. The formulas are for k equal queries.

- Circular convolution moves mass of W from outside the window into it, which only
  increases delta.
- Let `a` be the loss at the upper end of the window. The part of delta that is lost
  above it is at most `M^k exp(-theta a) P_theta(L >= a)`, where `P_theta` is the tilted
  distribution. For any t > 0, `P_theta(L >= a) <= M(theta + t)^k exp(-t a) / M^k`,
  where `M(theta + t)` is M for theta + t instead of theta.
- The transform `F` of `w` has an error of at most `eta = 8 log2(N) 2^-53` at each
  frequency: the sum of all `w_i` is 1, and every output is a sum of the `w_i` times
  products of twiddle factors (Higham, Accuracy and Stability, 2002, section 24.1,
  applied to each entry). Therefore the error of a product of powers `F^k` is at most
  the product of the `(|F| + eta)^k` times the sum of the `k eta / (|F| + eta)`, plus
  the rounding error of the product. The error of each entry of W is at most the mean
  of this error over the frequencies, plus eta times the mean of the product's absolute
  value.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable

import numpy as np
import scipy.fft
import scipy.optimize

from tf_bandmf.accounting import tails

# The amounts by which discretization may increase log delta: FINE is for results, ROUGH
# is for searches.
FINE, ROUGH = 0.0005, 0.05
# Losses that only occur if the noise exceeds this many standard deviations count as
# infinite.
_REACH = 12.0
# Half of the width of the Fourier transform's window, in standard deviations of the sum
# of the losses under the tilted distribution.
_WINDOW = 9.0
# The number of losses in the Fourier transform's window has a soft limit _USUAL_PLACES
# and a hard limit _MOST_PLACES. To stay within the soft limit, discretization may
# increase log delta by up to _MORE_EXCESS times the amount that the caller allows.
_USUAL_PLACES, _MOST_PLACES, _MORE_EXCESS = 2**20, 2**22, 10.0
# The maximum number of discretized losses of one query, and the minimum number of
# losses in the window of the Fourier transform.
_MOST_CELLS = 2**21
_LEAST_PLACES = 2**12
_UNIT = 2.0**-53
# The number of nodes of the quadrature that chooses theta.
_NODES = 4_001
# Limits of theta, the exponent of the tilt: the minimum of log theta, and the maximum
# of theta * epsilon, beyond which delta is rounded to 0.
_LEAST_LOG_THETA, _MOST_EXPONENT = -7.0, 2_000.0


@dataclasses.dataclass(frozen=True)
class Query:
    """One or more identical Gaussian queries, on samples or on all examples.

    Attributes:
      probability: q in (0, 1], the probability with which a query samples an example.
      noise: sigma, the noise level divided by the change of the query's value if an
        example is removed (or replaced, if `is_replaced`).
      count: k, the number of queries.
      is_replaced: True if samples have a fixed size and neighboring data sets differ by
        the replacement of one example.
    """

    probability: float
    noise: float
    count: int = 1
    is_replaced: bool = False


@dataclasses.dataclass(frozen=True)
class Law:
    """The distribution of one query's privacy loss in one direction of adjacency."""

    query: Query
    add: bool

    @property
    def is_bounded(self) -> bool:
        """True if losses have a finite lower bound (if `add`, a finite upper bound).

        The lower bound is `log(1 - q)`, and the upper bound is `-log(1 - q)`.
        """
        return self.query.probability < 1.0 and not self.query.is_replaced

    @property
    def range(self) -> tuple[float, float]:
        """The smallest loss and the largest finite loss that the discretization covers.

        If `add`, no loss exceeds `-log(1 - q)`. With large noise, however, the losses
        of all x within _REACH standard deviations are far below this limit, and a
        discretization step in proportion to the limit would be too wide. Therefore the
        property returns the largest loss within _REACH standard deviations.
        """
        reach = _REACH * self.query.noise
        lowest, highest = self.losses(np.array([-reach, 1.0 + reach]))
        if self.query.is_replaced:
            lowest = -highest
        elif self.add:
            lowest, highest = -self.losses(np.array([reach, -reach]))
        elif self.is_bounded:
            lowest = math.log1p(-self.query.probability)
        return float(lowest), float(highest)

    @property
    def drop(self) -> float:
        """A bound on the size of negative losses or, if `add`, of positive losses."""
        if self.is_bounded:
            return -math.log1p(-self.query.probability)
        return max(map(abs, self.range))

    @property
    def rounding(self) -> float:
        """A bound on the rounding error of the loss l at an end of a grid cell.

        The method `place` computes the output at the loss l from `exp(l) - 1 + q`. If
        this sum is near 0, its error is the rounding error of q. The error of l is this
        rounding error divided by `exp(l)`, which is at least `1 - q`.
        """
        least = 1.0 - self.query.probability if self.is_bounded else 1.0
        return 32.0 * _UNIT * self.drop / least

    def losses(self, x: np.ndarray) -> np.ndarray:
        """Returns the losses of `P` against `Q` at outputs x; they increase with x."""
        q, s = self.query.probability, self.query.noise
        exponents = (x - 0.5) / s**2
        if q == 1.0:
            return exponents
        small = np.log1p(q * np.expm1(np.minimum(exponents, 1.0)))
        large = np.logaddexp(math.log1p(-q), math.log(q) + exponents)
        return np.where(exponents < 1.0, small, large)

    def place(self, losses: np.ndarray) -> np.ndarray:
        """Returns the outputs with these losses; -inf for losses below the minimum."""
        q, s = self.query.probability, self.query.noise
        if q == 1.0:
            return losses * s**2 + 0.5
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            small = np.log(np.maximum(np.expm1(losses) / q + 1.0, 0.0))
            # This is log((exp(l) - 1 + q) / q) for a large loss l.
            large = losses - math.log(q) + np.log1p(-(1.0 - q) * np.exp(-losses))
        places = np.where(losses > 1.0, large, small)
        return np.where(np.isnan(places), -np.inf, places) * s**2 + 0.5

    @property
    def centre(self) -> float:
        """An upper bound on the probability of the loss 0 if `query.is_replaced`."""
        around = np.array([-0.5, 0.5]) / self.query.noise
        return (1.0 - self.query.probability) * float(tails.cells(around)[0][0])

    def nodes(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the nodes (losses) and log weights of a quadrature over the loss.

        The quadrature serves to choose theta, the exponent of the tilt.
        """
        s, is_replaced = self.query.noise, self.query.is_replaced
        # The nodes cover the whole range of the discretization, because with a large
        # theta the largest losses have the largest weights.
        last = (1.0 if is_replaced or not self.add else 0.0) + _REACH * s
        x = np.linspace(0.5 if is_replaced else -_REACH * s, last, _NODES)
        weights, losses = -0.5 * (x / s) ** 2, self.losses(x)
        if is_replaced:
            weights += math.log((x[1] - x[0]) / s / math.sqrt(2.0 * math.pi))
            centre = math.log(self.centre + tails.LEAST)
            weights = np.concatenate([weights, [centre], weights + losses])
            losses = np.concatenate([-losses, [0.0], losses])
        elif self.add:
            losses = -losses
        else:
            weights += losses
        return losses, weights - np.logaddexp.reduce(weights)

    def discretized(self, step: float) -> tuple[int, np.ndarray, float]:
        """Returns upper bounds on the probabilities of losses on a grid.

        The loss with the index i is `i * step`. The result is a tuple of the index of
        the first loss, the probabilities of all losses from the first one, and the
        probability of an infinite loss.
        """
        lowest, highest = self.range
        first, last = math.floor(lowest / step), math.ceil(highest / step)
        if not self.query.is_replaced:
            return first, *self._masses(step * np.arange(first, last + 1), self.add)
        above, infinite = self._masses(step * np.arange(last + 1), False)
        below, _ = self._masses(step * np.arange(-last, 1), True)
        masses = np.append(below, above[1:])
        masses[last] += above[0] + self.centre
        return -last, masses, infinite

    def _masses(self, grid: np.ndarray, add: bool) -> tuple[np.ndarray, float]:
        """Returns the probability of each loss on the grid, and of an infinite loss."""
        q, s = self.query.probability, self.query.noise
        x = np.maximum.accumulate(self.place(-grid[::-1] if add else grid))
        if add and not self.query.is_replaced:
            x[0] = min(x[0], -_REACH * s)
        none, none_error = tails.cells(x / s)
        moved, moved_error = tails.cells((x - 1.0) / s)
        mixed = (1.0 - q) * none + q * moved
        mixed_error = (1.0 - q) * none_error + q * moved_error
        # The probabilities of outputs x below and above the grid.
        none_ends = tails.upper_tail(np.array([-x[0], x[-1]]) / s)
        moved_ends = tails.upper_tail(np.array([1.0 - x[0], x[-1] - 1.0]) / s)
        mixed_ends = (1.0 - q) * none_ends + q * moved_ends
        if add:
            upper, lower, error = none[::-1], mixed[::-1], mixed_error[::-1]
            least, infinite = none_ends[::-1]
        else:
            upper, lower, error, (least, infinite) = mixed, none, none_error, mixed_ends
        # `right` is the probability that moves to the upper end of a cell. To keep
        # E exp(-l), a loss l in a cell from `a` to `b` moves to `b` with probability
        # f(l) / f(b), where f(l) = 1 - exp(a - l). Therefore `right` is the expectation
        # of f(l) over the losses in the cell, divided by f(b).
        scale = np.exp(np.minimum(grid[:-1], 700.0))
        other = np.maximum(lower - error, 0.0) * scale
        right = upper - other + 4.0 * _UNIT * (upper + other)
        right = np.clip(right / -math.expm1(-(grid[1] - grid[0])), 0.0, upper)
        masses = np.append(upper - right, 0.0)
        masses[1:] += right
        if add or not self.query.is_replaced:
            masses[0] += least
        return masses, float(infinite)


def delta(queries: Iterable[Query], epsilon: float, excess: float = FINE) -> float:
    """Returns an upper bound on delta of the composed queries, for both directions.

    Args:
      queries: all queries; identical queries may share one `Query`.
      epsilon: > 0.
      excess: the amount by which discretization may increase log delta. The increase
        may be larger if this limit would need too many discrete losses.
    """
    kinds = tuple(queries)
    removed = _delta(kinds, False, epsilon, excess)
    if all(query.is_replaced or query.probability == 1.0 for query in kinds):
        # For fixed-size samples or all examples, both directions have the same delta.
        return removed
    if _delta(kinds, True, epsilon, max(excess, ROUGH)) <= removed:
        return removed
    return max(removed, _delta(kinds, True, epsilon, excess))


@functools.lru_cache(maxsize=512)
def _delta(kinds: tuple[Query, ...], add: bool, epsilon: float, excess: float) -> float:
    laws = [Law(query, add) for query in kinds]
    counts = np.array([float(query.count) for query in kinds])
    theta, mean, deviation, top = _tilt(laws, epsilon)
    # The window of the Fourier transform starts at or below epsilon. It contains almost
    # all values of the sum of the losses under the tilted distribution.
    begin = min(epsilon, mean - _WINDOW * deviation)
    end = max(epsilon, mean + _WINDOW * deviation) + 2.0 / theta
    # Moving a query's losses l to multiples of h increases the mean of `exp(theta l)`
    # by a factor of at most about `1 + theta (theta + 1) h^2 / 8`.
    step = math.sqrt(8.0 * excess / (counts.sum() * theta * (theta + 1.0)))
    most = math.sqrt(_MORE_EXCESS) * step
    step = min(max(step, (end - begin) / _USUAL_PLACES), most)
    step = max(step, (end - begin) / _MOST_PLACES)
    for lowest, highest in (law.range for law in laws):
        largest = max(abs(lowest), abs(highest))
        step = max(step, (highest - lowest) / _MOST_CELLS, 1e-13 * largest)
    places = 2 ** math.ceil(math.log2(max((end - begin) / step, _LEAST_PLACES)))
    tilted, log_m, log_top, size, infinite = [], 0.0, 0.0, 0.0, 0.0
    for law, count in zip(laws, counts):
        first, masses, beyond = law.discretized(step)
        index = np.arange(first, first + masses.size)
        with np.errstate(divide="ignore"):
            logs = np.log(masses) + theta * step * index
        total = float(np.logaddexp.reduce(logs))
        larger = np.logaddexp.reduce(logs + (top - theta) * step * index)
        weights = np.exp(logs - total)
        tilted.append(np.bincount(index % places, weights, minlength=places))
        log_m, log_top = log_m + count * total, log_top + count * float(larger)
        size += count * (4.0 + abs(total) + abs(float(larger)))
        infinite += count * beyond
    window = _product(tilted, counts)
    # After the roll, entry i of the window belongs to the sum of losses with the index
    # `start + i`.
    start = math.floor(begin / step)
    window = np.roll(window, -(start % places))
    sums = step * np.arange(start, start + places)
    # `rounding` bounds the total rounding error of the losses and of the cells' ends.
    # The sum of the absolute losses is at most the absolute value of the sum of the
    # losses plus twice the sum of the `drop` values.
    drop = float(counts @ [law.drop for law in laws])
    largest = float(np.abs(sums[[0, -1]]).max())
    rounding = 2.0 * float(counts @ [law.rounding for law in laws])
    rounding += 32.0 * _UNIT * (2.0 * drop + largest + epsilon)
    over = sums - (epsilon - rounding)
    reached = over > 0.0
    terms = window[reached] * np.exp(-theta * over[reached]) * -np.expm1(-over[reached])
    # A tilt by `top` instead of the smaller theta gives a bound on the probability that
    # the sum of the losses is above the window.
    after = sums[-1] + step
    lost = min(log_top - log_m - (top - theta) * after, 0.0)
    lost = math.exp(lost - theta * (after - epsilon + rounding))
    exponent = log_m - theta * (epsilon - rounding)
    # The exponent is increased to allow for rounding errors of tilted probabilities, of
    # the logarithms of their sums M (`log_m`), and of exponents.
    exponent += 8.0 * _UNIT * size
    exponent += 8.0 * _UNIT * (theta + top) * (largest + epsilon + 2.0 * drop)
    total = math.log(float(terms.sum()) + lost + 1e-300) + exponent
    return min(math.exp(min(total, 0.0)) * (1.0 + 1e-9) + infinite, 1.0)


def _tilt(laws: list[Law], epsilon: float) -> tuple[float, float, float, float]:
    """Returns theta, the mean and standard deviation of the tilted sum, and `top`.

    The tilted sum is the sum of the losses under the distribution that is tilted by
    theta. A tilt by `top > theta` serves to bound the probability of a sum above the
    window of the Fourier transform. A quadrature computes all four values. Its errors
    do not matter, because the bound on delta holds for any values.
    """
    nodes = [(*law.nodes(), law.query.count) for law in laws]

    def bound(log_theta: float) -> float:
        theta = math.exp(log_theta)
        total = 0.0
        for losses, weights, count in nodes:
            total += count * float(np.logaddexp.reduce(weights + theta * losses))
        return total - theta * epsilon

    best = scipy.optimize.minimize_scalar(
        bound,
        bounds=(_LEAST_LOG_THETA, math.log(_MOST_EXPONENT / epsilon)),
        method="bounded",
        options={"xatol": 1e-4},
    )
    theta = math.exp(best.x)
    mean = variance = 0.0
    for losses, weights, count in nodes:
        tilted = weights + theta * losses
        tilted = np.exp(tilted - np.logaddexp.reduce(tilted))
        centre = float(tilted @ losses)
        mean += count * centre
        variance += count * max(float(tilted @ (losses - centre) ** 2), 1e-300)
    deviation = math.sqrt(variance)
    return theta, mean, deviation, theta + min(_WINDOW / deviation, theta)


def _product(laws: list[np.ndarray], counts: np.ndarray) -> np.ndarray:
    """Returns upper bounds on all entries of a circular convolution, shape [N].

    Args:
      laws: the tilted distributions, each of shape [N].
      counts: how often each distribution occurs in the convolution.
    """
    places = laws[0].size
    eta = 8.0 * math.log2(places) * _UNIT
    log_product, log_upper, errors = 0.0, 0.0, 0.0
    for weights, count in zip(laws, counts):
        transform = scipy.fft.rfft(weights)
        size = np.abs(transform) + eta
        transform = np.where(transform == 0.0, 1e-300, transform)
        log_product = log_product + count * np.log(transform)
        log_upper = log_upper + count * np.log(size)
        errors = errors + count * eta / size
    raised = np.exp(log_product)
    rounding = 8.0 * _UNIT * (counts.sum() + 8.0)
    error = np.exp(log_upper) * errors + (rounding + eta) * np.abs(raised)
    # `mean_error` is at least the mean of `error` over all frequencies. rfft returns one
    # of each pair of conjugate frequencies, so all except the first count twice. (The
    # last one may lack a conjugate, but counting it twice only increases the result.)
    mean_error = (2.0 * float(error.sum()) - float(error[0])) / places
    convolved = scipy.fft.irfft(raised, n=places)
    return np.maximum(convolved, 0.0) + mean_error * (1.0 + 1e-6)
