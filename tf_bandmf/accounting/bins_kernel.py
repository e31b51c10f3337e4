"""A simple covariance above the Gram matrix of the bins.

Under Q the likelihood ratio of balls in bins is `L = mean_j exp(u_j - G_jj / 2)` with `u`
Gaussian of covariance `G` (in units of the noise). Kahane's convexity inequality (1985; see
Rhodes and Vargas, arXiv:1305.6221, section 2): if `G <= G'` entry by entry, both
covariances, then `E f(L) <= E f(L')` for every convex `f` of at most polynomial growth.
For with `u_s = sqrt(1 - s) u + sqrt(s) u'`, independent, the derivative of `E f(L_s)` is
`sum_ij (G'_ij - G_ij) E[v_i v_j f''(L_s)] / (2 b^2) >= 0`, `v_j = exp(u_j - Var(u_j) / 2)`.
The hockey sticks of both directions of adjacency, moments and exponentials are such. A
guarantee for `G'` therefore holds for `G`.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

# Decays that are tried, and quantiles of the kernel as its constant part.
_RESTS = np.geomspace(0.005, 0.98, 60)
_QUANTILES = np.linspace(0.0, 1.0, 21)
_REFINEMENTS = 4


@dataclasses.dataclass(frozen=True)
class Kernel:
    """`common + ripple (decay^d + decay^(b - d))` at cyclic distance d, `own` at d = 0.

    A covariance: of one common normal, a stationary autoregression on a circle, and
    independent normals.

    Attributes:
      num_bins: b.
      own: the diagonal.
      common: of all pairs.
      ripple: >= 0.
      decay: in [0, 1).
    """

    num_bins: int
    own: float
    common: float
    ripple: float
    decay: float

    def at(self, distance: np.ndarray) -> np.ndarray:
        """Covariances at distances from 1 to b - 1."""
        rest = self.num_bins - distance
        return self.common + self.ripple * (self.decay**distance + self.decay**rest)

    def scaled(self, noise_stddev: float) -> Kernel:
        """In units of noise of this standard deviation."""
        square = noise_stddev**2
        return dataclasses.replace(
            self,
            own=self.own / square,
            common=self.common / square,
            ripple=self.ripple / square,
        )

    @property
    def ripple_variance(self) -> float:
        """The variance of one bin in the autoregression."""
        return self.ripple * (1.0 + self.decay**self.num_bins)


def above(gram: np.ndarray, noise_stddev: float) -> Kernel:
    """A kernel that is nowhere below a Gram matrix, close to it where it matters.

    Args:
      gram: G, shape [b, b], not negative.
      noise_stddev: the noise level that the kernel is meant for; it is one at all levels.
    """
    b = gram.shape[0]
    own = float(gram.diagonal().max())
    if b == 1:
        return Kernel(1, own, 0.0, 0.0, 0.0)
    columns = np.arange(b)
    distances = np.arange(1, b)
    reached = np.array([gram[columns, (columns + d) % b].max() for d in distances])
    reached = np.maximum(reached, reached[::-1])
    best: tuple[float, Kernel] | None = None
    kernel, rests = Kernel(b, own, float(reached.max()), 0.0, 0.0), _RESTS
    for _ in range(_REFINEMENTS + 1):
        for decay in 1.0 - rests:
            shape = decay**distances + decay ** (b - distances)
            for common in np.unique(np.quantile(reached, _QUANTILES)):
                over = np.maximum(reached - common, 0.0)
                # Where the ripple has died away it must not be needed.
                with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                    ripple = float(np.max(np.where(over > 0.0, over / shape, 0.0)))
                if not math.isfinite(ripple):
                    continue
                found = common + ripple * shape
                # The diagonal counts, too: that of the chain may be above the own one.
                diagonal = max(own, common + ripple * (1.0 + decay**b))
                exponents = 2.0 * np.append(found, diagonal) / noise_stddev**2
                cost = float(np.logaddexp.reduce(exponents))
                if best is None or cost < best[0]:
                    made = Kernel(b, own, float(common), ripple, float(decay))
                    best = cost, made
        if best is not None:
            kernel = best[1]
        # Around the best one; it stays where it is no better.
        rest, ratio = 1.0 - kernel.decay, rests[1] / rests[0]
        rests = rest * np.geomspace(1.0 / ratio, ratio, 13)
        rests = rests[rests <= 1.0]
    # Rounding, and a diagonal that makes it a covariance.
    ripple = kernel.ripple * (1.0 + 1e-12)
    common = kernel.common * (1.0 + 1e-12)
    kernel = dataclasses.replace(kernel, ripple=ripple, common=common)
    least = kernel.common + kernel.ripple_variance
    return dataclasses.replace(kernel, own=max(own, least) * (1.0 + 1e-12))
