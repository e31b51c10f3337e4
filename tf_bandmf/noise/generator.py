"""The noise generator, whose functions are pure: they depend only on their arguments."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_bandmf.accounting.checks import check_word, whole_number
from tf_bandmf.noise.devices import traced_under_xla
from tf_bandmf.noise.keys import KEY_WORDS, NoiseKey
from tf_bandmf.noise.normals import BLOCK, weighted_normals
from tf_bandmf.noise.recurrences import Updates, recurrence_of
from tf_bandmf.strategies import Strategy

# A slice from the start of a vector needs no copy if its length is a multiple of this
# number of floats (64 bytes).
_ALIGNED = 16


class NoiseState(NamedTuple):
    """The secret state that the generator carries from step to step.

    Attributes:
      step_keys: uint64, shape [num_steps, key_words].
      buffer: the vectors from earlier steps that the strategy needs, float32, shape
        [memory_vectors, shard_size].
    """

    step_keys: tf.Tensor
    buffer: tf.Tensor

    def __repr__(self) -> str:
        return "NoiseState(<secret>)"


class NoiseGenerator:
    """Generates the rows of `C^-1 Z` step by step, for one strategy and model size.

    Its functions are pure: `initial_state(key)` and `next(state, step)`, as in optax.
    `next` runs a `tf.function`; eager code and other graphs may call it.

    `C` is the strategy matrix. Formal guarantee: under a secret key, the noise of the
    steps `0, ..., n - 1` is distributed like the rows of `C^-1 Z` for a matrix `Z` of
    independent standard normals, up to float32 rounding and the quality of the
    generator. Row `i` of `Z` is generated from the key of step `i`. Callers multiply
    the noise by `Plan.noise_stddev`.

    Several devices can share the work (arXiv:2405.15913, section 3.3): with
    `num_shards = R`, each device generates one of R shards of equal size and stores the
    buffer of its shard. Concatenated and cut to `num_parameters`, the shards are the
    vector that a single device generates.

    Args:
      strategy: strategy that determines C and the number of steps.
      num_parameters: d, length of the noise vector.
      num_shards: R; if it is more than 1, `next` returns one shard of the vector.
      keep_normals: True to store the normals of the last `bands - 1` steps, if the
        strategy has a banded inverse, instead of regenerating them. This takes more
        memory and less time, and gives the same noise to float precision.
      jit_compile: True to generate normals with XLA. False, for graphs that are
        executed without XLA, is three to six times slower.
      generator: "philox", or "chacha20": a stream cipher, which is slower.

    Attributes:
      num_steps: n, the number of steps.
      num_parameters: d, length of the noise vector.
      num_shards: R, the number of shards.
      shard_size: length of the vector that `next` returns. A single shard has length
        num_parameters. If there are several shards, each consists of whole blocks of
        normals, and the last shards may extend past the end of the noise vector.
      memory_vectors: number of vectors in the buffer.
      key_terms: number of steps whose normals are generated, from the keys of these
        steps, to compute the noise of one step: this step and the steps just before it.
      key_words: number of uint64 words in a step's key.

    Raises:
      ValueError: if num_parameters or num_shards is < 1, or the generator is unknown.
    """

    def __init__(
        self,
        strategy: Strategy,
        num_parameters: int,
        *,
        num_shards: int = 1,
        keep_normals: bool = False,
        jit_compile: bool = True,
        generator: str = "philox",
    ) -> None:
        check_word("generator", generator, KEY_WORDS)
        if not isinstance(strategy, Strategy):
            raise TypeError(f"strategy must be a Strategy, found {strategy!r}.")
        self.num_steps = strategy.num_steps
        self.num_parameters = whole_number("num_parameters", num_parameters)
        self.num_shards = whole_number("num_shards", num_shards)
        self._shard_blocks = -(-self.num_parameters // (BLOCK * self.num_shards))
        whole = self._shard_blocks * BLOCK
        self.shard_size = self.num_parameters if self.num_shards == 1 else whole
        self._generator, self._jit_compile = generator, bool(jit_compile)
        self._recurrence = recurrence_of(strategy.matrix, keep_normals, jit_compile)
        self.memory_vectors = self._recurrence.memory_vectors
        self.key_terms = self._recurrence.key_terms
        self.key_words = KEY_WORDS[generator]
        self._next_function = tf.function(self._next, autograph=False)

    @property
    def past_the_end(self) -> str:
        """The error message for a step after the last step of the plan."""
        return (
            f"The plan has {self.num_steps} steps: this step is past its end (or "
            f"negative). Its privacy budget is spent; more steps need a new plan."
        )

    def step_keys(self, key: NoiseKey) -> np.ndarray:
        """Returns the secret keys of all steps, uint64, shape [num_steps, key_words]."""
        return key.step_keys(self.num_steps, self._generator)

    def bound_key(self, step_key: Any, digest: Any) -> Any:
        """Binds a step's key to the digest of the sum that the step's normals are added to.

        The digest is added to the upper half of Philox's counter, or to the last words
        of ChaCha20's nonce. Therefore, different sums of a step use different counters.
        If the generator is a pseudo-random function, its values at different counters
        are independent (Rogaway and Shrimpton, "A provable-security treatment of the
        key-wrap problem", Eurocrypt 2006; RFC 5297). If a step is repeated with an
        equal sum, the noise is equal, too, which reveals nothing new. If the step is
        repeated with a different sum, the noise is independent, and does not cancel in
        the difference of the two noisy sums.

        Args:
          step_key: int64 or uint64, shape [..., key_words], a tensor or an array.
          digest: int64, shape [...], from `noise.digests.keyed_digest`.

        Returns:
          The bound key, which is secret, with the type and shape of `step_key`.
        """
        if isinstance(step_key, tf.Tensor):
            last = tf.constant([0] * (self.key_words - 1) + [1], step_key.dtype)
            digest = tf.expand_dims(tf.cast(digest, step_key.dtype), -1)
            return step_key + last * digest
        last = step_key[..., -1:] + np.asarray(digest).astype(step_key.dtype)[..., None]
        return np.concatenate([step_key[..., :-1], last], axis=-1)

    def initial_state(self, key: NoiseKey) -> NoiseState:
        """Returns the generator's state before step 0."""
        return NoiseState(
            tf.constant(self.step_keys(key)),
            tf.zeros([self.memory_vectors, self.shard_size]),
        )

    def next(
        self, state: NoiseState, step: tf.Tensor, shard: tf.Tensor | int = 0
    ) -> tuple[tf.Tensor, NoiseState]:
        """Returns the noise of a step, and the state after the step.

        Args:
          state: the state before the step.
          step: int64 scalar in [0, num_steps). If the generator has a buffer, the steps
            must be passed in order.
          shard: index of the shard, int32 scalar in [0, num_shards).

        Returns:
          Noise, float32, shape [shard_size], and the new state.

        Raises:
          InvalidArgumentError: if `step` is not in [0, num_steps). This is also checked
            in graphs.
          ValueError: if the call is compiled by XLA, which drops the assertion that the
            step is valid.
        """
        if traced_under_xla():
            raise ValueError(
                "Call the noise generator without jit_compile=True: XLA would drop the "
                "check that the step is one of the plan's steps."
            )
        return self._next_function(
            state, tf.cast(step, tf.int64), tf.cast(shard, tf.int32)
        )

    def _next(
        self, state: NoiseState, step: tf.Tensor, shard: tf.Tensor
    ) -> tuple[tf.Tensor, NoiseState]:
        step = self.checked_step(step)
        noise, updates = self.row(state.step_keys, state.buffer, step, shard)
        return noise, NoiseState(state.step_keys, updated(state.buffer, updates))

    def checked_step(self, step: tf.Tensor) -> tf.Tensor:
        """Returns `step` as int64, after checking that it is a step of the plan."""
        step = tf.cast(step, tf.int64)
        horizon = tf.constant(self.num_steps, tf.int64)
        is_within = (step >= 0) & (step < horizon)
        is_planned = tf.debugging.Assert(is_within, [self.past_the_end])
        with tf.control_dependencies([is_planned]):
            return tf.identity(step)

    def row(
        self,
        step_keys: tf.Tensor,
        buffer: tf.Tensor,
        step: tf.Tensor,
        shard: tf.Tensor | int = 0,
        *,
        may_be_longer: bool = False,
    ) -> tuple[tf.Tensor, Updates]:
        """Returns the noise of a step, and the rows of the buffer that change.

        Callers that keep the buffer in a variable use this method instead of `next`.
        They must check the step themselves, with `checked_step`.

        Args:
          step_keys: the keys of at least the last `key_terms` steps, uint64, shape
            [any, key_words]; the key of step `i` is at index `i % len(step_keys)`.
          buffer: the vectors from earlier steps, float32, shape [memory_vectors,
            shard_size].
          step: int64 scalar in [0, num_steps).
          shard: index of the shard, int32 scalar in [0, num_shards).
          may_be_longer: True if the result may contain a few numbers after the noise,
            which saves a copy.

        Returns:
          Noise, float32, shape [shard_size], and the changes of the buffer as arguments
          of `scatter_update`. They contain each row of the buffer at most once, and are
          empty if there is no buffer.

        Raises:
          ValueError: if the keys belong to another type of generator.
        """
        if step_keys.shape[-1] != self.key_words:
            raise ValueError(
                f"The noise keys were made for another generator: {self._generator!r} "
                f"needs keys of {self.key_words} words, found {step_keys.shape[-1]}."
            )
        first_block = self._shard_blocks * shard
        size = self.shard_size
        if may_be_longer and not self.memory_vectors:
            size += -size % _ALIGNED

        def normals(steps: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
            # The keys are cast to a signed type because GPUs cannot gather unsigned
            # integers.
            signed = tf.bitcast(step_keys, tf.int64)
            places = steps % tf.shape(step_keys, tf.int64)[0]
            keys = tf.bitcast(tf.gather(signed, places), tf.uint64)
            compiles = self._jit_compile
            return weighted_normals(
                keys, weights, size, first_block, jit_compile=compiles
            )

        return self._recurrence.row(normals, buffer, step)


def updated(buffer: tf.Tensor, updates: Updates) -> tf.Tensor:
    """Applies a step's updates to a buffer tensor, and returns the new buffer."""
    for update in updates:
        buffer = tf.tensor_scatter_nd_update(
            buffer, update.indices[:, None], update.values
        )
    return buffer
