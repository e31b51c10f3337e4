"""Error of a strategy on a workload: what the correlated noise does to the models.

With `B = A C^-1` the squared error of the model after step `i` is `||row i of B||^2`,
times sensitivity, noise multiplier and l2 norm clip, squared, per coordinate.
"""

from __future__ import annotations

import functools
from typing import Callable

import numpy as np

from tf_bandmf import bands, unbanded
from tf_bandmf.workloads import Workload


def per_step_squared_error(
    strategy: bands.LowerTriangular, workload: Workload
) -> np.ndarray:
    """`||row i of A C^-1||^2` for every step, shape [n], float64.

    Toeplitz strategy and workload: O(n w), without TensorFlow. Otherwise `B = M^-1 N`
    with banded `M` and `N`, whose row norms `tf_bandmf.recursion` finds in O(n w^2).
    Dense strategies: O(n^3).

    Raises:
      ValueError: if strategy and workload are for different numbers of steps.
    """
    if strategy.num_rows != workload.num_steps:
        raise ValueError(
            f"The strategy is for {strategy.num_rows} steps, the workload for "
            f"{workload.num_steps}."
        )
    if workload.is_toeplitz and strategy.toeplitz_column() is not None:
        # B is Toeplitz: its first column is C^-1 applied to that of A.
        return np.cumsum(strategy.solve(workload.first_column()) ** 2)
    core = strategy.inner if isinstance(strategy, bands.ColumnScaled) else strategy
    if isinstance(core, unbanded.Dense):
        inverse = strategy.solve(np.eye(strategy.num_rows))
        return np.sum(workload.inverse().solve(inverse) ** 2, axis=1)
    regression, average = _regression_and_average(strategy, workload)
    return _row_norms(regression, average)


def root_mean_squared_error(per_step: np.ndarray) -> float:
    """The square root of the mean over steps; times sensitivity it is the RMSE."""
    return float(np.sqrt(np.mean(per_step)))


def max_error(per_step: np.ndarray) -> float:
    """The square root of the largest step; times sensitivity it is the MaxSE."""
    return float(np.sqrt(np.max(per_step)))


def _regression_and_average(
    strategy: bands.LowerTriangular, workload: Workload
) -> tuple[np.ndarray, np.ndarray]:
    """Rows of banded `M` and `N` with `A C^-1 = M^-1 N`."""
    scale: np.ndarray | None = None
    core = strategy
    if isinstance(strategy, bands.ColumnScaled):
        core, scale = strategy.inner, strategy.scale
    if isinstance(core, bands.Inverse):
        # A C^-1 = (A^-1)^-1 (D N): the noising matrix is banded.
        average = np.array(bands.as_rows(core.inner))
        if scale is not None:
            average /= scale[:, None]
        return bands.as_rows(workload.inverse()), average
    if isinstance(core, unbanded.BufferedToeplitz):
        # C = (numerator / denominator) D: A C^-1 = (numerator D A^-1)^-1 denominator.
        n = core.num_rows
        kept = bands.ToeplitzBanded(core.numerator[:n], n)
        strategy = kept if scale is None else bands.ColumnScaled(kept, scale)
        product = bands.multiply(strategy, workload.inverse())
        denominator = bands.ToeplitzBanded(core.denominator[:n], n)
        return product.rows, bands.as_rows(denominator)
    # A C^-1 = (C A^-1)^-1.
    product = bands.multiply(strategy, workload.inverse())
    return product.rows, np.ones((strategy.num_rows, 1))


@functools.lru_cache(maxsize=32)
def _compiled_engine(num_steps: int, bands: int, average_bands: int) -> Callable:
    # Imported here: strategies in closed form need no TensorFlow.
    import tensorflow as tf

    from tf_bandmf import recursion

    def engine(regression: tf.Tensor, average: tf.Tensor) -> tf.Tensor:
        if average_bands == 1:
            return recursion.inverse_row_norms(regression, average[:, 0] ** 2)
        return recursion.filtered_row_norms(regression, average)

    signature = [
        tf.TensorSpec([num_steps, width], tf.float64)
        for width in (bands, average_bands)
    ]
    return tf.function(engine, input_signature=signature, autograph=False)


def _row_norms(regression: np.ndarray, average: np.ndarray) -> np.ndarray:
    """Squared row norms of `M^-1 N` from the rows of `M` and `N`, each [n, bands]."""
    engine = _compiled_engine(*regression.shape, average.shape[1])
    return engine(regression, average).numpy()
