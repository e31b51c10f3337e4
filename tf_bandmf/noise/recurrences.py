"""Recurrences that compute the rows of `C^-1 Z` step by step, one class per recurrence.

`C` is the strategy matrix, `Z` a matrix of independent standard normals. Step `i` adds
the noise `y[i]`, row `i` of `C^-1 Z`; `z[i]` is row `i` of `Z`.
"""

from __future__ import annotations

import abc
from typing import Callable

import numpy as np
import tensorflow as tf

from tf_bandmf import matrices
from tf_bandmf.noise.devices import device_kind
from tf_bandmf.noise.shared import shared_function

# A function of steps, int64, and weights, float32, both of shape [terms]. It returns
# `sum_k weights[k] z[steps[k]]`, float32, shape [size], where `z[i]` are the standard
# normals of step `i`. Every call uses the same normals for a step.
Normals = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
# The noise of a step is a sum of terms, one for each of several steps. One compiled
# program adds the first four terms, and a loop adds the others one at a time. On a GPU,
# both add two terms at a time: for more terms, XLA would create several kernels and
# store random numbers in memory between them.
_TERMS, _TERMS_OF_GPU = 4, 2
_ONE = [1.0]

# `Updates` are the buffer rows that change in a step. A `Row` is the noise vector of a
# step, together with the step's updates.
Updates = tuple[tf.IndexedSlices, ...]
Row = tuple[tf.Tensor, Updates]


class Recurrence(abc.ABC):
    """Computes a step's noise, row `step` of `C^-1 Z`, from normals and stored vectors.

    Entry i of the noise depends only on entry i of the normals and entry i of the
    stored vectors, so a part of the noise can be computed without the rest.

    Attributes:
      memory_vectors: number of stored vectors, the rows of the buffer.
      key_terms: number of steps whose normals are generated to compute the noise of one
        step: the step itself and the steps just before it. Stored normals do not count.
      row_scale: one factor for each step, by which the noise that the recurrence
        computes is multiplied, shape [num_steps]; None for no factors.
    """

    memory_vectors = 0
    key_terms = 1
    row_scale: np.ndarray | None = None

    def row(self, normals: Normals, buffer: tf.Tensor, step: tf.Tensor) -> Row:
        """Returns the noise of a step, and the rows of the buffer that change.

        Args:
          normals: function that returns a weighted sum of the normals of given steps;
            see `Normals`. It is only called for this step and earlier steps.
          buffer: float32, shape [memory_vectors, size], as left by the previous step.
          step: int64 scalar.
        """
        output, updates = self._row(normals, buffer, step)
        if self.row_scale is not None:
            output *= tf.gather(tf.constant(self.row_scale, tf.float32), step)
        return output, updates

    @abc.abstractmethod
    def _row(self, normals: Normals, buffer: tf.Tensor, step: tf.Tensor) -> Row:
        """Returns the results of `row` before the noise is multiplied by `row_scale`."""


class Regeneration(Recurrence):
    """Computes the noise `y[i] = sum_j N[i, i-j] z[i-j]` from regenerated normals.

    The matrix `N = C^-1` is a banded or full lower triangular matrix. No vectors are
    stored.
    """

    def __init__(self, rows: _Rows) -> None:
        self._rows = rows
        self.key_terms = rows.terms

    def _row(self, normals: Normals, buffer: tf.Tensor, step: tf.Tensor) -> Row:
        weights, terms = self._rows.at(step), self._rows.terms
        # Negative steps are replaced by 0, and have weight 0.
        steps = tf.maximum(step - tf.range(terms, dtype=tf.int64), 0)
        at_once = _TERMS_OF_GPU if device_kind() == "GPU" else 1
        together = min(terms, at_once if at_once > 1 else _TERMS)
        first = normals(steps[:together], weights[:together])
        if together == terms:
            return first, ()
        # Each iteration adds a group of `at_once` terms. Terms of weight 0 fill up the
        # last group.
        missing = [[0, -terms % at_once]]
        steps, weights = tf.pad(steps, missing), tf.pad(weights, missing)

        def add(j: tf.Tensor, total: tf.Tensor) -> tf.Tensor:
            if at_once > 1:
                return total + normals(
                    *(tf.slice(t, [j], [at_once]) for t in (steps, weights))
                )
            only_row = normals(steps[j, None], tf.constant(_ONE))[None]
            return _sum(total, weights[j], only_row, tf.constant(0, tf.int64))

        return _plus_terms(first, add, together, terms, step, at_once), ()


