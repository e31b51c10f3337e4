"""Moments of the likelihood ratio of balls in bins, from above, without simulation.

In units of the noise, `E_Q[L^alpha] = b^-alpha sum over (j_1 .. j_alpha) of exp(sum_{s<t}
G[j_s, j_t])` (compare Schuchardt and Kalinin, arXiv:2601.21636, who bound the Renyi
divergence by a dynamic program). For a `Kernel` on a line the sum is one over how many
indices lie in each bin: from bin to bin the state is how many are left, and what those so
far contribute to the next one, `S <- decay (S + m)`. The value is a convex function of `S`:
chords between the points of a grid bound it from above.

The circle of the bins becomes a line by leaving out a gap: `L` is the mean over all
rotations of the same ratio without the gap's bins, so that for convex functions it is
bounded by one of them.
"""

from __future__ import annotations

import math

import numpy as np

from tf_bandmf.accounting.bins_kernel import Kernel

# Logarithms of sums stay below, for float64; larger ones belong to what is not reached.
_LARGEST_EXPONENT = 600.0
_LARGEST = 1e300
_LARGEST_ORDER = 24
# Relative error of a few operations of float64, and what underflow may take away.
_ROUNDING, _LEAST_DELTA = 2.0**-48, 1e-60
# Ratio of neighbors in the grid of S, and its least point.
_RATIO, _LEAST_POINT = 0.97, 1e-3


def largest_order(kernel: Kernel) -> int:
    """The largest moment that is computed for a kernel in units of the noise.

    So large that no sum over places exceeds what float64 holds.

    Raises:
      ValueError: if not even the second moment can be computed: the noise is too small.
    """
    strongest = max(kernel.own, kernel.ripple)
    for order in range(_LARGEST_ORDER, 1, -1):
        places = order * math.log(kernel.num_bins) - math.lgamma(order + 1)
        if 0.5 * order**2 * strongest + max(places, 0.0) <= _LARGEST_EXPONENT:
            return order
    raise ValueError(
        f"Moments need noise of 1/15 of the strategy's norm or more, found a squared "
        f"ratio of {kernel.own:.4g}."
    )


