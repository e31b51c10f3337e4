"""Square-root strategies: `C` approximates the square root of the workload matrix.

* BSR: `C` consists of the first diagonals of `A^(1/2)`. Source: Kalinin, Lampert,
  "Banded Square Root Matrix Factorization for Differentially Private Model Training",
  arXiv:2405.13763.
* BISR: `C^-1` consists of the first diagonals of `A^(-1/2)`. Source: Kalinin, McKenna,
  Upadhyay, Lampert, "Back to Square Roots", arXiv:2505.12128.

BSR and BISR ignore a learning-rate schedule. Here, `A` is the workload matrix for a
constant learning rate, which is a Toeplitz matrix.
"""

from __future__ import annotations

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


def of_power(
    family: str,
    workload: Workload,
    bands: int,
    exponent: float,
    column_normalized: bool,
    **parameters: float,
) -> Strategy:
    """Returns the strategy that is defined by the first diagonals of `A^exponent`.

    If the exponent is positive, the matrix `C` has these diagonals, else `C^-1` has
    them. For SGD with momentum beta and decay alpha, the first column of `A^exponent`
    has the coefficients of the power series
    `(1 - alpha x)^(-exponent) (1 - beta x)^(-exponent)`. For the exponent -1/2, this is
    eq. 9 in Lemma 1 of arXiv:2505.12128.

    Args:
      family: the family of the strategy.
      workload: the workload, with the matrix A.
      bands: number of diagonals, 1 <= bands <= n.
      exponent: the exponent.
      column_normalized: scale the columns of `C` to norm 1.
      **parameters: further parameters of the strategy, for tables and plans.

    Raises:
      ValueError: if bands is out of range.
    """
    check_workload(workload)
    bands = check_bands(bands, workload.num_steps)
    coefficients = power_series.power(workload.inverse_coefficients, -exponent, bands)
    banded = matrices.ToeplitzBanded(coefficients, workload.num_steps)
    matrix = banded if exponent > 0.0 else matrices.Inverse(banded)
    strategy = Strategy(family, matrix, {"bands": bands, **parameters})
    return strategy.normalize_columns() if column_normalized else strategy


def bsr(workload: Workload, bands: int, column_normalized: bool = False) -> Strategy:
    """Returns the banded square root: `C` has the first diagonals of `A^(1/2)`.

    The noise generator stores `bands - 1` model-sized vectors.

    Args:
      workload: the workload, with the matrix A.
      bands: number of diagonals of `C`, 1 <= bands <= n. If it is at most the minimum
        separation, the columns of `C` for one example's participations are orthogonal.
      column_normalized: scale the columns of `C` to norm 1.

    Raises:
      ValueError: if bands is out of range.
    """
    return of_power("bsr", workload, bands, 0.5, column_normalized)


def bisr(workload: Workload, bands: int, column_normalized: bool = False) -> Strategy:
    """Returns the strategy whose `C^-1` has the first diagonals of `A^(-1/2)`.

    It is the banded inverse square root, Definition 1 of arXiv:2505.12128. The noise
    generator stores no vectors. Each step regenerates `bands - 1` earlier vectors.

    Args:
      workload: the workload, with the matrix A.
      bands: p, number of diagonals of `C^-1`, 1 <= bands <= n.
      column_normalized: scale the columns of `C` to norm 1.

    Raises:
      ValueError: if bands is out of range.
    """
    return of_power("bisr", workload, bands, -0.5, column_normalized)


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
