"""The direction "remove" of balls in bins without simulation, given the own bin's noise.

`delta = E_{P_0} (1 - exp(epsilon) / L)_+` where `P_0` puts the example into bin 0: all bins
are alike once the Gram matrix is replaced by a circulant one above it (`bins_kernel`:
Kahane's inequality). Given `u_0` the ratio `L` is a sum of lognormals whose first three
moments are sums over bins, pairs and triples; `(1 - K / L)_+ <= c_p L^p` and a concave
envelope bound the rest, for every `u_0` the best of them. Where privacy is weak `u_0`
decides, and the bound is close; where it is strong, moments of all of `L` (`bins_moments`)
are better.
"""

from __future__ import annotations

import math

import numpy as np

from tf_bandmf.accounting import tails

# Standard deviations of the own bin's noise: nodes of the moments, and of the integral.
_LOW, _HIGH, _NODES, _CELLS = -9.0, 13.0, 67, 22_000


def circulant_above(gram: np.ndarray) -> np.ndarray:
    """The first row of a circulant covariance nowhere below a Gram matrix [b, b]."""
    b = len(gram)
    columns = np.arange(b)
    row = np.array([gram[columns, (columns + d) % b].max() for d in range(b)])
    row = np.maximum(row, np.roll(row[::-1], 1))
    least = float(np.fft.fft(row).real.min())
    row[0] += max(0.0, -least) + 1e-12 * row[0]
    return row


def delta_from_moments(epsilon: float, logs: np.ndarray) -> float:
    """An upper bound on `E_Q (L - exp(epsilon))_+`.

    Args:
      epsilon: >= 0.
      logs: of `log_moments`, which do not depend on epsilon.
    """
    z = np.linspace(_LOW, _HIGH, _NODES)
    # Log moments are convex in u_0, and moments rise: chords, and right ends of cells.
    fine = np.linspace(_LOW, _HIGH, _CELLS + 1)
    values = np.ones(_CELLS)
    for p, log_moment in enumerate(logs, start=1):
        log_factor = p * math.log(p) - (p + 1) * math.log(p + 1) - p * epsilon
        bound = np.interp(fine[1:], z, log_moment) + log_factor
        values = np.minimum(values, np.exp(np.minimum(bound, 0.0)))
    relative = np.interp(fine[1:], z, logs[0]) - epsilon
    beyond = -np.expm1(-np.maximum(relative, math.log(2.0)))
    values = np.where(relative > math.log(2.0), np.minimum(values, beyond), values)
    inside = float(tails.cells(fine)[0] @ values)
    outside = float(tails.lower_tail(_LOW) * values[0] + tails.upper_tail(_HIGH))
    return min(1.0, (inside + outside) * (1.0 + 1e-9))


def log_moments(row: np.ndarray, noise_stddev: float) -> np.ndarray:
    """`log E[L^p | u_0]` for p = 1, 2, 3 at the nodes of `u_0`, shape [3, 67].

    Args:
      row: of `circulant_above`, shape [b].
      noise_stddev: sigma.
    """
    z = np.linspace(_LOW, _HIGH, _NODES)
    row = row / noise_stddev**2
    b, own = row.size, float(row[0])
    share = row / own
    distance = (np.arange(b)[:, None] - np.arange(b)) % b
    rest = np.exp(row[distance] - own * np.outer(share, share))
    logs = np.empty((3, z.size))
    for i, place in enumerate(own + math.sqrt(own) * z):
        exponents = share * place - 0.5 * own * share**2
        top = exponents.max()
        a = np.exp(exponents - top) / b
        weighted = rest * a
        pairs = weighted @ rest
        found = a.sum(), a @ rest @ a, float(a @ (rest * pairs) @ a)
        logs[:, i] = np.log(found) + top * np.arange(1, 4)
    return logs
