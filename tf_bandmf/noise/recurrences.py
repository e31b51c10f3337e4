"""The ways to stream the rows of `C^-1 Z`, by the kind of matrix."""

from __future__ import annotations

import abc
from typing import Callable

import numpy as np
import tensorflow as tf

from tf_bandmf import bands, unbanded

# From the number of a step, an int64 scalar, to its independent normals `z[step]`,
# float32, shape [size]: always the same ones.
Normals = Callable[[tf.Tensor], tf.Tensor]

# More terms than this are summed in a loop, which holds one vector at a time.
_UNROLLED_TERMS = 4


class Recurrence(abc.ABC):
    """Computes `(C^-1 Z)[step]` from normals and a few kept vectors.

    Every entry of the row depends on the same entry of normals and buffer alone: a part
    of the vector is computed without the rest.

    Attributes:
      memory_vectors: rows of the buffer.
    """

    memory_vectors = 0

    @abc.abstractmethod
    def row(
        self, normals: Normals, buffer: tf.Tensor, step: tf.Tensor
    ) -> tuple[tf.Tensor, tf.IndexedSlices | None]:
        """The row of a step, and the rows of the buffer that change.

        Args:
          normals: of any step up to this one.
          buffer: float32, shape [memory_vectors, size], after the steps before.
          step: int64 scalar.
        """


class Regeneration(Recurrence):
    """`y[i] = sum_j N[i, i-j] z[i-j]` with `N = C^-1`: earlier normals are drawn again.

    Nothing is kept. `N` is banded, or all of it is there (a dense strategy).
    """

    def __init__(self, noising_matrix: bands.LowerTriangular) -> None:
        self._rows = _Rows(noising_matrix)

    def row(
        self, normals: Normals, buffer: tf.Tensor, step: tf.Tensor
    ) -> tuple[tf.Tensor, tf.IndexedSlices | None]:
        weights = self._rows.at(step)

        def term(j: tf.Tensor) -> tf.Tensor:
            # Steps before the first have weight 0.
            return weights[j] * normals(tf.maximum(step - tf.cast(j, tf.int64), 0))

        first = self._rows.times_diagonal(weights, normals(step))
        return _sum_of_terms(first, term, self._rows.terms, step), None


class KeptNormals(Recurrence):
    """The same numbers as `Regeneration` to the last bit, from normals that are kept.

    Slot `i % memory_vectors` of the buffer holds `z[i]`.
    """

    def __init__(self, noising_matrix: bands.LowerTriangular) -> None:
        self._rows = _Rows(noising_matrix)
        self.memory_vectors = self._rows.terms - 1

    def row(
        self, normals: Normals, buffer: tf.Tensor, step: tf.Tensor
    ) -> tuple[tf.Tensor, tf.IndexedSlices | None]:
        weights = self._rows.at(step)
        fresh = normals(step)
        first = self._rows.times_diagonal(weights, fresh)
        if not self.memory_vectors:
            return first, None

        def term(j: tf.Tensor) -> tf.Tensor:
            # Slots of steps before the first hold zeros.
            slot = (step - tf.cast(j, tf.int64)) % self.memory_vectors
            return weights[j] * tf.gather(buffer, slot)

        output = _sum_of_terms(first, term, self._rows.terms, step)
        slot = tf.reshape(step % self.memory_vectors, [1])
        return output, tf.IndexedSlices(fresh[None], slot)


def _sum_of_terms(
    first: tf.Tensor,
    term: Callable[[tf.Tensor], tf.Tensor],
    num_terms: int,
    step: tf.Tensor,
) -> tf.Tensor:
    """Adds the terms `1, 2, ...` to the first one, in this order."""
    total = first
    if num_terms <= _UNROLLED_TERMS:
        for j in range(1, num_terms):
            total += term(tf.constant(j))
        return total
    exist = tf.minimum(num_terms, tf.cast(step, tf.int32) + 1)
    _, total = tf.while_loop(
        lambda j, _: j < exist,
        lambda j, partial: (j + 1, partial + term(j)),
        (tf.constant(1), total),
        parallel_iterations=1,
    )
    return total


class RingBuffer(Recurrence):
    """Forward substitution with a banded `C`; keeps its last `bands - 1` outputs.

    `y[i] = (z[i] - sum_{0<j<bands} C[i, i-j] y[i-j]) / C[i, i]`. Slot
    `i % memory_vectors` of the buffer holds `y[i]`.
    """

    def __init__(self, matrix: bands.LowerTriangular) -> None:
        self._rows = _Rows(matrix)
        self.memory_vectors = self._rows.terms - 1
        self._compiled_product = tf.function(_product, jit_compile=True)

    def row(
        self, normals: Normals, buffer: tf.Tensor, step: tf.Tensor
    ) -> tuple[tf.Tensor, tf.IndexedSlices | None]:
        weights = self._rows.at(step)
        fresh = normals(step)
        if not self.memory_vectors:
            return self._rows.over_diagonal(weights, fresh), None
        # Slot s was written j = 1 + (step - 1 - s) mod memory steps ago.
        slots = tf.range(self.memory_vectors, dtype=tf.int64)
        age = (step - 1 - slots) % self.memory_vectors + 1
        # TensorFlow copies a variable that is written row by row whenever it is read;
        # XLA reads it where it is.
        in_place = isinstance(buffer, tf.Variable)
        product = self._compiled_product if in_place else _product
        past = product(tf.gather(weights, age), buffer)
        output = self._rows.over_diagonal(weights, fresh - past)
        slot = tf.reshape(step % self.memory_vectors, [1])
        return output, tf.IndexedSlices(output[None], slot)


