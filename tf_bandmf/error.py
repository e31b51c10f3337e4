"""Error of a strategy on a workload: what the correlated noise does to the models.

With `B = A C^-1` the squared error of the model after step `i` is `||row i of B||^2`,
times sensitivity, noise multiplier and l2 norm clip, squared, per coordinate.
"""

from __future__ import annotations

from typing import Optional, Tuple

import numpy as np

from tf_bandmf import bands
from tf_bandmf.workloads import Workload


def per_step_squared_error(
    strategy: bands.LowerTriangular, workload: Workload
) -> np.ndarray:
    """`||row i of A C^-1||^2` for every step, shape [n], float64.

    Toeplitz strategy and workload: O(n w). Otherwise `B = M^-1 N` with banded `M` and
    `N`, an autoregressive moving-average process: the covariance of its last values is
    carried from step to step, O(n w^2).

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
    regression, average = _regression_and_average(strategy, workload)
    return _process_variance(regression, average)


def root_mean_squared_error(per_step: np.ndarray) -> float:
    """The square root of the mean over steps; times sensitivity it is the RMSE."""
    return float(np.sqrt(np.mean(per_step)))


def max_error(per_step: np.ndarray) -> float:
    """The square root of the largest step; times sensitivity it is the MaxSE."""
    return float(np.sqrt(np.max(per_step)))


def _regression_and_average(
    strategy: bands.LowerTriangular, workload: Workload
) -> Tuple[np.ndarray, np.ndarray]:
    """Rows of banded `M` and `N` with `A C^-1 = M^-1 N`."""
    scale: Optional[np.ndarray] = None
    core = strategy
    if isinstance(core, bands.ColumnScaled):
        core, scale = core.inner, core.scale
    if isinstance(core, bands.Inverse):
        # A C^-1 = (A^-1)^-1 (D N): the noising matrix is banded.
        average = np.array(bands.as_rows(core.inner))
        if scale is not None:
            average /= scale[:, None]
        return bands.as_rows(workload.inverse()), average
    # A C^-1 = (C A^-1)^-1.
    product = bands.multiply(strategy, workload.inverse())
    return product.rows, np.ones((strategy.num_rows, 1))


def _process_variance(regression: np.ndarray, average: np.ndarray) -> np.ndarray:
    """Row norms of `M^-1 N` from the rows of banded `M` and `N`, each [n, bands].

    The state is the last `p` outputs and the last `q` inputs; `root @ root.T` is its
    covariance.
    """
    n, p, q = len(regression), regression.shape[1] - 1, average.shape[1] - 1
    covariance = np.zeros((p + q, p + q))
    variance = np.empty(n)
    lead = regression[:, 0]
    weights = np.concatenate([-regression[:, 1:], average[:, 1:]], axis=1)
    weights = weights / lead[:, None]
    fresh = average[:, 0] / lead
    for i in range(n):
        cross = covariance @ weights[i]
        variance[i] = weights[i] @ cross + fresh[i] ** 2
        updated = np.zeros_like(covariance)
        # Shift both windows by one, then enter the new output and the new input.
        updated[1:p, 1:p] = covariance[: p - 1, : p - 1] if p else 0.0
        if q:
            updated[p + 1 :, p + 1 :] = covariance[p : p + q - 1, p : p + q - 1]
            updated[p, p] = 1.0
        if p and q:
            updated[1:p, p + 1 :] = covariance[: p - 1, p : p + q - 1]
            updated[p + 1 :, 1:p] = updated[1:p, p + 1 :].T
            updated[0, p] = updated[p, 0] = fresh[i]
            updated[0, p + 1 :] = updated[p + 1 :, 0] = cross[p : p + q - 1]
        if p:
            updated[0, 0] = variance[i]
            updated[0, 1:p] = updated[1:p, 0] = cross[: p - 1]
        covariance = updated
    return variance