class KeptNormals(Recurrence):
    """Computes the same noise as `Regeneration`, but from stored normals.

    The noise of the two classes agrees to float precision. Row `i % memory_vectors` of
    the buffer is `z[i]`.
    """

    def __init__(self, rows: _Rows) -> None:
        self._rows = rows
        self.memory_vectors = rows.terms - 1

    def _row(self, normals: Normals, buffer: tf.Tensor, step: tf.Tensor) -> Row:
        weights = self._rows.at(step)

        def slot(j: tf.Tensor | int) -> tf.Tensor:
            # Rows of the buffer that no step has written yet are zero.
            return (step - tf.cast(j, tf.int64)) % self.memory_vectors

        fresh = normals(step[None], tf.constant(_ONE))

        def add(j: tf.Tensor, total: tf.Tensor) -> tf.Tensor:
            return _sum(total, weights[j], buffer, slot(j))

        first = _first_sum(weights, fresh, buffer, slot(1))
        output = _plus_terms(first, add, 2, self._rows.terms, step)
        return output, (tf.IndexedSlices(fresh[None], tf.reshape(slot(0), [1])),)


def _plus_terms(
    total: tf.Tensor,
    add: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    begin: int,
    end: int,
    step: tf.Tensor,
    at_once: int = 1,
) -> tf.Tensor:
    """Returns `total` plus the terms `begin, ..., end - 1`, added in this order.

    Term `j` belongs to the step `step - j`; terms of negative steps are zero. The call
    `add(j, total)` adds `at_once` terms to the total, beginning with term `j`.
    """
    if end <= _TERMS and at_once == 1:
        for j in range(begin, end):
            total = add(tf.constant(j), total)
        return total
    exist = tf.minimum(end, tf.cast(step, tf.int32) + 1)
    return tf.while_loop(
        lambda j, _: j < exist,
        lambda j, partial: (j + at_once, add(j, partial)),
        (tf.constant(begin), total),
        parallel_iterations=1,
    )[1]


# A decorator. XLA compiles the operations of the decorated function to a single kernel,
# which reads variables in place, without copies. All models share the compiled program.
_compiled = shared_function(jit_compile=True)


@_compiled
def _first_sum(
    weights: tf.Tensor, fresh: tf.Tensor, buffer: tf.Tensor, slot: tf.Tensor
) -> tf.Tensor:
    return weights[0] * fresh + weights[1] * tf.gather(buffer, slot)


@_compiled
def _sum(
    total: tf.Tensor, weight: tf.Tensor, buffer: tf.Tensor, slot: tf.Tensor
) -> tf.Tensor:
    return total + weight * tf.gather(buffer, slot)


class RingBuffer(Recurrence):
    """Computes the noise of a banded `C` by forward substitution.

    The noise is `y[i] = (z[i] - sum_{0<j<bands} C[i, i-j] y[i-j]) / C[i, i]`. Row
    `i % memory_vectors` of the buffer is `y[i]`, so the buffer holds the noise of the
    last `bands - 1` steps.
    """

    def __init__(self, rows: _Rows, jit_compile: bool) -> None:
        self._rows = rows
        self.memory_vectors = rows.terms - 1
        self._jit_compile = jit_compile

    def _row(self, normals: Normals, buffer: tf.Tensor, step: tf.Tensor) -> Row:
        weights = self._rows.at(step)
        if not self.memory_vectors:
            return normals(step[None], 1.0 / weights), ()
        slot = tf.reshape(step % self.memory_vectors, [1])
        # Row s of the buffer was written 1 + (step - 1 - s) mod memory_vectors steps ago.
        slots = tf.range(self.memory_vectors, dtype=tf.int64)
        past = tf.gather(weights, (step - 1 - slots) % self.memory_vectors + 1)
        fresh = normals(step[None], tf.constant(_ONE))
        if self._jit_compile:
            # The buffer is a variable that is written row by row. TensorFlow copies
            # such a variable whenever it is read; XLA reads it in place.
            output = _solution(fresh, weights[0], past, buffer)
        else:
            product = tf.linalg.matvec(buffer, past, transpose_a=True)
            output = (fresh - product) / weights[0]
        return output, (tf.IndexedSlices(output[None], slot),)


