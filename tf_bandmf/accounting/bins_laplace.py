"""The direction "add" of balls in bins without simulation, by a Laplace transform.

`delta = E_Q (1 - exp(epsilon) L)_+ <= sup_x [(1 - exp(epsilon) x) exp(t x)] E_Q exp(-t L)`
for every `t > 0`. `exp(-t L)` is a product over the bins: for a `Kernel` its mean is the
trace of a power of an integral operator, that of an autoregression on a circle. A common
normal of the bins multiplies `t`.

All integrals are trapezoidal sums, which never claim more than the integral:

- *One normal* (a bin's independent part, the common part), of standard deviation `s` in
  `log t`. `z -> f(z) = exp(-t exp(s z))` is analytic, and `|f| <= 1` where
  `|Im z| <= a = pi / (2 s)`; there the density is at most `exp(a^2 / 2)` times that on the
  line. So the sum with step `h` errs by at most `2 exp(a^2 / 2) / (exp(2 pi a / h) - 1)`
  (Trefethen and Weideman, SIAM Review 56, 2014, Theorem 5.1; for smaller `s` with `a`
  up to `2 pi / h`). With `s h <= 0.16`, `h <= 0.4` that is below 1e-23 for each `s`, and
  is added. A step in standard deviations alone would not do: `s h` decides.
- *Beyond the nodes* `0 <= f <= 1`: the mass of both tails is added.
- *The autoregression*, one variable after another. Given the others, `x_j` is normal with
  variance `v = innovation^2 / (1 + d^2)` or more, and its factor of the integrand is
  analytic and at most 1 where `|Im x_j| <= pi / 2`. So the sum over `x_j` errs by at most
  `2 exp(a^2 / (2 v)) / (exp(2 pi a / h) - 1)` for each `a <= pi / 2`, relative to the
  density of the others, which integrates and sums to at most 1 and the errors before. The
  best `a` is `2 pi v / h` or `pi / 2`; with `h <= 0.65 v^(1/2)` and
  `h <= pi^2 / (46.7 + pi^2 / (8 v))` the error is below `2 exp(-46.7) < 1.1e-20`. Beyond
  the nodes the sum is at most the mass from one step before, below 1e-20. `3e-20 b` is
  added.

Given the common normal the transform is computed at powers of `exp(1/80)` alone, once for
all `t` and all nodes of that normal. `t -> log E exp(-t L)` is convex: between two powers
it lies below the chord, which is too large by at most about `2e-5` times the variance of
`t L` under the density `exp(-t L)`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Callable

import numpy as np

from tf_bandmf.accounting import tails
from tf_bandmf.accounting.bins_kernel import Kernel
from tf_bandmf.accounting.threads import one_thread

# Standard deviations of the trapezoidal rule for one normal variable; its step in them,
# at most, and in units of log t.
_REACH, _MOST_STEP, _LOG_STEP = 10.0, 0.4, 0.16
# What the trapezoidal rule errs by: for one normal variable, and for one of the
# autoregression's.
_ERROR, _LATTICE_ERROR = 1e-23, 3e-20
# Step in standard deviations of a variable of the autoregression given the others, and at
# most; minus the logarithm of what it errs by.
_CONDITIONAL, _LARGEST_STEP, _LOG_ERROR = 0.65, 0.15, 46.7
# An independent part of a bin that is a smaller share of its variance goes to the ripple.
_NO_REST = 1e-9
# What numerical integration may err by, relative, and what may be left to a bound.
_MARGIN, _NEGLIGIBLE = 1e-6, 1e-9
# Logarithms of what is added to a sum over one normal variable, and to one over the
# autoregression for each of its variables: tails beyond the nodes, and the rule's error.
_LOG_LEFT_OUT = math.log(2.0 * float(tails.upper_tail(_REACH)) + _ERROR)
_LOG_LATTICE_LEFT_OUT = math.log(2.0 * float(tails.upper_tail(_REACH)) + _LATTICE_ERROR)
# Every so many-th of the places in `log t` that the common normal reaches comes first.
_SPARSE = 16
# Numbers in memory at once, and nodes of all variables together that are worth the time.
_MOST_ENTRIES, _MOST_NODES = 2_000_000, 30_000_000
# `log t` is a multiple of this: searches for several epsilons share their values. So many
# of them does a search see.
_GRID = 0.05
_SEARCHED = 30
# What the common normal adds lies between places of a finer grid, whose step is a
# binary fraction of `_GRID`.
_FINER = 4
_LOWEST, _COARSE, _FINE = -60, 25, (12, 6, 3, 2, 1)


def delta_by_laplace(epsilon: float, kernel: Kernel) -> float:
    """An upper bound on `E_Q (1 - exp(epsilon) L)_+` for a kernel in units of the noise.

    1 where the noise is so small that the integrals would take too long.
    """
    transform = _transform(kernel)
    if transform.num_nodes > _MOST_NODES:
        return 1.0

    def log_bound(place: int) -> float:
        t = math.exp(_GRID * place)
        return _log_largest(epsilon, t) + transform.on_grid(place)

    return min(1.0, math.exp(min(_least(log_bound, epsilon), 0.0)) * (1.0 + _MARGIN))


def epsilon_by_laplace(delta: float, kernel: Kernel, largest: float) -> float:
    """The least epsilon >= 0 at which some t bounds the direction "add" by delta.

    The transform does not depend on epsilon: one search over t, where finding the root of
    `delta_by_laplace` takes one for each step.

    Args:
      delta: in (0, 1).
      kernel: in units of the noise.
      largest: epsilon that holds for certain.
    """
    log_delta = math.log(delta) - math.log1p(_MARGIN)
    transform = _transform(kernel)
    if transform.num_nodes > _MOST_NODES:
        return largest

    def epsilon_at(place: int) -> float:
        # log sup_x (1 - exp(epsilon) x) exp(t x) = exp(u) - 1 - u, u = log t - epsilon > 0.
        excess = log_delta - transform.on_grid(place)
        return _GRID * place - _inverse(excess) if excess >= 0.0 else math.inf

    return min(max(_least(epsilon_at, largest), 0.0), largest)


def _least(function: Callable[[int], float], epsilon: float) -> float:
    """The least value found of a function of `log t / _GRID`."""
    # The threshold exp(-epsilon) is reached by t of about its inverse, and more.
    highest = math.ceil((epsilon + 8.0) / _GRID)
    function = functools.cache(function)
    best = min(range(_LOWEST, highest + _COARSE, _COARSE), key=function)
    for step in _FINE:
        best = min((best - step, best, best + step), key=function)
    return function(best)


def _inverse(value: float) -> float:
    """The `u >= 0` with `exp(u) - 1 - u = value >= 0`, rounded down."""
    import scipy.optimize  # slow to import

    def excess(u: float) -> float:
        return math.expm1(u) - u - value

    root = scipy.optimize.brentq(excess, 0.0, math.log1p(value) + 1.0, xtol=1e-12)
    return max(root * (1.0 - 1e-9) - 1e-9, 0.0)


def _log_largest(epsilon: float, t: float) -> float:
    """`log sup_x (1 - exp(epsilon) x) exp(t x)` over x >= 0."""
    place = math.exp(-epsilon) - 1.0 / t
    if place <= 0.0:
        return 0.0
    return epsilon - math.log(t) + t * place


def log_laplace(t: float, kernel: Kernel) -> float:
    """`log E_Q exp(-t L)`."""
    return _transform(kernel).at(math.log(t))


@functools.lru_cache(maxsize=4)
def _transform(kernel: Kernel) -> _Transform:
    return _Transform(kernel)


class _Transform:
    """`log E_Q exp(-t L)` of one kernel as a function of `log t`."""

    def __init__(self, kernel: Kernel) -> None:
        varying = kernel.own - kernel.common
        rest = max(varying - kernel.ripple_variance, 0.0)
        if kernel.ripple > 0.0 and rest < _NO_REST * kernel.own:
            # Kahane: a larger ripple is above.
            ripple = kernel.ripple * max(1.0, varying / kernel.ripple_variance)
            kernel, rest = dataclasses.replace(kernel, ripple=ripple), 0.0
        self._kernel = kernel
        self._half = 0.5 * (kernel.common + kernel.ripple_variance + rest)
        self._rest = _normal(math.sqrt(rest))
        self._common = _normal(math.sqrt(kernel.common))
        if kernel.ripple > 0.0:
            self._nodes, self._operator = _operator(kernel)
        else:
            self._nodes, self._operator = np.zeros(1), np.ones((1, 1))
        self._on_grid: dict[int, float] = {}
        self._at_place: dict[int, float] = {}
        inner = max(self._rest[0].size, self._nodes.size)
        reached = _FINER * np.ptp(self._common[0]) / _GRID + _SEARCHED
        self.num_nodes = reached * self._nodes.size * inner

    def on_grid(self, place: int) -> float:
        """At `log t = place * _GRID`, from above by chords; kept.

        The transform given the common normal falls in it: where the value at a lower place
        shows that a node does not matter, it stands for the node's own.
        """
        if place not in self._on_grid:
            shifts, weights = self._common
            step = _GRID / _FINER
            moved = shifts / step
            low = np.floor(moved).astype(int)
            # The weight of the upper place, linear in t.
            parts = np.expm1(step * (moved - low)) / math.expm1(step)
            parts = np.clip(parts, 0.0, 1.0)
            low += place * _FINER
            first = _SPARSE * np.floor_divide(low, _SPARSE)
            log_weights = np.log(weights)
            values = self._given_places(first)
            least = np.logaddexp.reduce(
                self._given_places(first + _SPARSE) + log_weights
            )
            matters = values + log_weights > least + math.log(_NEGLIGIBLE / shifts.size)
            at, part = low[matters], parts[matters]
            below, above = self._given_places(at), self._given_places(at + (part > 0.0))
            values[matters] = below + part * (above - below)
            # Rounding of the chord.
            values[matters] += 2.0**-50 * (np.abs(below) + np.abs(above))
            total = np.logaddexp.reduce(values + log_weights)
            self._on_grid[place] = float(np.logaddexp(total, _LOG_LEFT_OUT))
        return self._on_grid[place]

    def at(self, log_t: float) -> float:
        """By the trapezoidal rule alone, wherever t is: the slow way."""
        shifts, weights = self._common
        found = self._given_common(log_t + shifts) + np.log(weights)
        return float(np.logaddexp(np.logaddexp.reduce(found), _LOG_LEFT_OUT))

    def _given_places(self, places: np.ndarray) -> np.ndarray:
        """For a common normal of 0 on the finer grid, of the same shape; kept."""
        new = np.array(sorted(set(places.tolist()) - set(self._at_place)), dtype=int)
        if new.size:
            found = self._given_common(new * (_GRID / _FINER))
            self._at_place.update(zip(new.tolist(), found.tolist()))
        return np.array([self._at_place[place] for place in places.tolist()])

    def _given_common(self, log_t: np.ndarray) -> np.ndarray:
        """For a common normal of 0, shape [S] -> [S]."""
        per_chunk = max(1, _MOST_ENTRIES // max(self._rest[0].size, self._nodes.size))
        per_chunk = max(1, per_chunk // self._nodes.size)
        chunks = np.array_split(log_t, math.ceil(log_t.size / per_chunk))
        with one_thread():
            return np.concatenate([self._in_chunk(chunk) for chunk in chunks])

    def _in_chunk(self, log_t: np.ndarray) -> np.ndarray:
        b = self._kernel.num_bins
        shifts, weights = self._rest
        places = log_t[:, None] + self._nodes - (self._half + math.log(b))
        density = np.full(places.shape, math.exp(_LOG_LEFT_OUT))
        step = max(1, _MOST_ENTRIES // places.size)
        for start in range(0, shifts.size, step):
            part = slice(start, start + step)
            exponents = places[..., None] + shifts[part]
            density += np.exp(-np.exp(np.minimum(exponents, 600.0))) @ weights[part]
        if self._nodes.size == 1:
            return b * np.log(density[:, 0])
        root = np.sqrt(density)
        product = root[:, :, None] * self._operator * root[:, None]
        eigenvalues = np.maximum(np.linalg.eigvalsh(product), 1e-300)
        trace = np.logaddexp.reduce(b * np.log(eigenvalues), axis=1)
        trace += math.log1p(-(self._kernel.decay**b))
        return np.logaddexp(trace, math.log(b) + _LOG_LATTICE_LEFT_OUT)


def _normal(deviation: float) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of the trapezoidal rule; one of each where nothing varies."""
    if deviation == 0.0:
        return np.zeros(1), np.ones(1)
    step = min(_MOST_STEP, _LOG_STEP / deviation)
    nodes = np.arange(-_REACH, _REACH + 0.5 * step, step)
    weights = np.exp(-0.5 * nodes**2) * step / math.sqrt(2.0 * math.pi)
    return deviation * nodes, weights


def _operator(kernel: Kernel) -> tuple[np.ndarray, np.ndarray]:
    """Nodes, and the symmetrized transition: its b-th power has trace 1 / (1 - d^b)."""
    decay = kernel.decay
    variance = kernel.ripple * (1.0 - decay**kernel.num_bins)
    innovation = math.sqrt(variance * (1.0 - decay**2))
    step = _lattice_step(innovation**2 / (1.0 + decay**2))
    # The widest function is that of one bin on the circle.
    reach = _REACH * math.sqrt(max(kernel.ripple_variance, variance))
    nodes = np.arange(-reach, reach + 0.5 * step, step)
    x, y = nodes[:, None], nodes[None]
    exponents = 0.5 * (1.0 + decay**2) * (x**2 + y**2) - 2.0 * decay * x * y
    operator = np.exp(-0.5 * exponents / innovation**2)
    return nodes, operator * step / (math.sqrt(2.0 * math.pi) * innovation)


def _lattice_step(variance: float) -> float:
    """The step of the lattice, from a variable's variance given the others."""
    in_strip = math.pi**2 / (_LOG_ERROR + math.pi**2 / (8.0 * variance))
    return min(_CONDITIONAL * math.sqrt(variance), in_strip, _LARGEST_STEP)
