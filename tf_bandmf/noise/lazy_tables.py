"""Embedding tables whose rows get their noise only when they are read.

The module `lazy` describes the method, and defines the matrices F, G, H, P, Q and L of
the docstrings below. A release brings all rows up to date and writes the weights to the
model.

WARNING: between two releases, a row lacks the noise of the steps since it was last
read. Anyone who sees the table between two releases learns which rows were read.
Therefore the table must be kept as secret as the noise key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_bandmf.noise.keys import Secret
from tf_bandmf.noise.lazy import RowSystem
from tf_bandmf.noise.normals import BLOCK, weighted_normals
from tf_bandmf.noise.shared import shared_function

# The approximate numbers of normals that one operation generates in a training step and
# in a release. The normals of one operation fit into the processor's cache. A training
# step generates at most about _STEP_NUMBERS normals that it does not need.
_STEP_NUMBERS, _RELEASE_NUMBERS = 1 << 15, 1 << 18
# The number of blocks of normals that are reserved for each table under a key that
# tables share. It is larger than any table needs.
_TABLE_BLOCKS = 1 << 40
# In `_factor`, a conditional variance below this fraction of the variance is a rounding
# error, and counts as zero.
_SMALLEST_PIVOT = 1e-12
# The list of the steps since the last release is padded to one of these lengths.
_LENGTHS = 1 << np.arange(6, 31, dtype=np.int32)
_DECAYED = (
    "With tables='lazy', the learning rate times the weight decay must not be 1: such "
    "a step sets weights to zero. Reduce the weight decay, or use tables='dense'."
)


class Window(NamedTuple):
    """The jumps to one step from each step since the last release.

    A jump is a pair of matrices `P(l, t)` and `L(l, t)`. It brings a state `x` from step
    `l` to step `t`, `x[t] = P(l, t) x[l] + L(l, t) g`, where `g` are standard normals.

    Attributes:
      step: the step `t` to which the jumps lead, int32 scalar.
      first: the smallest step `l` from which a jump leads to `t`, int32 scalar.
      matrices: P and L of the jump from step `l`, at index `l - first`, float32, shape
        [steps, 2, m, m]. They are stored side by side because lookups gather both.
    """

    step: tf.Tensor
    first: tf.Tensor
    matrices: tf.Tensor


class Jumps:
    """Stores the jumps from each step since the last release to the run's coming step.

    All tables share the jumps. The jump from step `l` to the coming step `t` consists
    of the matrices `P(l, t)` and `L(l, t)`. The matrix L is computed from the
    covariance matrix `Q(l, t) = L L^T`.

    Args:
      system: the matrices F, G and H of all steps.
      num_steps: number of steps of the run.
      step: the step at which every row is up to date.
    """

    def __init__(self, system: RowSystem, num_steps: int, step: int = 0) -> None:
        self.entries = m = system.entries
        # The number of state entries that a sum of gradients changes: the weight and,
        # with momentum, the velocity.
        self._entered = int(np.count_nonzero(system.rate[0, :, m + 1]))
        self._decays = bool(np.any(system.rate[:, 0, 0]))
        # The matrices are variables because an update program can capture variables,
        # but no other tensors.
        self._system = [tf.Variable(part, trainable=False) for part in system]
        identity = tf.eye(m, batch_shape=[num_steps + 1], dtype=tf.float64)
        self._products = tf.Variable(identity, trainable=False)
        self._covariances = tf.Variable(tf.zeros_like(identity), trainable=False)
        # Entry `l` contains P and L of the jump from step `l` to the coming step.
        jumps = tf.cast(tf.stack([identity, 0 * identity], axis=1), tf.float32)
        self._jumps = tf.Variable(jumps, trainable=False)
        self._release = tf.Variable(step, trainable=False, dtype=tf.int32)

    def of_step(
        self, step: tf.Tensor, rate: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns a step's matrix F and vectors G and H (see module `lazy`), float64.

        Args:
          step: int32 scalar.
          rate: the learning rate of the step, float64 scalar.
        """
        row = step if self._system[0].shape[0] > 1 else 0
        constant, of_rate = (part[row] for part in self._system)
        system, m = constant + rate * of_rate, self.entries
        return system[:, :m], system[:, m], system[:, m + 1]

    def entering(self, step: tf.Tensor, rate: tf.Tensor) -> list[tf.Tensor]:
        """Returns the factors of a gradient sum that is added to a stored state.

        A step replaces the state `x` of a weight by `F x + G z + H s`, where `z` is a
        standard normal and `s` is the sum of clipped gradients. The factors are the
        vector `u` with `F u = H`. If `x` is replaced by `x + u s` as soon as `s` is
        known, the rest of the step can be computed later: `F (x + u s) + G z`.

        Args:
          step: int32 scalar.
          rate: the learning rate of the step, float64 scalar.

        Returns:
          float32 scalars: the entries of `u` for the weight and, with momentum, for
          the velocity. All other entries are zero.

        Raises:
          InvalidArgumentError: if the weight decay of the step sets the weight to zero.
        """
        transition, _, gradient = self.of_step(step, rate)
        remains = transition[0, 0]
        if self._decays:
            check = tf.debugging.Assert(remains != 0.0, [_DECAYED])
            with tf.control_dependencies([] if check is None else [check]):
                remains = tf.identity(remains)
        if self._entered == 1:
            return [tf.cast(gradient[0] / remains, tf.float32)]
        of_velocity = gradient[1] / transition[1, 1]
        of_weight = (gradient[0] - transition[0, 1] * of_velocity) / remains
        return [tf.cast(factor, tf.float32) for factor in (of_weight, of_velocity)]

    def advance(self, step: tf.Tensor, rate: tf.Tensor) -> list[Any]:
        """Replaces all jumps to `step` by jumps to `step + 1`.

        Args:
          step: int32 scalar.
          rate: the learning rate of this step, float64 scalar.

        Returns:
          The operations.
        """
        transition, noise, _ = self.of_step(step, rate)
        first = self._release.read_value()
        count = step + 1 - first
        # The number of steps is rounded up because XLA compiles a program for each
        # length.
        length = tf.reduce_min(tf.where(_LENGTHS < count, _LENGTHS[-1], _LENGTHS))
        places = tf.minimum(first + tf.range(length), self._jumps.shape[0] - 1)
        parts = self._products, self._covariances
        moved = _advanced(transition, noise, *(p.sparse_read(places) for p in parts))
        window = places[:count]
        return [
            part.scatter_update(tf.IndexedSlices(new[:count], window))
            for part, new in zip((*parts, self._jumps), moved)
        ]

    def released(self, step: tf.Tensor) -> Any:
        """Records that all rows are up to date at step `step`, an int32 scalar."""
        return self._release.assign(step, read_value=False)

    def since_release(self, step: tf.Tensor) -> Window:
        """Returns the jumps to `step` (int32) from each step since the last release."""
        first = self._release.read_value()
        both = self._jumps.sparse_read(tf.range(first, step + 1))
        return Window(step, first, both)


