"""Correlated noise: row by row of `C^-1 Z`, from a counter-based generator.

`z[i]`, the independent normals of step `i`, is a pure function of the step's key and of
the position in the vector. A strategy with a banded `C^-1` generates the few earlier
`z[i-j]` again and keeps nothing; one with a banded `C` keeps its last outputs in a ring
buffer.

WARNING: the keys and the ring buffer are secret. Whoever knows `y[i]`, the noise of
step `i`, computes that step's exact gradient.
"""

from __future__ import annotations

from typing import NamedTuple, Optional, Tuple

import numpy as np
import tensorflow as tf

from tf_bandmf import bands
from tf_bandmf.key_schedule import NoiseKey
from tf_bandmf.strategies import Strategy

# Normals are made in blocks of this many, so that any block can be made by itself.
_BLOCK = 4096
_COUNTERS_PER_BLOCK = _BLOCK // 4  # one Philox counter gives four 32-bit words
_PHILOX = 1  # tf.random.Algorithm.PHILOX, never "auto_select"
# More terms than this are summed in a loop, which holds one vector at a time.
_UNROLLED_TERMS = 4


class NoiseState(NamedTuple):
    """What the generator carries from step to step. Secret.

    Attributes:
      step_keys: uint64, shape [num_steps, 2].
      buffer: the last outputs, float32, shape [memory_vectors, num_parameters].
    """

    step_keys: tf.Tensor
    buffer: tf.Tensor


