"""Tests whether noise is `C^-1 Z` for a strategy C, so C times the noise is white."""

from __future__ import annotations

import dataclasses

import numpy as np
import tensorflow as tf
from scipy import special, stats

from tf_bandmf.noise import NoiseGenerator
from tf_bandmf.noise.keys import NoiseKey
from tf_bandmf.strategies import Strategy


@dataclasses.dataclass(frozen=True)
class Whiteness:
    """P-values of statistical tests of one sample of noise.

    Attributes:
      p_values: for each test, by name: the smallest p-value over steps, pairs of steps
        and lags, times the number of comparisons (Bonferroni), but at most 1.
    """

    p_values: dict[str, float]

    @property
    def p_value(self) -> float:
        """The p-value of all tests together, with the Bonferroni correction."""
        return min(1.0, min(self.p_values.values()) * len(self.p_values))


def rows_of(strategy, size, num_shards=1, *, jit_compile=False, seed):
    """Returns the noise of all steps, [n, d], with all replicas' parts concatenated."""
    generator = NoiseGenerator(
        strategy, size, num_shards=num_shards, jit_compile=jit_compile
    )
    count, shape = generator.num_steps, [generator.shard_size]

    @tf.function(autograph=False)
    def rows(state, shard):
        def step(i, state, rows):
            row, state = generator.next(state, i, shard)
            return i + 1, state, rows.write(i, row)

        begin = 0, state, tf.TensorArray(tf.float32, count, element_shape=shape)
        return tf.while_loop(lambda i, *_: i < count, step, begin)[2].stack()

    state = generator.initial_state(NoiseKey.for_testing(seed))
    return np.concatenate([rows(state, shard) for shard in range(num_shards)], axis=1)


def whiteness(
    strategy: Strategy, noise: np.ndarray, lags: tuple[int, ...] = ()
) -> Whiteness:
    """Tests whether noise is `C^-1 Z` for a standard normal Z.

    C times the noise must consist of standard normals that are independent over steps
    (which tests the covariance `C^-1 C^-T`) and over coordinates. There are tests of:

    - each step: the Kolmogorov-Smirnov test against N(0, 1), mean and variance;
    - all pairs of steps: correlations of values and of squares;
    - coordinates at the distances 1, 2, 4, ... and `lags`: correlations of values and
      of squares;
    - repeated values.

    Args:
      strategy: the strategy, with the matrix C.
      noise: shape [n, d], d >= 64.
      lags: further distances between coordinates, such as between variables or
        replicas.
    """
    white = strategy.matrix.matmul(np.asarray(noise, np.float64))
    if not np.all(np.isfinite(white)):
        return Whiteness({"finite": 0.0})
    d = white.shape[1]
    smirnov = [stats.kstest(row, "norm").pvalue for row in white]
    means = _two_sided(white.mean(axis=1) * np.sqrt(d))
    squares = np.sum(white**2, axis=1)
    variances = 2.0 * np.minimum(stats.chi2.cdf(squares, d), stats.chi2.sf(squares, d))
    distances = sorted(
        {2**i for i in range(d.bit_length() - 1) if 2**i <= d // 2}
        | {lag for lag in lags if 0 < lag <= d // 2 or lag < d - 32}
    )
    return Whiteness(
        {
            "normal": _smallest(smirnov),
            "mean": _smallest(means),
            "variance": _smallest(variances),
            "steps": _smallest(_between_steps(white)),
            "squares of steps": _smallest(_between_steps(white**2)),
            "coordinates": _smallest(_between_coordinates(white, distances)),
            "squares of coordinates": _smallest(
                _between_coordinates(white**2, distances)
            ),
            "no number twice": _repeats(white),
        }
    )


def _between_steps(rows: np.ndarray) -> np.ndarray:
    """Returns p-values of the correlation of each pair of rows (Fisher transformation)."""
    n, d = rows.shape
    correlations = np.corrcoef(rows)[np.triu_indices(n, 1)]
    return _of_correlations(correlations, d)


def _between_coordinates(white: np.ndarray, distances: list[int]) -> np.ndarray:
    """Returns p-values of the correlations of each row with its shifted copies."""
    p_values = []
    for distance in distances:
        a, b = white[:, distance:], white[:, :-distance]
        correlation = np.corrcoef(a.ravel(), b.ravel())[0, 1]
        p_values.append(_of_correlations(np.array(correlation), a.size))
    return np.array(p_values)


def _of_correlations(correlations: np.ndarray, size: int) -> np.ndarray:
    clipped = np.clip(correlations, -1.0 + 1e-15, 1.0 - 1e-15)
    return _two_sided(np.arctanh(clipped) * np.sqrt(size - 3))


def _repeats(white: np.ndarray) -> float:
    """Returns the p-value of a test for values that repeat more often than by chance.

    A step has about `size^2 / 2` pairs of numbers. Each pair agrees to 6 digits with a
    probability of about 1e-6 / (2 sqrt(pi)).
    """
    p_value = 1.0
    for row in white:
        _, counts = np.unique(np.round(row, 6), return_counts=True)
        pairs = float(np.sum(counts * (counts - 1) // 2))
        expected = 0.5 * row.size**2 * 1e-6 / (2.0 * np.sqrt(np.pi))
        p_value = min(p_value, float(stats.poisson.sf(pairs - 1, expected)))
    return min(1.0, p_value * len(white))


def _two_sided(z: np.ndarray) -> np.ndarray:
    return 2.0 * special.ndtr(-np.abs(z))


def _smallest(p_values: np.ndarray | list[float]) -> float:
    p_values = np.asarray(p_values)
    return float(min(1.0, p_values.min() * p_values.size))
