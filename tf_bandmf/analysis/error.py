"""Error of a strategy on a workload: what the correlated noise does to the models.

With `B = A C^-1` the squared error of the model after step `i` is `||row i of B||^2`,
times sensitivity, noise multiplier and l2 norm clip, squared, per coordinate.
"""

from __future__ import annotations

import functools
from typing import Callable

import numpy as np

from tf_bandmf import matrices
from tf_bandmf.workloads import Workload

# Up to so many steps `R^-1 N` is materialized.
_DENSE_STEPS = 512


def per_step_squared_error(
    matrix: matrices.LowerTriangular, workload: Workload
) -> np.ndarray:
    """`||row i of A C^-1||^2` for every step, shape [n], float64.

    Toeplitz strategy and workload: O(n w), without TensorFlow. Otherwise `B = R^-1 N`
    with banded `R` and `N` (`LowerTriangular.error_factors`), whose row norms
    `analysis.gram_recursion` finds in O(n w^2). Dense strategies: O(n^3).

    Raises:
      ValueError: if strategy and workload are for different numbers of steps.
    """
    if matrix.num_rows != workload.num_steps:
        raise ValueError(
            f"The strategy is for {matrix.num_rows} steps, the workload for "
            f"{workload.num_steps}."
        )
    if workload.is_toeplitz and matrix.toeplitz_column() is not None:
        # B is Toeplitz: its first column is C^-1 applied to that of A.
        return np.cumsum(matrix.solve(workload.first_column()) ** 2)
    factors = matrix.error_factors(workload.inverse())
    if factors is None:
        inverse = matrix.solve(np.eye(matrix.num_rows))
        return np.sum(workload.inverse().solve(inverse) ** 2, axis=1)
    return _row_norms(*factors)


def root_mean_squared_error(per_step: np.ndarray) -> float:
    """The square root of the mean over steps; times sensitivity it is the RMSE."""
    return float(np.sqrt(np.mean(per_step)))


def max_error(per_step: np.ndarray) -> float:
    """The square root of the largest step; times sensitivity it is the MaxSE."""
    return float(np.sqrt(np.max(per_step)))


@functools.lru_cache(maxsize=32)
def _compiled_engine(num_steps: int, bands: int, average_bands: int) -> Callable:
    # Imported here: strategies in closed form need no TensorFlow.
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
    """Squared row norms of `M^-1 N` from the rows of `M` and `N`, each [n, bands]."""
    if len(regression) <= _DENSE_STEPS:
        # Tracing would take longer, and importing TensorFlow longer still.
        dense = matrices.RowBanded(average).to_dense()
        return np.sum(matrices.RowBanded(regression).solve(dense) ** 2, axis=1)
    engine = _compiled_engine(*regression.shape, average.shape[1])
    return engine(regression, average).numpy()
