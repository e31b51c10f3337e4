"""The base class of structured matrices, and the registry of its subclasses.

In the docstrings, `M` is the matrix and `n` its number of rows.
"""

from __future__ import annotations

import abc
import dataclasses
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

if TYPE_CHECKING:
    from tf_bandmf.matrices.streaming import Streaming


class LowerTriangular(abc.ABC):
    """An invertible `n x n` lower-triangular matrix, float64, immutable.

    Each subclass defines products, solves, and all other operations that its structure
    makes cheap. The code for sensitivity, error, accounting and noise calls these methods
    and never checks the class. In the docstrings, `M` is the matrix.

    Attributes:
      kind: the name of the class in saved files.
      num_rows: n.
      bands: number of diagonals, including the main one, that may be non-zero.
    """

    kind: ClassVar[str]
    num_rows: int
    bands: int

    @abc.abstractmethod
    def matmul(self, x: np.ndarray) -> np.ndarray:
        """Returns `M @ x` for `x` of shape [n] or [n, m]."""

    @abc.abstractmethod
    def solve(self, x: np.ndarray) -> np.ndarray:
        """Returns `M^-1 @ x` for `x` of shape [n] or [n, m]."""

    @abc.abstractmethod
    def streaming(self) -> Streaming:
        """Returns a description of how to compute a product `M^-1 Z` row by row."""

    @classmethod
    @abc.abstractmethod
    def example(cls, num_rows: int) -> LowerTriangular:
        """Returns an example of a matrix of this class, for tests; `num_rows >= 4`."""

    def column_norms(self) -> np.ndarray:
        """Returns the l2 norms of the columns of `M`, shape [n]."""
        column = self.toeplitz_column()
        if column is None:
            return np.linalg.norm(self.to_dense(), axis=0)
        # Column j of a Toeplitz matrix has the first n - j entries of the first column.
        return np.sqrt(np.cumsum(column**2))[::-1].copy()

    def is_nonnegative(self) -> bool:
        """Returns True if every entry of `M` is >= 0."""
        column = self.toeplitz_column()
        return bool(np.all((self.to_dense() if column is None else column) >= 0.0))

    def to_config(self) -> dict[str, Any]:
        """Returns a dictionary of plain values and arrays that `from_config` accepts."""
        config: dict[str, Any] = {"kind": self.kind}
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            is_matrix = isinstance(value, LowerTriangular)
            config[field.name] = value.to_config() if is_matrix else value
        return config

    @property
    def core(self) -> LowerTriangular:
        """The matrix without its column scaling, or the matrix itself if it has none."""
        return self

    @property
    def column_scale(self) -> np.ndarray | None:
        """The factors by which the columns of `core` are scaled, shape [n], or None."""
        return None

    @property
    def stored_bands(self) -> int | None:
        """The number of bands of `M` or `M^-1`, whichever is stored as a banded matrix.

        None if neither is stored.
        """
        return None

    def banded_inverse(self) -> LowerTriangular | None:
        """Returns `M^-1` if `M` is stored as the inverse of a banded matrix, else None."""
        return None

    def as_rows(self) -> np.ndarray:
        """Returns the diagonals of a banded `M`, row by row.

        Returns:
          Shape [n, bands]. Entry `[i, j]` is `M[i, i - j]`, or 0 if `j > i`.

        Raises:
          TypeError: if `M` is not stored as its diagonals.
        """
        raise TypeError(f"A {type(self).__name__} stores no diagonals. Use to_dense().")

    def distinct_rows(self) -> np.ndarray:
        """Returns `as_rows()`, or a single row, [1, bands], if `M` is Toeplitz.

        The single row contains the value of each diagonal.
        """
        column = self.toeplitz_column()
        return self.as_rows() if column is None else column[None, : self.bands]

    def toeplitz_column(self) -> np.ndarray | None:
        """Returns the first column, shape [n], if `M` is Toeplitz; otherwise None."""
        return None

    def gram_diagonal_cost(self) -> int | None:
        """Returns the mean number of multiplications per entry of `gram_diagonal`.

        None means that `gram_diagonal` is not available, so computing the Gram matrix
        `M^T M` requires `to_dense`.
        """
        return None if self.toeplitz_column() is None else 1

    def gram_diagonal(self, offset: int) -> np.ndarray:
        """Returns a diagonal of `X = M^T M`: `X[i, i + offset]`, shape [n - offset].

        Raises:
          TypeError: if `gram_diagonal_cost` is None.
        """
        column = self.toeplitz_column()
        if column is None:
            raise TypeError(f"{type(self).__name__} lacks gram_diagonal. Use to_dense.")
        # X[i, i + offset] is the dot product of columns i and i + offset. The latter is
        # zero above row i + offset.
        return np.cumsum(column[: self.num_rows - offset] * column[offset:])[::-1]

    def exact_squared_sensitivity(
        self, min_separation: int, max_participations: int
    ) -> float | None:
        """Returns the squared sensitivity of `M` under min-separation participation.

        Returns None if no theorem gives the exact value for this matrix. The caller
        then uses a method that works for every matrix.
        """
        return None

    def error_factors(
        self, inverse_workload: LowerTriangular, scale: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Returns banded `R` and `N` with `A (M diag(scale))^-1 = R^-1 N`.

        Errors of the strategy `M diag(scale)` can be computed from `R` and `N` in time
        linear in `n`.

        Args:
          inverse_workload: `A^-1`, banded, where `A` is the workload.
          scale: shape [n], or None for ones.

        Returns:
          The diagonals of `R` and `N` row by row, as in `as_rows`. None if no such
          matrices are known; the error must then be computed from the dense matrix.
        """
        return None

    def normalize_columns(self) -> LowerTriangular:
        """Returns `M` with each column divided by its l2 norm, as a `ColumnScaled`."""
        scale = 1.0 / self.column_norms()
        return KINDS["column_scaled"](self, scale)  # type: ignore[call-arg]

    def in_float32(self) -> LowerTriangular:
        """Returns `M` with its parameters rounded to float32.

        The noise generator uses the rounded matrix, so analyses must use it, too. If
        `M^-1` is stored and nearly singular, rounding can change `M` a lot.
        """
        return self

    def to_dense(self) -> np.ndarray:
        """Returns `M` as an array, shape [n, n]; only for small `n` and for tests."""
        return self.matmul(np.eye(self.num_rows))


# The registered subclasses of `LowerTriangular`, by `kind`.
KINDS: dict[str, type[LowerTriangular]] = {}
_Kind = TypeVar("_Kind", bound=type[LowerTriangular])


def register(cls: _Kind) -> _Kind:
    """Registers a class of matrices for `from_config` and the tests, and returns it.

    Raises:
      TypeError: if the class does not implement an abstract method.
      ValueError: if another class is registered with the same `kind`.
    """
    if inspect.isabstract(cls):
        missing = ", ".join(sorted(cls.__abstractmethods__))
        raise TypeError(f"Class {cls.__name__} lacks the methods {missing}.")
    if KINDS.setdefault(cls.kind, cls) is not cls:
        raise ValueError(
            f"The kind {cls.kind!r} of {cls.__name__} is already used by "
            f"{KINDS[cls.kind].__name__}. Choose another kind."
        )
    return cls


def from_config(config: Mapping[str, Any]) -> LowerTriangular:
    """Rebuilds a matrix from its `to_config` dictionary.

    Raises:
      ValueError: if the kind of matrix is unknown or its fields are invalid.
    """
    kind = config.get("kind")
    if kind not in KINDS:
        raise ValueError(
            f"No matrix class has the kind {kind!r}. Register it or update tf-bandmf."
        )
    fields = {
        name: from_config(value) if isinstance(value, Mapping) else value
        for name, value in config.items()
        if name != "kind"
    }
    return KINDS[kind](**fields)


# The maximum number of steps in a run. With more steps, the noise keys and other arrays
# with an entry per step would take gigabytes of memory and minutes of computation.
LARGEST_NUM_STEPS = 10_000_000


def check_num_rows(num_rows: int) -> int:
    """Checks a number of rows (the number of steps), and returns it as an int.

    Callers name this argument `num_rows` (of a matrix) or `num_steps` (of a strategy or
    a workload), so the messages contain both names.

    Raises:
      TypeError: if `num_rows` is not an int.
      ValueError: if `num_rows` is below 1, or above `LARGEST_NUM_STEPS`.
    """
    if isinstance(num_rows, bool) or not isinstance(num_rows, (int, np.integer)):
        raise TypeError(f"num_steps or num_rows must be an int, found {num_rows!r}.")
    if num_rows < 1:
        raise ValueError(f"num_steps or num_rows must be >= 1, found {num_rows}.")
    if num_rows > LARGEST_NUM_STEPS:
        # Every computation needs at least a few float64 vectors of length num_rows.
        needed = f"{8 * int(num_rows):.3g}" if num_rows < 10**300 else "endless"
        raise ValueError(
            f"num_steps or num_rows must be <= {LARGEST_NUM_STEPS:,}, found "
            f"{float(min(num_rows, 10**300)):g}: a vector with one number per step "
            f"would take {needed} bytes. Use fewer steps."
        )
    return int(num_rows)


def frozen(array: Any) -> np.ndarray:
    """Returns a read-only float64 copy of an array."""
    array = np.array(array, dtype=np.float64)
    array.flags.writeable = False
    return array


def check_operand(x: np.ndarray, num_rows: int) -> np.ndarray:
    """Checks the operand of a product or solve, and returns it in float64.

    Raises:
      ValueError: if the shape of `x` is neither [num_rows] nor [num_rows, m].
    """
    x = np.asarray(x, dtype=np.float64)
    if x.ndim not in (1, 2) or x.shape[0] != num_rows:
        raise ValueError(f"x needs {num_rows} rows and 1 or 2 axes, found {x.shape}.")
    return x
