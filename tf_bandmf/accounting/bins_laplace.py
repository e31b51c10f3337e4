"""The direction "add" of balls in bins without simulation, by a Laplace transform.

`delta = E_Q (1 - exp(epsilon) L)_+ <= sup_x [(1 - exp(epsilon) x) exp(t x)] E_Q exp(-t L)`
for every `t > 0`. `exp(-t L)` is a product over the bins: for a `Kernel` its mean is the
trace of a power of an integral operator, that of an autoregression on a circle. The
trapezoidal rule has errors of rounding there: for Gaussian kernels it converges faster than
geometrically. A common normal of the bins multiplies `t`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Callable

import numpy as np

from tf_bandmf.accounting.bins_kernel import Kernel

# Standard deviations and step of the trapezoidal rule for one normal variable.
_REACH, _STEP = 9.0, 0.2
# The step for the common normal: in units of its standard deviation, at least and at most.
# exp(-t exp(z)) is analytic as far as pi / 2 from the real line.
_COMMON_STEP, _LEAST_STEP, _MOST_STEP = 0.25, 0.2, 0.4
# Step in units of the autoregression's innovations, and at most.
_INNOVATIONS, _LARGEST_STEP = 0.65, 0.15
_SMALL_COMMON = 1e-3
# An independent part of a bin that is a smaller share of its variance goes to the ripple.
_NO_REST = 1e-9
# What numerical integration may err by, relative, and what may be left to a bound.
_MARGIN, _NEGLIGIBLE = 1e-6, 1e-9
# Of the common normal's nodes every so many-th is evaluated first.
_SPARSE = 4
# `log t` is a multiple of this: searches for several epsilons share their values.
_GRID = 0.05
_LOWEST, _COARSE, _FINE = -60, 25, (12, 6, 3, 2, 1)


def delta_by_laplace(epsilon: float, kernel: Kernel) -> float:
    """An upper bound on `E_Q (1 - exp(epsilon) L)_+` for a kernel in units of the noise."""
    transform = _transform(kernel)

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
        self._rest = _normal(math.sqrt(rest), _STEP)
        deviation = math.sqrt(kernel.common)
        if 0.0 < kernel.common < _SMALL_COMMON:
            # Nearly constant: Gauss and Hermite need few points.
            points, shares = np.polynomial.hermite_e.hermegauss(9)
            self._common = deviation * points, shares / shares.sum()
        else:
            step = _COMMON_STEP / max(deviation, _COMMON_STEP)
            step = min(max(step, _LEAST_STEP), _MOST_STEP)
            self._common = _normal(deviation, step)
        if kernel.ripple > 0.0:
            self._nodes, self._operator = _operator(kernel)
        else:
            self._nodes, self._operator = np.zeros(1), np.ones((1, 1))
        self._on_grid: dict[int, float] = {}

    def on_grid(self, place: int) -> float:
        """At `log t = place * _GRID`; kept."""
        if place not in self._on_grid:
            self._on_grid[place] = self.at(_GRID * place)
        return self._on_grid[place]

    def at(self, log_t: float) -> float:
        """Up to `_NEGLIGIBLE` above the trapezoidal rule.

        The transform given the common normal falls in it: where the value at a lower node
        shows that a node does not matter, it stands for the node's own.
        """
        shifts, log_weights = self._common[0], np.log(self._common[1])
        places = np.arange(0, shifts.size, _SPARSE)
        found = self._given_common(log_t + shifts[places])
        values = np.repeat(found, _SPARSE)[: shifts.size]
        least = np.logaddexp.reduce(found + log_weights[places])
        matters = values + log_weights > least + math.log(_NEGLIGIBLE / shifts.size)
        matters[places] = False
        if np.any(matters):
            values[matters] = self._given_common(log_t + shifts[matters])
        return float(np.logaddexp.reduce(values + log_weights))

    def _given_common(self, log_t: np.ndarray) -> np.ndarray:
        """For a common normal of 0, shape [S] -> [S]."""
        b = self._kernel.num_bins
        shifts, weights = self._rest
        exponents = self._nodes[:, None] + shifts - (self._half + math.log(b))
        exponents = log_t[:, None, None] + exponents
        density = np.exp(-np.exp(np.minimum(exponents, 600.0))) @ weights
        if self._nodes.size == 1:
            return b * np.log(np.maximum(density[:, 0], 1e-300))
        root = np.sqrt(density)
        product = root[:, :, None] * self._operator * root[:, None]
        eigenvalues = np.maximum(np.linalg.eigvalsh(product), 1e-300)
        trace = np.logaddexp.reduce(b * np.log(eigenvalues), axis=1)
        return trace + math.log1p(-(self._kernel.decay**b))


def _normal(deviation: float, step: float) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of the trapezoidal rule; one of each where nothing varies."""
    if deviation == 0.0:
        return np.zeros(1), np.ones(1)
    nodes = np.arange(-_REACH, _REACH + 0.5 * step, step)
    weights = np.exp(-0.5 * nodes**2) * step / math.sqrt(2.0 * math.pi)
    return deviation * nodes, weights


def _operator(kernel: Kernel) -> tuple[np.ndarray, np.ndarray]:
    """Nodes, and the symmetrized transition: its b-th power has trace 1 / (1 - d^b)."""
    decay = kernel.decay
    variance = kernel.ripple * (1.0 - decay**kernel.num_bins)
    innovation = math.sqrt(variance * (1.0 - decay**2))
    step = min(_INNOVATIONS * innovation, _LARGEST_STEP)
    # The widest function is that of one bin on the circle.
    reach = _REACH * math.sqrt(max(kernel.ripple_variance, variance))
    nodes = np.arange(-reach, reach + 0.5 * step, step)
    x, y = nodes[:, None], nodes[None]
    exponents = 0.5 * (1.0 + decay**2) * (x**2 + y**2) - 2.0 * decay * x * y
    operator = np.exp(-0.5 * exponents / innovation**2)
    return nodes, operator * step / (math.sqrt(2.0 * math.pi) * innovation)
