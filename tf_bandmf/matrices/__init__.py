"""Algebra of structured lower-triangular matrices, in float64.

Every strategy, workload and noising matrix of this library is lower triangular. Most of
them are banded matrices, inverses of banded matrices, or one of these with scaled
columns. Only `to_dense` and `Dense` materialize an `n x n` array; all other operations
and classes work for `n = 10**6` as well as for `n = 4`.

| class | matrix `M` | one product or solve costs |
|---|---|---|
| `ToeplitzBanded` | constant diagonals, `w` of them | O(n w) |
| `RowBanded` | any entries on `w` diagonals | O(n w) |
| `Inverse` | the inverse of a banded matrix | as much as the inner matrix |
| `ColumnScaled` | another matrix with scaled columns | as much as the inner matrix |
| `Dense` | any lower-triangular matrix | O(n^2) |
| `BufferedToeplitz` | Toeplitz: 1, then a sum of `d` geometric sequences | O(n d) |
| `DyadicTree` | the square factor of the binary tree | O(n^2) |

Indices are zero-based: entry `[i, j]` couples step `i` with the step `j <= i`. To add a
class of matrices, write a subclass of `LowerTriangular` in a module that this package
imports.
"""

from tf_bandmf.matrices.banded import RowBanded as RowBanded
from tf_bandmf.matrices.banded import ToeplitzBanded as ToeplitzBanded
from tf_bandmf.matrices.banded import columns_from_rows as columns_from_rows
from tf_bandmf.matrices.banded import multiply as multiply
from tf_bandmf.matrices.base import KINDS as KINDS
from tf_bandmf.matrices.base import LARGEST_NUM_STEPS as LARGEST_NUM_STEPS
from tf_bandmf.matrices.base import LowerTriangular as LowerTriangular
from tf_bandmf.matrices.base import check_num_rows as check_num_rows
from tf_bandmf.matrices.base import from_config as from_config
from tf_bandmf.matrices.base import register as register
from tf_bandmf.matrices.buffered import BufferedToeplitz as BufferedToeplitz
from tf_bandmf.matrices.dense import Dense as Dense
from tf_bandmf.matrices.dense import lower_triangular_factor as lower_triangular_factor
from tf_bandmf.matrices.dyadic_tree import DyadicTree as DyadicTree
from tf_bandmf.matrices.inverse import Inverse as Inverse
from tf_bandmf.matrices.leading import leading_block as leading_block
from tf_bandmf.matrices.scaled import ColumnScaled as ColumnScaled
from tf_bandmf.matrices.streaming import ForwardSubstitution as ForwardSubstitution
from tf_bandmf.matrices.streaming import GeometricSums as GeometricSums
from tf_bandmf.matrices.streaming import Regeneration as Regeneration
from tf_bandmf.matrices.streaming import Streaming as Streaming
