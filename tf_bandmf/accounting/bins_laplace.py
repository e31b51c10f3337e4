"""The direction "add" of balls in bins without simulation, by a Laplace transform.

`delta = E_Q (1 - exp(epsilon) L)_+ <= sup_x [(1 - exp(epsilon) x) exp(t x)] E_Q exp(-t L)`
for every `t > 0`. `exp(-t L)` is a product over the bins: for a `Kernel` its mean is the
trace of a power of an integral operator, that of an autoregression on a circle. The
trapezoidal rule has errors of rounding there: for Gaussian kernels it converges faster than
geometrically.
"""

from __future__ import annotations

import math
from typing import Callable

import numpy as np

from tf_bandmf.accounting.bins_kernel import Kernel

# Standard deviations and step of the trapezoidal rule for one normal variable.
_REACH, _STEP = 9.0, 0.2
# Step in units of the autoregression's innovations, and at most.
_INNOVATIONS, _LARGEST_STEP = 0.5, 0.15
_SMALL_COMMON = 1e-3
# What numerical integration may err by, relative.
_MARGIN = 1e-6


def delta_by_laplace(epsilon: float, kernel: Kernel) -> float:
    """An upper bound on `E_Q (1 - exp(epsilon) L)_+` for a kernel in units of the noise."""

    def log_bound(log_t: float) -> float:
        t = math.exp(log_t)
        return _log_largest(epsilon, t) + log_laplace(t, kernel)

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

    def epsilon_at(log_t: float) -> float:
        # log sup_x (1 - exp(epsilon) x) exp(t x) = exp(u) - 1 - u, u = log_t - epsilon > 0.
        excess = log_delta - log_laplace(math.exp(log_t), kernel)
        return log_t - _inverse(excess) if excess >= 0.0 else math.inf

    return min(max(_least(epsilon_at, largest), 0.0), largest)


def _least(function: Callable[[float], float], epsilon: float) -> float:
    """The least value found of a function of log t."""
    import scipy.optimize  # slow to import

    # The threshold exp(-epsilon) is reached by t of about its inverse, and more.
    low, high = -3.0, epsilon + 8.0
    coarse = np.linspace(low, high, 12)
    values = [function(x) for x in coarse]
    best = int(np.argmin(values))
    bounds = (coarse[max(best - 1, 0)], coarse[min(best + 1, coarse.size - 1)])
    with np.errstate(invalid="ignore"):  # parabolas through infinite values
        found = scipy.optimize.minimize_scalar(
            function, bounds=bounds, method="bounded", options={"xatol": 0.05}
        )
    return float(min(found.fun, min(values)))


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
    b = kernel.num_bins
    normal = np.arange(-_REACH, _REACH + 0.5 * _STEP, _STEP)
    weights = np.exp(-0.5 * normal**2) * _STEP / math.sqrt(2.0 * math.pi)
    common = np.array([0.0]), np.array([1.0])
    if kernel.common > 0.0:
        common = math.sqrt(kernel.common) * normal, weights
    if 0.0 < kernel.common < _SMALL_COMMON:
        # Nearly constant: Gauss and Hermite need few points.
        points, shares = np.polynomial.hermite_e.hermegauss(9)
        common = math.sqrt(kernel.common) * points, shares / shares.sum()
    rest = max(kernel.own - kernel.common - kernel.ripple_variance, 0.0)
    total = kernel.common + kernel.ripple_variance + rest
    if kernel.ripple > 0.0:
        nodes, operator = _operator(kernel)
    else:
        nodes, operator = np.zeros(1), np.ones((1, 1))
    shifts = math.sqrt(rest) * normal
    found = []
    for shift in common[0]:
        exponents = nodes[:, None] + shifts + (shift - 0.5 * total)
        values = np.exp(-t / b * np.exp(np.minimum(exponents, 600.0)))
        density = values @ weights
        root = np.sqrt(density)
        if nodes.size == 1:
            found.append(b * math.log(max(density[0], 1e-300)))
            continue
        eigenvalues = np.linalg.eigvalsh(root[:, None] * operator * root)
        eigenvalues = np.maximum(eigenvalues, 1e-300)
        trace = np.logaddexp.reduce(b * np.log(eigenvalues))
        found.append(float(trace) + math.log1p(-(kernel.decay**b)))
    logs = np.array(found) + np.log(common[1])
    return float(np.logaddexp.reduce(logs))


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
