"""The error of a strategy on a workload: the noise variance of the model at each step.

Let A be the workload's matrix, C the strategy's matrix, and `B = A C^-1`. After
step `i`, the noise in each coordinate of the model has the variance
`||row i of B||^2 (sensitivity * noise multiplier * l2 norm clip)^2`.
"""

from __future__ import annotations

import functools
from typing import Callable

import numpy as np

from tf_bandmf import matrices
from tf_bandmf.workloads import Workload

# The maximum number of steps n for which `_row_norms` computes its n x n matrix
# `M^-1 N` in full.
_DENSE_STEPS = 1_500


def per_step_squared_error(
    matrix: matrices.LowerTriangular, workload: Workload
) -> np.ndarray:
    """Returns `||row i of A C^-1||^2` for every step i, shape [n], float64.

    If both strategy and workload are Toeplitz, the computation takes O(n w) operations
    for `w` bands, without TensorFlow. For most other strategies,
    `LowerTriangular.error_factors` returns banded matrices `R` and `N` with
    `A C^-1 = R^-1 N`, and `analysis.gram_recursion` computes the row norms in O(n w^2).
    A strategy without such factors takes O(n^3).

    Args:
      matrix: C, the strategy of n steps.
      workload: A.

    Raises:
      ValueError: if the strategy and the workload have different numbers of steps.
    """
    if matrix.num_rows != workload.num_steps:
        raise ValueError(
            f"The workload must have as many steps as the strategy "
            f"({matrix.num_rows}), found {workload.num_steps}."
        )
    if workload.is_toeplitz and matrix.toeplitz_column() is not None:
        # A C^-1 is Toeplitz. Its first column is C^-1 times the first column of A.
        return np.cumsum(matrix.solve(workload.first_column()) ** 2)
    factors = matrix.error_factors(workload.inverse())
    if factors is None:
        inverse = matrix.solve(np.eye(matrix.num_rows))
        return np.sum(workload.inverse().solve(inverse) ** 2, axis=1)
    return _row_norms(*factors)


def root_mean_squared_error(per_step: np.ndarray) -> float:
    """Returns the RMSE at sensitivity 1: the root of the mean squared error."""
    return float(np.sqrt(np.mean(per_step)))


def max_error(per_step: np.ndarray) -> float:
    """Returns the MaxSE at sensitivity 1: the root of the maximum squared error."""
    return float(np.sqrt(np.max(per_step)))


@functools.lru_cache(maxsize=32)
def _compiled_engine(num_steps: int, bands: int, average_bands: int) -> Callable:
    # TensorFlow is imported here because many strategies do not need it.
    import tensorflow as tf

    from tf_bandmf.analysis import gram_recursion

    def engine(regression: tf.Tensor, average: tf.Tensor) -> tf.Tensor:
        if average_bands == 1:
            return gram_recursion.inverse_row_norms(regression, average[:, 0] ** 2)
        return gram_recursion.filtered_row_norms(regression, average)

    signature = [
        tf.TensorSpec([num_steps, width], tf.float64)
        for width in (bands, average_bands)
    ]
    return tf.function(engine, input_signature=signature, autograph=False)


def _row_norms(regression: np.ndarray, average: np.ndarray) -> np.ndarray:
    """Returns the squared row norms of `M^-1 N` for banded `M` and `N`, shape [n].

    Args:
      regression: the bands of M, `M[i, i - j] = regression[i, j]`, shape [n, w].
      average: the bands of N, `N[i, i - j] = average[i, j]`, shape [n, p].
    """
    if len(regression) <= _DENSE_STEPS:
        # For so few steps, NumPy is faster than tracing a tf.function, and much faster
        # than importing TensorFlow.
        dense = matrices.RowBanded(average).to_dense()
        return np.sum(matrices.RowBanded(regression).solve(dense) ** 2, axis=1)
    engine = _compiled_engine(*regression.shape, average.shape[1])
    return engine(regression, average).numpy()
