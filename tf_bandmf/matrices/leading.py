"""Leading blocks of strategy matrices: each is a strategy for the first steps."""

from __future__ import annotations

from tf_bandmf.matrices.banded import RowBanded, ToeplitzBanded
from tf_bandmf.matrices.base import LowerTriangular
from tf_bandmf.matrices.dense import Dense
from tf_bandmf.matrices.inverse import Inverse
from tf_bandmf.matrices.scaled import ColumnScaled


def leading_block(matrix: LowerTriangular, num_rows: int) -> LowerTriangular:
    """Returns `M[:s, :s]`, the strategy of the first `s` steps of a run.

    The inverse of this block is the leading block of `M^-1`, because `M` is lower
    triangular. Therefore the noise of these steps is the same as in the full run.

    Args:
      matrix: `M`, n x n.
      num_rows: s, in [1, n].

    Returns:
      The block, as an instance of the cheapest class that the structure of `M` allows.

    Raises:
      ValueError: if `num_rows` is not in [1, n].
    """
    if not 1 <= num_rows <= matrix.num_rows:
        raise ValueError(
            f"num_rows must be in [1, {matrix.num_rows}], found {num_rows}."
        )
    if num_rows == matrix.num_rows:
        return matrix
    scale = matrix.column_scale
    if scale is not None:
        return ColumnScaled(leading_block(matrix.core, num_rows), scale[:num_rows])
    inverse = matrix.banded_inverse()
    if inverse is not None:
        return Inverse(leading_block(inverse, num_rows))
    column = matrix.toeplitz_column()
    if column is not None:
        return ToeplitzBanded(column[: min(num_rows, matrix.bands)], num_rows)
    try:
        rows = matrix.as_rows()
    except TypeError:
        return Dense(matrix.to_dense()[:num_rows, :num_rows])
    return RowBanded(rows[:num_rows, :num_rows])