class LazyTable(Secret):
    """The secret states of a table's rows, which are updated only when they are read.

    A row's clock is `t` if its stored state is the state before step `t`. If step `t`
    has a gradient for the row, the gradient is added to this state. The noise of step
    `t` is added later, together with the noise of the subsequent steps.

    Args:
      weights: the table, float32, shape [rows, columns], at `step`.
      jumps: the matrices that bring rows up to date.
      number: index of the table among the tables that share keys.
      step: the step at which every row is up to date.
      memory: the entries of the rows' states at `step` other than the weights: float32,
        shape [rows, (m - 1) columns], where m is the number of entries per weight. None
        means zeros.
    """

    def __init__(
        self,
        weights: tf.Variable,
        jumps: Jumps,
        number: int = 0,
        step: int = 0,
        memory: np.ndarray | None = None,
    ) -> None:
        self.num_rows, self.columns = weights.shape.as_list()
        self.jumps, self._first_block = jumps, number * _TABLE_BLOCKS
        # The number of float32 values in the states of a row's weights.
        self._width = jumps.entries * self.columns
        self._clocks = tf.Variable(
            tf.fill([self.num_rows], tf.constant(step, tf.int32)), trainable=False
        )
        # The weights are separate from the rest of the state because a lookup reads
        # only weights.
        self._weights = tf.Variable(weights.read_value(), trainable=False)
        if memory is None:
            memory = tf.zeros([self.num_rows, self._width - self.columns])
        # The first variable contains the weights of all rows. The second one contains
        # the remaining entries of their states.
        self._states = [self._weights, tf.Variable(memory, trainable=False)]

    def weights_of(self, rows: tf.Tensor) -> tf.Tensor:
        """Returns the stored weights of some rows, without bringing them up to date."""
        return self._weights.sparse_read(rows)

    def clocks_of(self, rows: tf.Tensor) -> tf.Tensor:
        """Returns the clocks of some rows, int32: the steps of their stored states."""
        return self._clocks.sparse_read(rows)

    def memory(self) -> np.ndarray:
        """Returns the rows' states without the weights, for the private state file only.

        To restore a table, pass the result to the constructor as `memory`.
        """
        return self._states[1].numpy()

    def replace_weights(self, weights: tf.Variable) -> None:
        """Replaces the weights; call this only while every row is up to date."""
        self._weights.assign(weights.read_value())

    def bring_up_to_date(self, rows: tf.Tensor, jumps: Window, key: tf.Tensor) -> Any:
        """Brings rows up to date: advances them to the state before a step.

        Args:
          rows: indices of the rows, shape [U], without duplicates.
          jumps: the jumps to this step, from `Jumps.since_release`.
          key: a key of the generator, uint64, that is used only for these rows, in this
            order, at this step.

        Returns:
          An operation.
        """
        together = self._rows_of(_STEP_NUMBERS)
        # Each group of `together` rows begins with a new block of normals.
        blocks = -(-together * self._width // BLOCK)

        def part(i: tf.Tensor) -> tuple[tf.Tensor]:
            some = rows[i * together : (i + 1) * together]
            number = tf.shape(some)[0]
            padded = tf.pad(some, [[0, together - number]])
            padded = tf.reshape(padded, [together])
            jump = self._jump(padded, tf.cast(i, tf.uint64) * blocks, jumps, key)
            states = [state.sparse_read(padded) for state in self._states]
            moved = _jumped(self.jumps.entries, states, *jump)
            kept = [state[:number] for state in moved]
            with tf.control_dependencies(self._write(some, kept, jumps.step)):
                return (i + 1,)

        return _in_parts(part, -(-tf.shape(rows)[0] // together))

    def add(
        self, rows: tf.Tensor, sums: tf.Tensor, step: tf.Tensor, rate: tf.Tensor
    ) -> Any:
        """Adds a step's sums of clipped gradients to rows that are up to date.

        Args:
          rows: indices of the rows, shape [U], without duplicates.
          sums: the sums, float32, shape [U, columns].
          step: the step, int32 scalar.
          rate: the learning rate of the step, float64 scalar.

        Returns:
          The operations.
        """
        changes = []
        # The sum changes the weights and, with momentum, the velocity. The velocity is
        # in the first columns of the second variable.
        for part, factor in zip(self._states, self.jumps.entering(step, rate)):
            padding = [[0, 0], [0, part.shape[1] - self.columns]]
            # In TensorFlow, a scatter-add takes longer than reading and replacing the
            # rows.
            moved = part.sparse_read(rows) + tf.pad(factor * sums, padding)
            changes.append(part.scatter_update(tf.IndexedSlices(moved, rows)))
        return changes

    def release(self, into: tf.Variable, jumps: Window, key: tf.Tensor) -> Any:
        """Brings every row up to date, and writes the weights to the variable `into`.

        Groups of rows are updated one after the other, without a temporary tensor of
        the table's size.

        Args:
          into: the variable that receives the weights.
          jumps: the jumps to the step of the release, from `Jumps.since_release`.
          key: a key of the generator, uint64, that the table uses only for this
            release.

        Returns:
          An operation.
        """
        together = min(self._rows_of(_RELEASE_NUMBERS), self.num_rows)
        blocks = -(-together * self._width // BLOCK)

        def part(i: tf.Tensor) -> tuple[tf.Tensor]:
            # All groups have the same number of rows, so XLA compiles only one program.
            # The last group may repeat rows of the previous group. Their second jump is
            # P = I and L = 0, which leaves them unchanged.
            first = tf.minimum(i * together, self.num_rows - together)
            rows = first + tf.range(together)
            jump = self._jump(rows, tf.cast(i, tf.uint64) * blocks, jumps, key)
            states = _jumped(self.jumps.entries, self._states, *jump, first)
            written = self._write(rows, states, jumps.step)
            written.append(into.scatter_update(tf.IndexedSlices(states[0], rows)))
            with tf.control_dependencies(written):
                return (i + 1,)

        done = _in_parts(part, -(-self.num_rows // together))
        # Without this op, TensorFlow would copy the variable whenever it is read after
        # a scatter.
        tf.raw_ops.DisableCopyOnRead(resource=into.handle)
        return done

    def _rows_of(self, numbers: int) -> int:
        """Returns how many rows have `numbers` values in their states, at least 1."""
        return max(1, numbers // self._width)

    def _jump(
        self, rows: tf.Tensor, block: tf.Tensor, jumps: Window, key: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns each row's jump, and the standard normals for these jumps.

        Args:
          rows: indices of the rows, of static shape [U].
          block: index of the first block of normals to use, among the blocks that are
            reserved for this table.
          jumps: the jumps from all steps since the last release.
          key: a key of the generator, uint64.

        Returns:
          P and L of each row's jump, float32, shape [U, 2, m, m]; and the normals,
          float32, shape [U m columns].
        """
        numbers, block = rows.shape[0] * self._width, block + self._first_block
        normals = weighted_normals(key[None], tf.ones([1]), numbers, block)
        places = self._clocks.sparse_read(rows) - jumps.first
        return tf.gather(jumps.matrices, places), normals

    def _write(
        self, rows: tf.Tensor, states: Sequence[tf.Tensor], clock: tf.Tensor
    ) -> list[Any]:
        # In TensorFlow, scattering one scalar to all rows is slower than scattering a
        # vector of its copies.
        clocks = tf.fill([tf.shape(rows)[0]], clock)
        pairs = [*zip(self._states, states, strict=True), (self._clocks, clocks)]
        return [part.scatter_update(tf.IndexedSlices(new, rows)) for part, new in pairs]


def _in_parts(
    part: Callable[[tf.Tensor], tuple[tf.Tensor]], count: tf.Tensor | int
) -> Any:
    """Calls `part` for the indices 0, ..., count - 1, in this order.

    Args:
      part: body of a loop. It takes an index and returns a tuple with the next index.
      count: number of calls.

    Returns:
      `count` as a tensor, which is computed only after all calls.
    """
    start = (tf.constant(0),)
    return tf.while_loop(lambda i: i < count, part, start, parallel_iterations=1)[0]


@shared_function(jit_compile=True)
def _jumped(
    entries: int,
    states: list[Any],
    jump: tf.Tensor,
    normals: tf.Tensor,
    first: tf.Tensor | None = None,
) -> list[tf.Tensor]:
    """Returns the weights and the remaining entries of rows' states after a jump.

    The results have the shapes [U, columns] and [U, (m - 1) columns].

    Args:
      entries: number of entries in the state of a weight, m.
      states: states of the U rows or, if `first` is passed, of the whole table. XLA
        then reads the U rows from index `first` on without a copy.
      jump: the matrices P and L of each row's jump, shape [U, 2, m, m].
      normals: `U m columns` standard normals.
      first: index of the first row in the table, or None.
    """
    if first is not None:
        count = jump.shape[0]
        states = [tf.slice(part, [first, 0], [count, part.shape[1]]) for part in states]
    products, factors = tf.unstack(jump, axis=1)
    columns = states[0].shape[1]
    apart = tf.reshape(tf.concat(states, axis=1), [-1, entries, columns])
    fresh = tf.reshape(normals, [-1, entries, columns])
    moved = _applied(products, apart) + _applied(factors, fresh)
    return [moved[:, 0], tf.reshape(moved[:, 1:], [jump.shape[0], -1])]


def _applied(matrices: tf.Tensor, states: tf.Tensor) -> tf.Tensor:
    """Multiplies matrices, shape [U or 1, m, m], by states, shape [U, m, columns].

    This is faster than `tf.matmul` because m is small.
    """
    each = range(states.shape[1])
    return tf.add_n([matrices[:, :, j, None] * states[:, j, None] for j in each])


@shared_function(jit_compile=True)
def _advanced(
    transition: tf.Tensor, noise: tf.Tensor, products: tf.Tensor, covariances: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the matrices of all jumps after one more step.

    Args:
      transition: F of the step, float64, shape [m, m].
      noise: G of the step, float64, shape [m].
      products: P of each jump before the step, float64, shape [steps, m, m].
      covariances: Q of each jump before the step, float64, shape [steps, m, m].

    Returns:
      P and Q after the step, float64; and P and L, float32, shape [steps, 2, m, m].
    """
    products = _applied(transition[None], products)
    # F Q F^T is computed as F (F Q)^T, because Q is symmetric.
    grown = _applied(transition[None], covariances)
    grown = _applied(transition[None], tf.transpose(grown, [0, 2, 1]))
    grown += noise[:, None] * noise
    jumps = tf.stack([products, _factor(grown)], axis=1)
    return products, grown, tf.cast(jumps, tf.float32)


def _factor(covariances: tf.Tensor) -> tf.Tensor:
    """Returns lower triangular matrices L with `L L^T = covariances`.

    Unlike in the usual Cholesky decomposition, the covariances may be singular.

    Args:
      covariances: float64, shape [U, m, m] with a static m.
    """
    m = covariances.shape[-1]
    rows = [[tf.zeros_like(covariances[:, 0, 0])] * m for _ in range(m)]
    for j in range(m):
        variance = covariances[:, j, j]
        rest = variance - sum(x * x for x in rows[j][:j])
        whole = rest > _SMALLEST_PIVOT * variance
        pivot = tf.sqrt(tf.where(whole, rest, 1.0))
        rows[j][j] = tf.where(whole, pivot, 0.0)
        for i in range(j + 1, m):
            left = covariances[:, i, j] - sum(
                a * b for a, b in zip(rows[i][:j], rows[j])
            )
            rows[i][j] = tf.where(whole, left / pivot, 0.0)
    return tf.stack([tf.stack(row, axis=-1) for row in rows], axis=-2)
