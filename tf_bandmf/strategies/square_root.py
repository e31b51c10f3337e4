"""Square-root strategies: `C` approximates the square root of the workload matrix.

* BSR keeps the first bands of `C = A^(1/2)`: Kalinin, Lampert, "Banded Square Root
  Matrix Factorization for Differentially Private Model Training", arXiv:2405.13763.
* BISR keeps the first bands of `C^-1 = A^(-1/2)`: Kalinin, McKenna, Upadhyay, Lampert,
  "Back to Square Roots", arXiv:2505.12128.

BSR and BISR ignore a learning-rate schedule: `A` is the workload without it, which is a
Toeplitz matrix.
"""

from __future__ import annotations

import numpy as np

from tf_bandmf import matrices
from tf_bandmf.matrices import power_series
from tf_bandmf.strategies.base import Strategy
from tf_bandmf.strategies.optimized import check_bands
from tf_bandmf.strategies.registry import (
    Family,
    Option,
    register,
    with_best_bands,
)
from tf_bandmf.workloads import Workload, check_workload


def square_root_coefficients(
    workload: Workload, num_terms: int, inverse: bool = False
) -> np.ndarray:
    """Returns the first `num_terms` entries of the first column of a root of `A`.

    The root is `A^(-1/2)` if `inverse`, else `A^(1/2)`. For SGD with momentum beta and
    decay alpha, the first column of `A^(1/2)` is
    `c[k] = sum_i alpha^(k-i) r[k-i] r[i] beta^i` with `r[k] = |binom(-1/2, k)|`
    (arXiv:2405.13763, the lemma on regularized SGD with momentum). The first column of
    `A^(-1/2)` has the coefficients of the power series
    `(1 - alpha x)^(1/2) (1 - beta x)^(1/2)` (arXiv:2505.12128, Lemma 1, eq. 9).
    """
    if workload.momentum is None or workload.decay is None:
        series = workload.inverse_coefficients if inverse else workload.first_column()
        return power_series.square_root(series, num_terms)
    exponent = 0.5 if inverse else -0.5
    of_decay = power_series.power_of_linear(workload.decay, exponent, num_terms)
    of_momentum = power_series.power_of_linear(workload.momentum, exponent, num_terms)
    return power_series.multiply(of_decay, of_momentum, num_terms)


def bsr(workload: Workload, bands: int, column_normalized: bool = False) -> Strategy:
    """Returns the banded square root: the first `bands` diagonals of `C = A^(1/2)`.

    The noise generator stores `bands - 1` model-sized vectors.

    Args:
      workload: the workload, with the matrix A.
      bands: number of diagonals of `C`, 1 <= bands <= n. If it is at most the minimum
        separation, the columns for one example's participations are orthogonal.
      column_normalized: scale the columns of `C` to norm 1.

    Raises:
      ValueError: if bands is out of range.
    """
    check_workload(workload)
    check_bands(bands, workload.num_steps)
    coefficients = square_root_coefficients(workload, bands)
    matrix = matrices.ToeplitzBanded(coefficients, workload.num_steps)
    strategy = Strategy("bsr", matrix, {"bands": int(bands)})
    return strategy.normalize_columns() if column_normalized else strategy


def bisr(workload: Workload, bands: int, column_normalized: bool = False) -> Strategy:
    """Returns the banded inverse square root: `bands` diagonals of `C^-1 = A^(-1/2)`.

    This is Definition 1 of arXiv:2505.12128. The noise generator stores nothing and
    regenerates `bands - 1` earlier vectors at each step.

    Args:
      workload: the workload, with the matrix A.
      bands: p, number of diagonals of `C^-1`, 1 <= bands <= n.
      column_normalized: scale the columns of `C` to norm 1.

    Raises:
      ValueError: if bands is out of range.
    """
    check_workload(workload)
    check_bands(bands, workload.num_steps)
    coefficients = square_root_coefficients(workload, bands, inverse=True)
    inverse = matrices.ToeplitzBanded(coefficients, workload.num_steps)
    strategy = Strategy("bisr", matrices.Inverse(inverse), {"bands": int(bands)})
    return strategy.normalize_columns() if column_normalized else strategy


register(
    Family(
        "bisr",
        with_best_bands(bisr),
        (Option("bands"),),
        auto=2,
        banded="inverse",
    )
)
register(
    Family(
        "bsr",
        with_best_bands(bsr),
        (Option("bands"),),
        auto=4,
        banded="C",
    )
)
