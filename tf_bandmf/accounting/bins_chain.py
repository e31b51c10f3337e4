"""The direction "remove" of balls in bins without simulation, bin after bin.

For a `Kernel` the bins are a Markov chain on a circle: `L = (1/b) sum_j exp(x_j - v / 2)`
with `x` Gaussian of covariance `ripple (d^k + d^(b - k))`, variance `v` (its precision is
that of neighbors). Given `x_0`, bin after bin, `x_j = A_j x_{j-1} + B_j x_0 + s_j z_j` with
independent normals `z_j`. With what the bins after j contribute,
`R_j = (1/b) sum_{i > j} exp(x_i - v / 2)`, the conditional hockey sticks

    H_j(x, q; x_0) = E[(R_j - q)_+ | x_j = x, x_0]
                   = E[H_{j+1}(x', q - exp(x' - v / 2) / b; x_0) | x_j = x, x_0]

give `E_Q (L - K)_+ = E H_0(x_0, K - exp(x_0 - v / 2) / b; x_0)`. They are computed on a
grid, from above by induction: each of these steps is an inequality in the right direction.

- `R_j` is a sum of exponentials of affine functions of `x_0`, `x` and the normals, with
  coefficients >= 0 for `x_0` and `x`, and `(. - q)_+` is convex and rises. So `H_j` is
  convex and rises in `x` and in `x_0`, is convex and falls in `q`, and is `E R_j - q` for
  `q <= 0`. Between nodes a convex function lies below its chord, and chords of upper bounds
  at the nodes are above chords of `H`: an expectation over `x'` (or `x_0`) becomes a sum
  over nodes whose weights keep the mean within each cell. Below the first node the value
  at the node is larger; beyond the last `q` the value at that `q` is.
- Beyond the last node of `x'` (or `x_0`), `H <= E[R_j | x']`, and
  `E[R_j | x'] <= exp(x') (b - j) / b`: between `x'` and `x_b = x_0 <= x'` the means are
  `alpha x' + beta x_0` with `alpha, beta >= 0` and `alpha + beta <= 1`, and the conditional
  variances are at most `v`. Its mean over the normal tail is closed.
- What the kernel has beside the chain: each bin's independent normal multiplies its term
  by `e >= 0` of mean 1; `H` is convex in `e` and 1-Lipschitz in `q`, so that chords in `e`,
  and `E(e - e_top)_+` times the term beyond, are above. The common normal multiplies `L`;
  `E (e L' - K)_+ = e E (L' - K / e)_+` is convex in the normal, and at most `e` beyond.

Conditional composition (Schuchardt and Kalinin, arXiv:2601.21636: the posterior of the bin
is bounded but for a small probability, and the steps are composed) has the same aim, to be
tight for small epsilon, where moments are not. This follows the ratio along the bins and
leaves nothing out.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from tf_bandmf.accounting import tails
from tf_bandmf.accounting.bins_kernel import Kernel
from tf_bandmf.accounting.threads import one_thread

# An independent part of a bin that is a smaller share of its variance goes to the chain.
_NO_REST = 1e-3
# Nodes in standard deviations: below the mean, and above what the bin's own tilt adds to
# it, where the last fine one is and those beyond.
_BELOW, _FINE = np.array([-3.0, -2.1, -1.4, -0.9, -0.5, -0.2]), 4.8
_BEYOND = np.array([5.3, 6.0, 7.0, 8.5, 10.0])
# The same for a bin's independent part, and how far that of the common normal goes.
_INDEPENDENT_FINE, _INDEPENDENT_BEYOND = 6.0, np.linspace(6.25, 10.0, 16)
_COMMON_REACH, _COMMON_NODES = 10.0, 81
# Exponents stay below, for single precision.
_LARGEST_EXPONENT = 67.0
# Smaller numbers are 0 in single precision.
_UNDERFLOW = 2.0**-126


@dataclasses.dataclass(frozen=True)
class Grid:
    """Resolution: cost falls, and the bound rises, with coarser grids.

    Attributes:
      innovation: step of `y` in standard deviations of an innovation.
      threshold: least step of `q`; and steps relative to q below `q = 8`, and above.
      entries: bound on the number of nodes of `x_0`: this over the number of bins.
    """

    innovation: float = 0.25
    threshold: tuple[float, float, float] = (0.003, 0.004, 0.02)
    entries: int = 6_000


@dataclasses.dataclass(frozen=True)
class Profile:
    """Upper bounds on `E_Q (L - K)_+` at thresholds K, both of shape [M], K rising."""

    thresholds: np.ndarray
    deltas: np.ndarray

    def at(self, threshold: float | np.ndarray) -> np.ndarray:
        """By chords; beyond the last K its value, below 0 linear."""
        return np.interp(threshold, self.thresholds, self.deltas) + np.maximum(
            -np.asarray(threshold), 0.0
        )


def profile(
    kernel: Kernel, largest_epsilon: float, grid: Grid | None = None
) -> Profile:
    """Upper bounds for thresholds up to `exp(largest_epsilon)`, and beyond.

    Args:
      kernel: in units of the noise.
      largest_epsilon: beyond it the bound is the one there.
      grid: resolution.

    Raises:
      ValueError: if the noise is too small for single precision, about 1/5 of the norm.
    """
    grid = grid or Grid()
    v = kernel.own - kernel.common
    if v + _BEYOND[-1] * math.sqrt(v) > _LARGEST_EXPONENT:
        raise ValueError(
            f"The chain of the bins needs more noise, found a squared ratio of norm to "
            f"noise of {kernel.own:.4g}."
        )
    common = kernel.common
    chain = dataclasses.replace(kernel, own=kernel.own - common, common=0.0)
    rest = chain.own - chain.ripple_variance
    if chain.ripple > 0.0 and rest < _NO_REST * chain.own:
        # Kahane: a larger ripple is above.
        ripple = chain.ripple * max(1.0, chain.own / chain.ripple_variance)
        chain, rest = dataclasses.replace(chain, ripple=ripple), 0.0
    scatter = math.sqrt(common)
    largest = math.exp(largest_epsilon + 0.5 * common + 4.0 * scatter)
    with one_thread():
        found = _of_chain(chain, max(rest, 0.0), largest, grid)
    if common == 0.0:
        return found
    reach = _COMMON_REACH + scatter
    nodes = scatter * np.linspace(-_COMMON_REACH, reach, _COMMON_NODES)
    weights, tail = _chords(np.zeros(1), scatter, nodes)
    factors = np.exp(nodes - 0.5 * common)
    deltas = np.full(found.thresholds.size, tail[0] * math.exp(-0.5 * common))
    for weight, factor in zip(weights[0], factors):
        deltas += weight * factor * found.at(found.thresholds / factor)
    deltas *= 1.0 + _COMMON_NODES * 2.0**-50
    return Profile(found.thresholds, np.minimum(deltas, 1.0))


def _of_chain(kernel: Kernel, rest: float, largest: float, grid: Grid) -> Profile:
    """`kernel` without its common part, and the variance of the independent part."""
    b, d, v = kernel.num_bins, kernel.decay, kernel.ripple_variance
    deviation = math.sqrt(v)
    terms, over = _independent(rest, 0.1 if v == 0.0 else 0.3)
    if v == 0.0:
        x = start = np.zeros(1)
    else:
        innovation = math.sqrt(v * (1.0 - d * d))
        step = min(grid.innovation * innovation, 0.25 * deviation)
        top = v + _FINE * deviation
        beyond = v + _BEYOND * deviation
        above = np.linspace(0.0, top, max(2, math.ceil(top / step)) + 1)
        x = np.concatenate([_BELOW * deviation, above, beyond])
        count = int(np.clip(grid.entries // b, 8, 32))
        start = np.linspace(-deviation, v + 4.0 * deviation, count - 3)
        start = np.concatenate([[-2.5 * deviation], start, beyond[[0, -1]]])
    contributions = np.exp(x - 0.5 * v) / b
    reach = max(factor for _, factor in terms) * float(contributions.max())
    q = _thresholds(largest, 1.01 * reach + 1.0, grid)
    size, slopes = q.size - 1, 1.0 / np.diff(q)
    places = _places(q, slopes, contributions, terms)
    excess = (over * contributions)[:, None].astype(np.float32)
    # The last bin: R = 0, and -q[0] at q[0] < 0.
    value = np.zeros((start.size, x.size, q.size), np.float32)
    value[..., 0] = -q[0]
    for j in range(b - 1, 0, -1):
        after = _taken(value, places, size) + excess
        from_x, from_start, spread = _regression(kernel, j)
        # In bin 0 there is no x but x_0.
        here = x if j > 1 else np.zeros(1)
        if v == 0.0:
            moved = after
        else:
            mean = from_x * here + from_start * start[:, None]
            weights, tail = _chords(mean.ravel(), spread, x)
            weights = weights.reshape(start.size, here.size, x.size)
            moved = weights.astype(np.float32) @ after
            tail = tail.reshape(start.size, here.size, 1) * ((b - j) / b)
            moved += tail.astype(np.float32)
        value = np.empty((*moved.shape[:2], q.size), np.float32)
        value[..., 1:] = moved
        value[..., 0] = moved[..., 0] - np.float32(q[0])
    first = np.empty((start.size, size))
    for i, contribution in enumerate(np.exp(start - 0.5 * v) / b):
        own = _places(q, slopes, np.array([contribution]), terms)
        first[i] = _taken(value[i : i + 1, :1], own, size)[0, 0]
        first[i] += over * contribution
    if v == 0.0:
        deltas = first[0]
    else:
        weights, tail = _chords(np.zeros(1), deviation, start)
        # E[L | x_0] <= exp(x_0) beyond.
        deltas = weights[0] @ first + tail[0]
    # Rounding to single precision: sums of products of non-negative numbers.
    rounding = math.exp(2.0**-24 * b * (x.size + 2 * len(terms) + 16))
    # Underflow: a weight below it takes away at most that times the largest value, which
    # E[R_j | x'] <= exp(x') bounds; a product at most that. Averages keep both.
    largest_value = reach * (1.0 + b * math.exp(0.5 * v)) if v > 0.0 else 0.0
    lost = _UNDERFLOW * b * (x.size * largest_value + x.size + len(terms) + 2.0)
    return Profile(q[1:], np.minimum(deltas * rounding + lost, 1.0))


def _regression(kernel: Kernel, j: int) -> tuple[float, float, float]:
    """The coefficients of `x_j` on `x_{j-1}` and `x_0`, and the deviation of the rest."""
    b, d, v = kernel.num_bins, kernel.decay, kernel.ripple_variance
    if v == 0.0:
        return 0.0, 0.0, 0.0

    def share(k: int) -> float:
        return (d**k + d ** (b - k)) / (1.0 + d**b)

    near, far = share(1), share(j)
    if j == 1:
        return 0.0, far, math.sqrt(v * (1.0 - far**2))
    before = share(j - 1)
    whole = 1.0 - before**2
    from_x = (near - far * before) / whole
    from_start = max((far - near * before) / whole, 0.0)
    rest = 1.0 - from_x * near - from_start * far
    return from_x, from_start, math.sqrt(v * rest)


def _thresholds(largest: float, reach: float, grid: Grid) -> np.ndarray:
    """q: one node below what a term can reach, 0, and up to `largest`."""
    least, fine, coarse = grid.threshold
    points = [-reach, 0.0]
    while points[-1] < largest:
        q = points[-1]
        points.append(q + max(least, (fine if q < 8.0 else coarse) * q))
    return np.array(points)


def _independent(rest: float, step: float) -> tuple[list[tuple[float, float]], float]:
    """Factors of mean 1: weights and nodes `step` apart, and `E(e - e_top)_+`."""
    if rest == 0.0:
        return [(1.0, 1.0)], 0.0
    s = math.sqrt(rest)
    reach = 9.0 * s + rest
    count = int(np.clip(math.ceil(reach / min(step, s)), 10, 100))
    # Places of log e in standard deviations; above its mean under e's own weight, too.
    z = np.linspace(-3.0, _INDEPENDENT_FINE + s, count)
    z = np.concatenate([[-np.inf], z, _INDEPENDENT_BEYOND + s])
    edges = np.exp(s * z - 0.5 * rest)
    # Mass, and E[e] there: that of normals shifted by s.
    mass, mass_error = tails.cells(z)
    part, _ = tails.cells(z - s)
    width = np.diff(edges)
    right = part - edges[:-1] * (mass - mass_error)
    right += 2.0**-50 * (part + edges[:-1] * mass)
    right = np.clip(right / width, 0.0, mass)
    weights = np.zeros(edges.size)
    weights[:-1] += mass - right
    weights[1:] += right
    # The mass of the tail is at the last node, its excess is the second value.
    weights[-1] += float(tails.upper_tail(z[-1]))
    excess = float(tails.upper_tail(z[-1] - s))
    return list(zip(weights.tolist(), edges.tolist())), excess


def _places(
    q: np.ndarray,
    slopes: np.ndarray,
    shifts: np.ndarray,
    terms: list[tuple[float, float]],
) -> list[tuple[float, np.ndarray, np.ndarray]]:
    """Where `q[1:] - shift` is on the grid.

    For each term its weight, the flat index of the upper node of values [X, Q], and the
    part of the lower one.
    """
    found = []
    for weight, factor in terms:
        target = np.maximum(q[1:] - factor * shifts[:, None], q[0])
        high = np.clip(np.searchsorted(q, target), 1, q.size - 1)
        part = np.clip((q[high] - target) * slopes[high - 1], 0.0, 1.0)
        high += np.arange(shifts.size)[:, None] * q.size
        found.append((weight, high.ravel(), part.astype(np.float32).ravel()))
    return found


def _taken(
    value: np.ndarray, places: list[tuple[float, np.ndarray, np.ndarray]], size: int
) -> np.ndarray:
    """Chords in q, summed over the terms: [S, X, Q] -> [S, X, Q - 1]."""
    flat = value.reshape(value.shape[0], -1)
    total: np.ndarray | None = None
    for weight, high, part in places:
        upper = flat.take(high, axis=1)
        found = flat.take(high - 1, axis=1)
        found -= upper
        found *= part
        found += upper
        if len(places) > 1:
            found *= np.float32(weight)
        total = found if total is None else total + found
    assert total is not None
    return total.reshape(*value.shape[:2], size)


def _chords(
    mean: np.ndarray, deviation: float, nodes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Weights of nodes for an increasing convex function of normal variables.

    Args:
      mean: shape [M].
      deviation: of all of them.
      nodes: rising, shape [N].

    Returns:
      Weights [M, N], and `E[exp(x); x > nodes[-1]]`, shape [M].
    """
    z = (nodes - mean[:, None]) / deviation
    mass, mass_error = tails.cells(z)
    density = np.exp(-0.5 * z**2) / math.sqrt(2.0 * math.pi)
    width = np.diff(nodes) / deviation
    # E[z - left; cell], with what it errs by: rounding of densities and masses.
    moment = density[:, :-1] - density[:, 1:] - z[:, :-1] * mass
    error = np.abs(z[:, :-1]) * mass_error
    error += tails.RELATIVE_ERROR * (density[:, :-1] + density[:, 1:])
    upper = np.clip((moment + error) / width, 0.0, mass)
    weights = np.zeros((mean.size, nodes.size))
    weights[:, :-1] += mass - upper
    weights[:, 1:] += upper
    weights[:, 0] += tails.lower_tail(z[:, 0])
    tail = np.exp(mean + 0.5 * deviation**2) * tails.upper_tail(z[:, -1] - deviation)
    return weights, tail