def _product(weights: tf.Tensor, buffer: tf.Tensor) -> tf.Tensor:
    return tf.linalg.matvec(buffer, weights, transpose_a=True)


class GeometricBuffers(Recurrence):
    """Buffered linear Toeplitz: `C^-1` is a sum of a few geometric sequences.

    `y = z + sum_m inverse_output_scales[m] s[m]`, then
    `s[m] = inverse_decays[m] s[m] + z`; see `unbanded.BufferedToeplitz`.
    """

    def __init__(self, matrix: unbanded.BufferedToeplitz) -> None:
        self._scales = matrix.inverse_output_scales.astype(np.float32)
        self._decays = matrix.inverse_decays.astype(np.float32)
        self._num_steps = matrix.num_rows
        self.memory_vectors = matrix.num_buffers

    def row(
        self, normals: Normals, buffer: tf.Tensor, step: tf.Tensor
    ) -> tuple[tf.Tensor, tf.IndexedSlices]:
        # NaN past the horizon, as in _Rows.at.
        one = tf.where(step < self._num_steps, 1.0, np.nan)
        fresh = one * normals(step)
        scales = tf.constant(self._scales)
        output = fresh + tf.linalg.matvec(buffer, scales, transpose_a=True)
        updated = tf.constant(self._decays)[:, None] * buffer + fresh[None]
        slots = tf.range(self.memory_vectors, dtype=tf.int64)
        return output, tf.IndexedSlices(updated, slots)


def recurrence_of(
    core: bands.LowerTriangular, keep_normals: bool = False
) -> Recurrence:
    """The recurrence for a strategy matrix without column scaling.

    Args:
      core: C.
      keep_normals: where earlier normals are needed again, keep them.

    Raises:
      TypeError: for a kind of matrix that cannot be streamed.
    """
    if isinstance(core, bands.Inverse):
        return (KeptNormals if keep_normals else Regeneration)(core.inner)
    if isinstance(core, unbanded.BufferedToeplitz):
        return GeometricBuffers(core)
    if isinstance(core, unbanded.Dense):
        inverse = core.solve(np.eye(core.num_rows))
        steps = np.arange(core.num_rows)
        columns = steps[:, None] - steps[None, :]
        rows = np.take_along_axis(inverse, np.maximum(columns, 0), axis=1)
        return Regeneration(bands.RowBanded(np.where(columns >= 0, rows, 0.0)))
    if isinstance(core, (bands.ToeplitzBanded, bands.RowBanded)):
        return RingBuffer(core)
    raise TypeError(f"No recurrence streams a {type(core).__name__}.")


class _Rows:
    """Rows of a banded matrix, by step.

    Args:
      matrix: banded.
    """

    def __init__(self, matrix: bands.LowerTriangular) -> None:
        self._num_steps = matrix.num_rows
        self.terms = matrix.bands
        # One row serves all steps of a Toeplitz matrix.
        if isinstance(matrix, bands.ToeplitzBanded):
            self._rows = matrix.coefficients[None].astype(np.float32)
        else:
            self._rows = bands.as_rows(matrix).astype(np.float32)
        self._has_unit_diagonal = bool(np.all(self._rows[:, 0] == 1.0))

    def times_diagonal(self, weights: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
        """`x` times the diagonal entry of the row `weights`; costs nothing if it is 1.

        The other weights are NaN past the horizon: a matrix that has them needs no NaN
        from this one.
        """
        if self._has_unit_diagonal and self.terms > 1:
            return x
        return weights[0] * x

    def over_diagonal(self, weights: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
        """`x` over the diagonal entry, see `times_diagonal`."""
        if self._has_unit_diagonal and self.terms > 1:
            return x
        return x / weights[0]

    def at(self, step: tf.Tensor) -> tf.Tensor:
        """Entries `M[step, step - j]`, shape [terms]; 0 for steps before the first.

        NaN past the horizon: should an assertion be lost in somebody's compiled graph,
        there is still no noise that was used before.
        """
        rows = tf.constant(self._rows)
        row = rows[0] if len(self._rows) == 1 else tf.gather(rows, step)
        exists = tf.range(self.terms, dtype=tf.int64) <= step
        return tf.where(step < self._num_steps, tf.where(exists, row, 0.0), np.nan)