@_compiled
def _solution(
    fresh: tf.Tensor, diagonal: tf.Tensor, past: tf.Tensor, buffer: tf.Tensor
) -> tf.Tensor:
    # XLA would compile `tf.linalg.matvec` to a kernel of its own, separate from the
    # subtraction and the division.
    return (fresh - tf.reduce_sum(past[:, None] * buffer, axis=0)) / diagonal


class GeometricBuffers(Recurrence):
    """Computes the noise of a buffered linear Toeplitz strategy.

    The entries of `C^-1` below the diagonal are sums of geometric sequences, so one
    vector `s[m]` is stored for each sequence `m`. From the normals `z` of the step,
    each step computes the noise `y = z + sum_m inverse_output_scales[m] s[m]`. It then
    replaces each `s[m]` by `inverse_decays[m] s[m] + z`; see
    `matrices.BufferedToeplitz`.
    """

    def __init__(self, sums: matrices.GeometricSums) -> None:
        self._scales = sums.scales.astype(np.float32)
        self._decays = sums.decays.astype(np.float32)
        self._num_steps = sums.num_rows
        self.memory_vectors = sums.memory_vectors

    def _row(self, normals: Normals, buffer: tf.Tensor, step: tf.Tensor) -> Row:
        # Past the last step, the normals are multiplied by NaN, so that no noise is
        # used twice.
        one = tf.where(step < self._num_steps, 1.0, np.nan)
        scales, decays = tf.constant(self._scales), tf.constant(self._decays)
        slots = tf.range(self.memory_vectors, dtype=tf.int64)
        fresh = normals(step[None], one[None])
        output = fresh + tf.linalg.matvec(buffer, scales, transpose_a=True)
        updated = decays[:, None] * buffer + fresh[None]
        return output, (tf.IndexedSlices(updated, slots),)


def recurrence_of(
    matrix: matrices.LowerTriangular,
    keep_normals: bool = False,
    jit_compile: bool = True,
) -> Recurrence:
    """Returns the recurrence that computes the noise of a strategy matrix.

    Args:
      matrix: the strategy matrix C.
      keep_normals: True to store the normals of earlier steps that a banded `C^-1`
        needs again, instead of regenerating them.
      jit_compile: False to compute sums over a buffer as matrix products, without XLA.

    Raises:
      TypeError: if no recurrence exists for this type of matrix.
    """
    streaming = matrix.streaming()
    if isinstance(streaming, matrices.Regeneration):
        # `_Rows` already multiplies by the scale factors of the rows, so the attribute
        # `row_scale` remains None.
        keeps = keep_normals and streaming.terms > 1
        keeps = keeps and matrix.core.banded_inverse() is not None
        rows = _Rows(streaming, streaming.row_scale)
        return (KeptNormals if keeps else Regeneration)(rows)
    made: Recurrence
    if isinstance(streaming, matrices.GeometricSums):
        made = GeometricBuffers(streaming)
    elif isinstance(streaming, matrices.ForwardSubstitution):
        made = RingBuffer(_Rows(streaming), jit_compile)
    else:
        raise TypeError(f"Cannot generate noise for class {type(streaming).__name__}.")
    made.row_scale = streaming.row_scale
    return made


class _Rows:
    """The rows of a banded or dense lower triangular matrix, one row for each step.

    Args:
      streaming: an object whose function `rows` returns the rows.
      row_scale: one factor for each row, by which the row is multiplied, shape
        [num_steps]; None for no factors.
    """

    def __init__(
        self,
        streaming: matrices.ForwardSubstitution | matrices.Regeneration,
        row_scale: np.ndarray | None = None,
    ) -> None:
        self._num_steps, self.terms = streaming.num_rows, streaming.terms
        self._rows, self._row_scale = streaming.rows().astype(np.float32), row_scale

    def at(self, step: tf.Tensor) -> tf.Tensor:
        """Returns the entries `M[step, step - j]` of the matrix M, shape [terms].

        The index j is 0, ..., terms - 1, and entries with `step - j < 0` are 0. Past
        the last step, all entries are NaN, so that no noise is used twice even if a
        compiled graph drops the caller's assertion that the step exists.
        """
        rows = tf.constant(self._rows)
        row = rows[0] if len(self._rows) == 1 else tf.gather(rows, step)
        if self._row_scale is not None:
            row *= tf.gather(tf.constant(self._row_scale, tf.float32), step)
        exists = tf.range(self.terms, dtype=tf.int64) <= step
        return tf.where(step < self._num_steps, tf.where(exists, row, 0.0), np.nan)
