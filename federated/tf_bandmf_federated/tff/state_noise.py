"""Noise generation within TFF's state, which holds all round keys and the ring buffer.

The noise is a pure function for TFF's server computations, with a dictionary of tensors
as state. In each round, the state is sent to TFF's worker and back, which takes about
20 times the state's size in memory, so a large ring buffer is an error.
"""

from __future__ import annotations

import collections
import hashlib

import numpy as np
import tensorflow as tf

from tf_bandmf import Plan
from tf_bandmf.noise import NoiseGenerator, NoiseState, digests
from tf_bandmf.noise.generator import updated
from tf_bandmf.noise.keys import NoiseKey
from tf_bandmf.noise.philox import halves
from tf_bandmf_federated.tff.secret_words import fresh_words

MAX_STATE_FLOATS = 5_000_000  # largest ring buffer
_UNSAID = np.int64(0)  # default `inputs` of a round

State = collections.OrderedDict


def check_fits(plan: Plan, num_parameters: int) -> None:
    """Raises ValueError if TFF's state cannot hold the plan's ring buffer."""
    vectors = plan.strategy.memory_vectors
    if vectors * num_parameters > MAX_STATE_FLOATS:
        raise ValueError(
            f"The noise of {plan.mechanism} keeps {vectors} vectors of "
            f"{num_parameters:,} numbers; TFF's state, which travels to its worker and "
            f"back in every round, holds {MAX_STATE_FLOATS:,} numbers. Make the plan with "
            f'a mechanism that keeps none: BISR ("bisr"), BandInvMF ("bandinv") or '
            f'λ-CGD ("lambda_cgd"); or use Flower, whose server keeps them.'
        )


class NoiseInState:
    """Generates the noise of each round from a state with round keys and ring buffer.

    `step_keys`, uint64 [num_steps, 2], has 128 bits from the operating system for each
    round (16 bytes each; with ChaCha20 [num_steps, 5], 320 bits). The key of each
    completed round is bound to the sum to which the noise was added, by a digest with
    the key `digest_key`, int32, and to `inputs`, int64, a number that identifies the
    inputs of the round. If the caller gives no `inputs` (0), the running graph draws a
    random number. Therefore the noise after restoring an older state is independent.
    With a test seed, which gives no privacy, the noise depends only on the rounds.
    `buffer`, float32 [memory_vectors, num_parameters], is empty for strategies with a
    banded inverse.

    Args:
      plan: plan that determines the strategy, and the test seed if it has one.
      num_parameters: d, the number of parameters.
    """

    def __init__(self, plan: Plan, num_parameters: int) -> None:
        # TFF's worker executes graphs without XLA.
        self._generator = NoiseGenerator(
            plan.strategy,
            num_parameters,
            jit_compile=False,
            generator=plan.generator,
        )
        self._test_seed = plan.test_seed

    def initial_state(self) -> State:
        """Returns the state before round 0, created while the graph runs."""
        n, d = self._generator.num_steps, self._generator.num_parameters
        if self._test_seed is None:
            keys = fresh_words([n, self._generator.key_words])
            words = fresh_words([digests.KEY_SIZE // 2])
            # A bitcast of the words would not work here, because Grappler would merge
            # it with the previous bitcast.
            parts = [tf.cast(half, tf.int32) for half in halves(words)]
            digest_key = tf.concat(parts, axis=0)
        else:
            key = NoiseKey.for_testing(self._test_seed)
            keys = tf.constant(self._generator.step_keys(key))
            digest_key = tf.constant(digests.digest_key(key.secret_bytes(), ""))
        buffer = tf.zeros([self._generator.memory_vectors, d])
        return State(
            step_keys=keys,
            digest_key=digest_key,
            inputs=tf.constant(_UNSAID),
            buffer=buffer,
        )

    def next(
        self, state: State, round_number: tf.Tensor, total: tf.Tensor
    ) -> tuple[tf.Tensor, State]:
        """Returns the noise of a round, and the state after the round.

        Args:
          state: state after the previous rounds.
          round_number: the round, int64 scalar.
          total: sum to which the noise will be added, float32, shape [num_parameters].

        Returns:
          Row `round_number` of `C^-1 Z`, float32, shape [num_parameters], and the state
          after the round.

        Raises:
          InvalidArgumentError: at run time, if the plan has no such round.
        """
        keys, buffer = state["step_keys"], state["buffer"]
        step = self._generator.checked_step(round_number)
        if self._test_seed is None:
            words = digests.plain_digest(state["digest_key"], total)
            digest = tf.bitcast(words, tf.int64) + _said_or_drawn(state["inputs"])
            key = self._generator.bound_key(keys[step], digest)
            keys = tf.tensor_scatter_nd_update(keys, [[step]], key[None])
        noise, updates = self._generator.row(keys, buffer, step)
        buffer = updated(buffer, updates)
        unsaid = tf.constant(_UNSAID)
        return noise, State(state, step_keys=keys, inputs=unsaid, buffer=buffer)

    def skip(self, state: State, round_number: int, inputs: str) -> State:
        """Skips a round without releasing its noise; works on arrays, outside of TFF.

        The normals of the round, which later rounds may need, are bound to `inputs`, so
        no other history that skips the round has the same normals.
        """
        keys = np.array(state["step_keys"])
        if self._test_seed is None:
            skipped = number_of_inputs(f"skipped {inputs}")
            keys[round_number] = self._generator.bound_key(keys[round_number], skipped)
        kept = NoiseState(tf.constant(keys), tf.constant(state["buffer"]))
        _, after = self._generator.next(kept, tf.constant(round_number, tf.int64))
        return State(state, step_keys=keys, buffer=after.buffer.numpy())


def number_of_inputs(inputs: str) -> np.int64:
    """Converts a text to the `inputs` of a state: a 63-bit digest, never 0."""
    digest = hashlib.blake2b(inputs.encode(), digest_size=8).digest()
    return np.frombuffer(digest, np.int64)[0] | np.int64(1)


def _said_or_drawn(inputs: tf.Tensor) -> tf.Tensor:
    drawn = tf.bitcast(fresh_words([]), tf.int64)
    return tf.where(tf.equal(inputs, _UNSAID), drawn, inputs)