def log_moments(kernel: Kernel, order: int) -> np.ndarray:
    """Upper bounds on `log E_Q[L^alpha]` for alpha = 0 .. order, shape [order + 1].

    Args:
      kernel: in units of the noise.
      order: >= 2, at most `largest_order(kernel)`.
    """
    b, ripple = kernel.num_bins, kernel.ripple
    is_flat = ripple == 0.0 or b == 1
    gaps = np.arange(1 if is_flat else b // 2 + 1)
    lines = _log_line_sums(kernel, order, b - gaps)
    counts = np.arange(order + 1)
    # Pairs across the gap are at least gap + 1 apart.
    across = np.zeros(1) if is_flat else ripple * kernel.decay ** (gaps + 1.0)
    pairs: np.ndarray = counts * (counts - 1) / 2
    logs: np.ndarray = lines - counts * np.log(b - gaps)[:, None]
    logs = logs + (kernel.common + across)[:, None] * pairs
    found = logs.min(axis=0) + 1e-9
    # The ratio has mean 1, and its moments do not fall.
    found[:2] = 0.0
    return np.maximum.accumulate(found)


def _log_line_sums(kernel: Kernel, order: int, lengths: np.ndarray) -> np.ndarray:
    """Log sums over ordered tuples of places on lines, shape [lengths, order + 1].

    Without the common part, and without what goes around the circle.
    """
    decay, ripple, own = kernel.decay, kernel.ripple, kernel.own - kernel.common
    grid = _grid(decay, order) if ripple else np.array([0.0, 1.0])
    steps = []
    for m in range(order + 1):
        exponents = own * m * (m - 1) / 2.0 + ripple * m * grid - math.lgamma(m + 1)
        target = np.minimum(decay * (grid + m), grid[-1])
        high = np.clip(np.searchsorted(grid, target), 1, grid.size - 1)
        weight = (target - grid[high - 1]) / (grid[high] - grid[high - 1])
        # Larger exponents belong to an S that is not reached.
        factor = np.exp(np.minimum(exponents, _LARGEST_EXPONENT))
        steps.append((factor, high, np.clip(weight, 0.0, 1.0)))
    value = np.zeros((order + 1, grid.size))
    value[0] = 1.0
    sums = np.empty((lengths.size, order + 1))
    factorials = np.array([math.lgamma(count + 1) for count in range(order + 1)])
    for length in range(1, int(lengths.max()) + 1):
        following = np.zeros_like(value)
        for m, (factor, high, weight) in enumerate(steps):
            part = value[: order + 1 - m]
            chord = part[:, high] * weight + part[:, high - 1] * (1.0 - weight)
            # What overflows is not reached; it is cut off below.
            with np.errstate(over="ignore"):
                following[m:] += factor * chord
        value = np.minimum(following, _LARGEST)
        sums[lengths == length] = np.log(value[:, 0]) + factorials
    return sums


def _grid(decay: float, order: int) -> np.ndarray:
    """Points of S: 0, and a geometric sequence that decay maps to itself."""
    if decay <= 0.0:
        return np.array([0.0, 1.2 * order + 1.0])
    per_step = max(1, math.ceil(math.log(decay) / math.log(_RATIO)))
    ratio = decay ** (1.0 / per_step)
    top = 1.2 * order + 1.0
    count = math.ceil(math.log(_LEAST_POINT / top) / math.log(ratio))
    return np.concatenate([[0.0], top * ratio ** np.arange(count, -1.0, -1.0)])


def delta_from_moments(epsilon: float, logs: np.ndarray) -> float:
    """The least bound on `E (L - exp(epsilon))_+` from moments of L, whose mean is 1.

    For every order `a > 1` and `0 <= l <= 1`, `h(L) = L^a - a l^(a-1) L + (a - 1) l^a` is
    not negative, and `(L - K)_+ <= c h(L)` with `c = sup_{L > K} (L - K) / h(L)`. `l = 0`
    is the conversion of Canonne, Kamath and Steinke (arXiv:2004.00010, Prop. 12); others
    use that the mean is known (compare Asoodeh et al., arXiv:2008.06529). Between whole
    orders log moments lie below their chord.

    Args:
      epsilon: >= 0.
      logs: `log E L^a` or more, for a = 0, 1, ...
    """
    orders = np.linspace(1.0, logs.size - 1.0, 6 * (logs.size - 2) + 1)[1:]
    moments = np.exp(np.interp(orders, np.arange(logs.size), logs))[:, None]
    touch = np.concatenate([[0.0], np.linspace(0.4, 1.0, 9)])[None]
    a = orders[:, None]
    linear, constant = a * touch ** (a - 1.0), (a - 1.0) * touch**a
    beyond = np.geomspace(1e-2, 1e3, 800)
    # In units of K, and h in units of K^a so that nothing overflows. Cell by cell: the
    # numerator is largest right, h is least left.
    left, right = 1.0 + beyond[:-1], beyond[1:]
    best = 1.0
    for i, order in enumerate(orders):
        slope = linear[i][:, None] * math.exp((1.0 - order) * epsilon)
        offset = constant[i][:, None] * math.exp(-order * epsilon)
        h = _least_excess(left, order, slope, offset)
        # The first cell reaches down to L = K, where h is less.
        at = _least_excess(np.ones(1), order, slope, offset)[:, 0]
        with np.errstate(divide="ignore"):
            factor = np.max(right / np.maximum(h, 0.0), axis=1)
            factor = np.maximum(factor, beyond[0] / np.maximum(at, 0.0))
            # Beyond the last cell: (L - K) / h <= L / h, which falls.
            factor = np.maximum(factor, (1.0 + beyond[-1]) / np.maximum(h[:, -1], 0.0))
        excess = moments[i, 0] - linear[i] + constant[i]
        excess += _ROUNDING * (moments[i, 0] + linear[i] + constant[i])
        possible = np.isfinite(factor) & (excess >= 0.0)
        if np.any(possible):
            logs_found = np.log(factor[possible]) + np.log(excess[possible])
            found = math.exp(min(logs_found.min() + (1.0 - order) * epsilon, 0.0))
            best = min(best, found)
    return best * (1.0 + 1e-9) + _LEAST_DELTA


def _least_excess(
    ratio: np.ndarray, order: float, slope: np.ndarray, offset: np.ndarray
) -> np.ndarray:
    """`ratio^order - slope ratio + offset` less what rounding may add, [touches, cells]."""
    powers = ratio**order
    return (
        powers - slope * ratio + offset - _ROUNDING * (powers + slope * ratio + offset)
    )
