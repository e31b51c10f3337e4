"""The dominating pair of balls-in-bins sampling, and how to draw from it.

Each example is assigned at random to one of `b` bins and takes part at the steps of its
bin: steps j, j + b, j + 2 b and so on for bin j. For a strategy `C` without negative
entries and noise with the standard deviation sigma, the dominating pair is
`P = mean_j N(m_j, sigma^2 I)` (with the example) against `Q = N(0, sigma^2 I)` (without
it), where `m_j` is the sum of the columns of `C` for the steps of bin j
(Choquette-Choo, Ganesh, Haque, Steinke, Thakurta: "Near exact privacy amplification for
matrix mechanisms", arXiv:2410.06266; used in arXiv:2601.22334, section 5.1).

The privacy loss of an output `x` depends only on the `b` inner products
`u_j = <m_j, x> / sigma^2`. Given the bin, they are jointly Gaussian with the covariance
`G / sigma^2`, where `G[i, j] = <m_i, m_j>`. Therefore the cost of a draw does not
depend on the number of steps.

The simulator uses importance sampling: it draws from a mixture of tilts. A tilt is `P`
(or `Q`), modified so that rare losses occur often. The log weight of each draw is a
difference of log-sum-exps over the bins.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tf_bandmf import matrices
from tf_bandmf.accounting.checks import whole_number
from tf_bandmf.accounting.simulator import MAIN, PILOT, Proposal, Simulator, Stage

# The tilts of a pilot run shift the draws by _STRENGTHS standard deviations, those of a
# rough pilot run by _ROUGH_STRENGTHS standard deviations. _PILOT_DRAWS are the numbers
# of draws per tilt in a pilot run and in a rough pilot run.
_STRENGTHS = (1.0, 2.0, 3.0, 4.0, 5.0, 6.5, 8.0)
_ROUGH_STRENGTHS = (1.0, 2.5, 4.0, 6.5)
_PILOT_DRAWS = 400, 250
# The tilts of `certain_tilts` shift the draws by these numbers of standard deviations.
_CERTAIN_STRENGTHS = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.5)
# The maximum number of entries of the n x b matrix whose column j is the sum of the
# columns of C for bin j. A strategy that is neither Toeplitz nor banded needs this
# matrix.
_LARGEST_COLUMNS = 100_000_000
# With more than b bands, a strategy uses the n x b matrix of column sums also if this
# matrix has at most _FEW_COLUMNS entries, because adding up diagonals of `C^T C` would
# then be slower.
_FEW_COLUMNS = 4_000_000
_LARGEST_BINS = 8_192
# The maximum number of array entries in one chunk of draws.
_CHUNK = 300_000
# A run's Gaussian draws are cached for use at other noise levels if they take at most
# this many bytes.
_CACHE = 400_000_000
# The privacy loss is computed in double precision if the exponents of likelihood ratios
# can exceed this limit.
_SINGLE_PRECISION_LIMIT = 300.0


def check_bins(num_bins: int) -> None:
    """Raises ValueError if there are too many bins to compute their Gram matrix."""
    if num_bins > _LARGEST_BINS:
        raise ValueError(
            f"With BallsInBins, num_bins must be <= {_LARGEST_BINS}, found {num_bins}. "
            f"Use larger batches, or use CyclicPoisson instead."
        )


def gram_matrix(matrix: matrices.LowerTriangular, num_bins: int) -> np.ndarray:
    """Returns the Gram matrix of the bins, `G[i, j] = <m_i, m_j>`, shape [b, b].

    The vector `m_j` is the sum of the columns of C for bin j: columns j, j + b, ...

    Args:
      matrix: the strategy `C` of n steps, without negative entries.
      num_bins: b, the number of bins, at most n.

    Raises:
      ValueError: if an entry of `C` is negative (the dominating pair is then unknown),
        if `num_bins` is not in [1, n], or if the matrix is too large to compute.
    """
    n, b = matrix.num_rows, num_bins
    whole_number("num_bins", b, most=n, most_is="num_steps")
    check_bins(b)
    if not matrix.is_nonnegative():
        raise ValueError(
            "BallsInBins needs a strategy matrix C without negative entries. Use "
            "FixedEpochOrder instead of BallsInBins, or change the strategy."
        )
    cost = matrix.gram_diagonal_cost()
    is_small = matrix.bands > b and n * b <= _FEW_COLUMNS
    if cost is not None and cost < n and not is_small:
        gram = np.zeros((b, b))
        for offset in range(min(matrix.bands, n)):
            diagonal = matrix.gram_diagonal(offset)
            first = np.arange(n - offset) % b
            sums = np.bincount(first, diagonal, minlength=b)
            rows = np.arange(b)
            gram[rows, (rows + offset) % b] += sums
            if offset:
                gram[(rows + offset) % b, rows] += sums
    else:
        if n * b > _LARGEST_COLUMNS:
            raise ValueError(
                f"For a strategy that is neither Toeplitz nor banded, num_steps * "
                f"num_bins must be <= {_LARGEST_COLUMNS}, found {n * b}. Use a Toeplitz or "
                f"banded strategy."
            )
        pattern = np.zeros((n, b))
        pattern[np.arange(n), np.arange(n) % b] = 1.0
        # Rounding can make entries negative.
        columns = np.maximum(matrix.matmul(pattern), 0.0)
        gram = columns.T @ columns
    if not np.all(np.isfinite(gram)):
        raise ValueError("For the strategy matrix C, C^T C overflows. Scale C down.")
    return 0.5 * (gram + gram.T)


@dataclasses.dataclass(frozen=True)
class Tilt:
    """One component of a proposal distribution for importance sampling.

    A tilt adds `single * m_j + common * m` to the mean of a draw from the target
    distribution. Here `m_j` is the sum of the columns of C for the bin j of the draw,
    and m is the average of all `m_j`.

    Attributes:
      single: the factor of `m_j`.
      common: the factor of m.
    """

    single: float = 0.0
    common: float = 0.0


class BinsSimulator(Simulator):
    """Simulates the privacy loss of balls-in-bins sampling.

    Args:
      gram: the Gram matrix `G[i, j] = <m_i, m_j>` of the bins, shape [b, b].
      num_draws: number of draws per direction in a main run.
      seed: equal seeds give equal draws.
    """

    def __init__(self, gram: np.ndarray, num_draws: int, seed: int) -> None:
        super().__init__(len(gram), num_draws, _PILOT_DRAWS, seed)
        self._unit_gram = gram
        self._factor_t = np.ascontiguousarray(factorize(gram).astype(np.float32).T)
        self._kept: dict[tuple[Stage, bool, int, int], np.ndarray] = {}

    @functools.cached_property
    def gram(self) -> np.ndarray:
        return self._unit_gram / self.noise**2

    @functools.cached_property
    def half(self) -> np.ndarray:
        return 0.5 * np.diagonal(self.gram)

    @functools.cached_property
    def common(self) -> np.ndarray:
        return self.gram.mean(axis=1)

    @property
    def common_squared(self) -> float:
        return float(self.common.mean())

    def pilot_tilts(self, is_rough: bool = False) -> list[Tilt]:
        return self._grid(_ROUGH_STRENGTHS if is_rough else _STRENGTHS)

    def _grid(self, strengths: Sequence[float]) -> list[Tilt]:
        """Returns the target distribution, and one or more tilts for each strength.

        A strength is a shift of the draws, in standard deviations.
        """
        unit = 1.0 / math.sqrt(2.0 * float(self.half.max()))
        common = 1.0 / math.sqrt(self.common_squared)
        if self.add:
            return [Tilt()] + [Tilt(common=-s * common) for s in strengths]
        tilts = [Tilt()] + [Tilt(s * unit) for s in strengths]
        if len(self.gram) > 1:
            tilts += [Tilt(common=s * common) for s in strengths]
            tilts += [Tilt(0.5 * s * unit, 0.5 * s * common) for s in strengths]
        return tilts

    def certain_tilts(self) -> list[Tilt]:
        tilts = self._grid(_CERTAIN_STRENGTHS)[1 : len(_CERTAIN_STRENGTHS) + 1]
        if self.add:
            # For "add", large losses need larger shifts than _CERTAIN_STRENGTHS.
            tilts += [
                Tilt(common=factor * t.common) for t in tilts for factor in (2, 4)
            ]
        return tilts

    def losses(self, u: np.ndarray) -> np.ndarray:
        """Returns `log dP/dQ` for N outputs with the inner products u, shape [N, b]."""
        return _log_mean_exp(u - self.half.astype(u.dtype))

    def log_density(
        self, tilt: Tilt, u: np.ndarray, average: np.ndarray, losses: np.ndarray
    ) -> np.ndarray:
        """Returns the log density of a tilt relative to Q, shape [N].

        Args:
          tilt: one of the tilts of a proposal.
          u: inner products `<m_j, x> / sigma^2` of N outputs x with the vectors m_j of
            the b bins, shape [N, b]; sigma is the noise.
          average: the mean of each row of u, shape [N].
          losses: `self.losses(u)`, shape [N].
        """
        along = tilt.common * average - 0.5 * tilt.common**2 * self.common_squared
        if self.add:
            return along
        if tilt == Tilt():
            return losses
        scale = 1.0 + tilt.single
        offset = scale**2 * self.half + scale * tilt.common * self.common
        if tilt.single == 0.0 and np.ptp(self.common) <= 1e-12 * self.common[0]:
            return losses + (along - tilt.common * self.common[0])
        exponents = u if scale == 1.0 else u * u.dtype.type(scale)
        return _log_mean_exp(exponents - offset.astype(u.dtype)) + along

    def certain_density(self, tilt: Tilt) -> tuple[float, float] | None:
        """Returns slope and offset of a lower bound on a tilt's density, or None.

        `Simulator.certain_density` describes the result. Let `v_j` be the likelihood
        ratio given bin j, so that `dP/dQ = mean_j v_j`. Let `m_j` be the sum of the
        columns of C for bin j, m the mean of all `m_j`, and sigma the noise.

        - "remove", a tilt with `single = t`: the bound at the loss `l = log dP/dQ` is
          `exp(t l - t (1 + t) max_j |m_j|^2 / (2 sigma^2))`, because of the power mean
          inequality `mean_j v_j^(1 + t) >= (mean_j v_j)^(1 + t)`.
        - "add", a tilt with `common = -t`: the bound at the loss `l = -log dP/dQ` is
          `exp(t l - (t mean_j |m_j|^2 + t^2 |m|^2) / (2 sigma^2))`, because of Jensen's
          inequality `log mean_j v_j >= mean_j log v_j`.
        """
        t = -tilt.common if self.add else tilt.single
        if t <= 0.0 or not (self.add or tilt.common == 0.0):
            return None
        if not self.add:
            return t, -t * (1.0 + t) * float(self.half.max())
        return t, -t * float(self.half.mean()) - 0.5 * t**2 * self.common_squared

    def chunks(
        self, proposal: Proposal, stage: Stage, count: int
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        pairs = np.array([[tilt.single, tilt.common] for tilt in proposal.tilts])
        strongest = (1.0 + pairs[:, 0].max()) ** 2 * float(self.half.max())
        dtype: Any = np.float32 if strongest < _SINGLE_PRECISION_LIMIT else np.float64
        gram, common = self.gram.astype(dtype), self.common.astype(dtype)
        b = len(gram)
        size = max(1, min(_CHUNK // b, count))
        is_main = stage == MAIN and count == self.num_draws
        is_kept = (stage == PILOT or is_main) and count * b * 4 <= _CACHE
        for index, start in enumerate(range(0, count, size)):
            number = min(size, count - start)
            generator = self.generator(*stage, int(self.add), index)
            choice = proposal.choose(generator, number)
            bins = generator.integers(0, b, number)
            key = stage, self.add, count, index
            noise = self._kept.get(key)
            if noise is None:
                noise = self._correlated(generator, number)
                if is_kept:
                    self._kept[key] = noise
            u = noise * dtype(1.0 / self.noise)
            if not self.add:
                u += gram[bins] * (1.0 + pairs[choice, :1]).astype(dtype)
            if np.any(pairs[:, 1]):
                u += pairs[choice, 1:].astype(dtype) * common
            average = u.mean(axis=1).astype(np.float64)
            losses = self.losses(u)
            densities = [
                self.log_density(tilt, u, average, losses) for tilt in proposal.tilts
            ]
            yield losses, np.stack(densities)

    def _correlated(self, generator: np.random.Generator, count: int) -> np.ndarray:
        """Returns draws of N(0, G) for the Gram matrix G, shape [count, b]."""
        rank = self._factor_t.shape[0]
        z = generator.standard_normal((count, rank), dtype=np.float32)
        if self._factor_t.ndim == 1:
            z *= self._factor_t
            return z
        return z @ self._factor_t


def factorize(gram: np.ndarray) -> np.ndarray:
    """Returns a matrix `L` with `L L^T = G` for the Gram matrix G, shape [b, b].

    If G is diagonal, the result is the diagonal of L, shape [b]. Otherwise the result
    is L, with the shape [b, b], or [b, rank of G] if G is singular. If G is not
    singular, L is lower triangular and a smooth function of G. Therefore the same
    random numbers give similar draws for similar strategies.

    Raises:
      ArithmeticError: if G is not positive semidefinite.
    """
    diagonal = np.diagonal(gram)
    if np.all(gram == np.diag(diagonal)):
        return np.sqrt(diagonal)
    try:
        return np.linalg.cholesky(gram)
    except np.linalg.LinAlgError:
        pass
    values, vectors = np.linalg.eigh(gram)
    if values[0] < -1e-9 * values[-1]:
        raise ArithmeticError(
            f"gram must be positive semidefinite, found the eigenvalue {values[0]:g}."
        )
    kept = values > 1e-14 * values[-1]
    return vectors[:, kept] * np.sqrt(values[kept])


def _log_mean_exp(exponents: np.ndarray) -> np.ndarray:
    """Returns `log(mean(exp(exponents)))` over the last axis; overwrites the array."""
    top = exponents.max(axis=-1, keepdims=True)
    exponents -= top
    np.exp(exponents, out=exponents)
    # NumPy sums pairwise, so single precision is accurate enough.
    mean = exponents.mean(axis=-1).astype(np.float64)
    return top[..., 0].astype(np.float64) + np.log(mean)
