"""Algebra of lower-triangular matrices with structure, in float64.

Every strategy, workload and noising matrix of this library is lower triangular. It is
banded, or the inverse of a banded matrix, or one of these with scaled columns, or of a kind
for comparisons. Only `to_dense` and `Dense` materialize an `n x n` array; all other
operations and classes work for `n = 10**6` as well as for `n = 4`.

| class | matrix `M` | one product or solve costs |
|---|---|---|
| `ToeplitzBanded` | constant diagonals, `w` of them | O(n w) |
| `RowBanded` | any entries on `w` diagonals | O(n w) |
| `Inverse` | the inverse of one of the above | as much as the inner matrix |
| `ColumnScaled` | another matrix times a positive diagonal | as much as the inner matrix |
| `Dense` | any lower-triangular matrix | O(n^2) |
| `BufferedToeplitz` | Toeplitz, a constant plus `d` geometric sequences | O(n d) |
| `DyadicTree` | the square factor of the binary tree | O(n^2) |

Indices are zero-based: entry `[i, j]` couples step `i` with the step `j <= i`. To add a
kind, write a class with the methods of `LowerTriangular` in a file that is imported here.
"""

from tf_bandmf.matrices.banded import (
    RowBanded,
    ToeplitzBanded,
    columns_from_rows,
    multiply,
)
from tf_bandmf.matrices.base import (
    KINDS,
    LARGEST_NUM_STEPS,
    LowerTriangular,
    check_num_rows,
    from_config,
    register,
)
from tf_bandmf.matrices.buffered import BufferedToeplitz
from tf_bandmf.matrices.dense import Dense, lower_triangular_factor
from tf_bandmf.matrices.dyadic_tree import DyadicTree
from tf_bandmf.matrices.inverse import Inverse
from tf_bandmf.matrices.leading import leading_block
from tf_bandmf.matrices.scaled import ColumnScaled
from tf_bandmf.matrices.streaming import (
    ForwardSubstitution,
    GeometricSums,
    Regeneration,
    Streaming,
)

__all__ = [
    "BufferedToeplitz",
    "ColumnScaled",
    "Dense",
    "DyadicTree",
    "ForwardSubstitution",
    "GeometricSums",
    "Inverse",
    "KINDS",
    "LARGEST_NUM_STEPS",
    "LowerTriangular",
    "Regeneration",
    "RowBanded",
    "Streaming",
    "ToeplitzBanded",
    "check_num_rows",
    "columns_from_rows",
    "from_config",
    "leading_block",
    "lower_triangular_factor",
    "multiply",
    "register",
]