def standard_normals(
    step_key: tf.Tensor, num_normals: int, first_block: int = 0
) -> tf.Tensor:
    """Independent standard normals, float32, shape [num_normals].

    Box-Muller on the bits of Philox: the bits are the same with and without XLA and on
    every device, and the normals agree to float precision. (The generator
    `tf.random.stateless_normal` gives other numbers under XLA.) The largest magnitude
    is 6.7.

    Args:
      step_key: uint64, shape [2]: Philox key, and upper half of its counter.
      num_normals: static.
      first_block: where to begin, in blocks of 4096 normals: a shard generates its
        part alone.
    """
    num_blocks = -(-num_normals // _BLOCK)
    bits = tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=[num_blocks, 2, _BLOCK // 2],
        key=step_key[:1],
        counter=tf.stack(
            [tf.constant(first_block * _COUNTERS_PER_BLOCK, tf.uint64), step_key[1]]
        ),
        alg=_PHILOX,
        dtype=tf.uint32,
    )
    signed = tf.bitcast(bits, tf.int32)
    # In (0, 1], with full relative precision near 0, where the tails come from.
    low = tf.cast(tf.bitwise.bitwise_and(signed[:, 0], 0x7FFFFFFF), tf.float32)
    uniform = (low + 0.5) * 2.0**-31
    radius = tf.sqrt(-2.0 * tf.math.log(uniform))
    angle = tf.cast(signed[:, 1], tf.float32) * np.float32(np.pi * 2.0**-31)
    pairs = tf.stack([radius * tf.cos(angle), radius * tf.sin(angle)], axis=1)
    return tf.reshape(pairs, [-1])[:num_normals]


class NoiseGenerator:
    """Streams the rows of `C^-1 Z` for one strategy and model size.

    Pure: `initial_state(key)` and `next(state, step)`, as in optax. `next` runs a
    `tf.function`, and may be called in eager code and from other graphs.

    Formal guarantee: under a secret key the rows `0, ..., n - 1` are those of `C^-1 Z`
    with independent standard normal `Z`, each row of `Z` used for one step only, up to
    float32 rounding and the quality of Philox. Multiply by `Plan.noise_stddev`.

    Args:
      strategy: gives C and the number of steps.
      num_parameters: d, length of the noise vector.

    Raises:
      ValueError: if num_parameters < 1.
    """

    def __init__(self, strategy: Strategy, num_parameters: int) -> None:
        if num_parameters < 1:
            raise ValueError(f"num_parameters must be >= 1, found {num_parameters}.")
        self.num_steps = strategy.num_steps
        self.num_parameters = int(num_parameters)
        self.memory_vectors = strategy.memory_vectors
        self.regenerates = strategy.is_inverse_banded
        matrix, core = strategy.matrix, strategy.core
        banded = core.inner if isinstance(core, bands.Inverse) else core
        self._terms = banded.bands
        # Toeplitz: one row for all steps.
        if isinstance(banded, bands.ToeplitzBanded):
            self._rows = banded.coefficients[None].astype(np.float32)
        else:
            self._rows = bands.as_rows(banded).astype(np.float32)
        self._row_scale: Optional[np.ndarray] = None
        if isinstance(matrix, bands.ColumnScaled):
            # C^-1 = diag(1 / scale) core^-1.
            self._row_scale = (1.0 / matrix.scale).astype(np.float32)
        self._next_function = tf.function(self._next)

    def initial_state(self, key: NoiseKey) -> NoiseState:
        """The state before step 0."""
        return NoiseState(
            tf.constant(key.step_keys(self.num_steps)),
            tf.zeros([self.memory_vectors, self.num_parameters]),
        )

    def next(self, state: NoiseState, step: tf.Tensor) -> Tuple[tf.Tensor, NoiseState]:
        """The noise of a step, and the state after it.

        Args:
          state: after the steps before.
          step: int64 scalar in [0, num_steps). With a ring buffer the steps must come
            in order.

        Returns:
          float32, shape [num_parameters], and the new state.

        Raises:
          InvalidArgumentError: if step is not in [0, num_steps), in graphs too.
          ValueError: if traced under XLA, which drops the assertion: call it outside.
        """
        refuse_xla()
        return self._next_function(state, tf.cast(step, tf.int64))

    def _next(self, state: NoiseState, step: tf.Tensor) -> Tuple[tf.Tensor, NoiseState]:
        step = self.checked_step(step)
        if self.regenerates:
            return self.regenerated(state.step_keys, step), state
        output, core_output = self.buffered(state.step_keys, state.buffer, step)
        if not self.memory_vectors:
            return output, state
        slot = tf.reshape(step % self.memory_vectors, [1, 1])
        buffer = tf.tensor_scatter_nd_update(state.buffer, slot, core_output[None])
        return output, NoiseState(state.step_keys, buffer)

    def checked_step(self, step: tf.Tensor) -> tf.Tensor:
        """`step` as int64, after checking that it is before the horizon."""
        step = tf.cast(step, tf.int64)
        message = (
            f"The plan has {self.num_steps} steps: this step is past its end (or "
            f"negative). Its privacy budget is spent; more steps need a new plan."
        )
        with tf.control_dependencies(
            [
                tf.debugging.assert_less(step, tf.constant(self.num_steps, tf.int64), message),
                tf.debugging.assert_non_negative(step, message),
            ]
        ):
            return tf.identity(step)

    def regenerated(self, step_keys: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        """Noise of a strategy with a banded `C^-1`: `sum_j C^-1[i, i-j] z[i-j]`."""
        weights = self._weights(step)

        def term(j: tf.Tensor) -> tf.Tensor:
            # Steps before the first have weight 0.
            key = tf.gather(step_keys, tf.maximum(step - tf.cast(j, tf.int64), 0))
            return weights[j] * standard_normals(key, self.num_parameters)

        if self._terms <= _UNROLLED_TERMS:
            total = term(tf.constant(0))
            for j in range(1, self._terms):
                total += term(tf.constant(j))
        else:
            _, total = tf.while_loop(
                lambda j, _: j < self._terms,
                lambda j, partial: (j + 1, partial + term(j)),
                (tf.constant(1), term(tf.constant(0))),
                parallel_iterations=1,
            )
        return self._scaled(total, step)

    def buffered(
        self, step_keys: tf.Tensor, buffer: tf.Tensor, step: tf.Tensor
    ) -> Tuple[tf.Tensor, tf.Tensor]:
        """Noise of a strategy with a banded `C`, by forward substitution.

        `y[i] = (z[i] - sum_{0<j<bands} C[i, i-j] y[i-j]) / C[i, i]`.

        Args:
          step_keys: uint64, shape [num_steps, 2].
          buffer: shape [memory_vectors, num_parameters]; slot `i % memory_vectors`
            holds the core output of step `i`.
          step: int64 scalar.

        Returns:
          The noise, and the core output to be kept in slot `step % memory_vectors`.
        """
        weights = self._weights(step)
        key = tf.gather(step_keys, step)
        fresh = standard_normals(key, self.num_parameters)
        if self.memory_vectors:
            # Slot s was written j = 1 + (step - 1 - s) mod memory steps ago.
            slots = tf.range(self.memory_vectors, dtype=tf.int64)
            age = (step - 1 - slots) % self.memory_vectors + 1
            fresh -= tf.linalg.matvec(buffer, tf.gather(weights, age), transpose_a=True)
        core_output = fresh / weights[0]
        return self._scaled(core_output, step), core_output

    def _weights(self, step: tf.Tensor) -> tf.Tensor:
        """Row of the banded matrix, shape [terms]; 0 for steps before the first.

        NaN past the horizon: should an assertion be lost in somebody's compiled graph,
        there is still no noise that was used before.
        """
        rows = tf.constant(self._rows)
        row = rows[0] if rows.shape[0] == 1 else tf.gather(rows, step)
        exists = tf.range(self._terms, dtype=tf.int64) <= step
        return tf.where(step < self.num_steps, tf.where(exists, row, 0.0), np.nan)

    def _scaled(self, vector: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        if self._row_scale is None:
            return vector
        return vector * tf.gather(tf.constant(self._row_scale), step)


def refuse_xla() -> None:
    """Raises ValueError if this is traced into a function that XLA compiles."""
    from tensorflow.python.framework import ops
    from tensorflow.python.ops import control_flow_util

    if tf.executing_eagerly():
        return
    if control_flow_util.GraphOrParentsInXlaContext(ops.get_default_graph()):
        raise ValueError(
            "XLA drops assertions, so that a step past the horizon could not raise. "
            "Call the noise generator outside of jit_compile=True."
        )
