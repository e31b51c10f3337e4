"""Generates noise from a TFF state that contains round keys and a ring buffer.

In TFF's server computations, a pure function must compute the noise from a state. The
state is a dictionary of tensors. In each round, TFF sends it to its worker process and
back, which takes about 20 times as much memory as the state itself. Therefore a plan
whose ring buffer is large is rejected.
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

# A ring buffer in TFF's state may have at most this many entries.
MAX_STATE_FLOATS = 5_000_000
# The state's entry `inputs` has this value if the caller sets none.
_UNSAID = np.int64(0)

State = collections.OrderedDict


def check_fits(plan: Plan, num_parameters: int) -> None:
    """Raises ValueError if TFF's state cannot hold the plan's ring buffer."""
    vectors = plan.strategy.memory_vectors
    if vectors * num_parameters > MAX_STATE_FLOATS:
        raise ValueError(
            f"The noise of {plan.mechanism} needs a ring buffer of {vectors} vectors with "
            f"{num_parameters:,} numbers each. At most {MAX_STATE_FLOATS:,} numbers are "
            f"allowed, because TFF copies the buffer between processes in every round. Use "
            f'Flower, or make the plan with BISR ("bisr"), BandInvMF ("bandinv") or '
            f'λ-CGD ("lambda_cgd"), which have no ring buffer.'
        )


class NoiseInState:
    """Generates each round's noise from a state with round keys and a ring buffer.

    The state contains:

    - `step_keys`, uint64 [num_steps, 2]: a key of 128 bits for each round, from the
      operating system. (With ChaCha20: [num_steps, 5], keys of 320 bits.) Each round
      binds its key to the number `inputs` and to a digest of the sum to which noise is
      added. With a test seed, which gives no privacy, the noise depends only on the
      seed and the round number.
    - `digest_key`, int32: the secret key of the digests.
    - `inputs`, int64: a number that identifies the inputs of the next round. If it is
      0, the default, each execution of the graph draws a random number instead.
      Therefore a round that is repeated from an older state has new, independent noise.
    - `buffer`, float32 [memory_vectors, num_parameters]: the ring buffer, which is empty
      for strategies with a banded inverse.

    Args:
      plan: plan that determines the strategy, and the test seed if it has one.
      num_parameters: d, the number of parameters.
    """

    def __init__(self, plan: Plan, num_parameters: int) -> None:
        # Do not use XLA, because TFF's worker executes graphs without it.
        self._generator = NoiseGenerator(
            plan.strategy,
            num_parameters,
            jit_compile=False,
            generator=plan.generator,
        )
        self._test_seed = plan.test_seed

    def initial_state(self) -> State:
        """Returns the state before round 0. Each execution of the graph draws new keys."""
        n, d = self._generator.num_steps, self._generator.num_parameters
        if self._test_seed is None:
            keys = fresh_words([n, self._generator.key_words])
            words = fresh_words([digests.KEY_SIZE // 2])
            # `tf.bitcast` would not work here, because Grappler would merge it with the
            # bitcast in `fresh_words`.
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
          The noise vector, float32, shape [num_parameters], and the state after the
          round.

        Raises:
          InvalidArgumentError: at run time, if the plan has no such round.
        """
        keys, buffer = state["step_keys"], state["buffer"]
        step = self._generator.checked_step(round_number)
        if self._test_seed is None:
            words = digests.keyed_digest(state["digest_key"], total)
            digest = tf.bitcast(words, tf.int64) + _said_or_drawn(state["inputs"])
            key = self._generator.bound_key(keys[step], digest)
            keys = tf.tensor_scatter_nd_update(keys, [[step]], key[None])
        noise, updates = self._generator.row(keys, buffer, step)
        buffer = updated(buffer, updates)
        unsaid = tf.constant(_UNSAID)
        return noise, State(state, step_keys=keys, inputs=unsaid, buffer=buffer)

    def skip(self, state: State, round_number: int, inputs: str) -> State:
        """Returns the state after a skipped round; called outside of TFF's graphs.

        The noise of later rounds may use the normal variates of the skipped round.
        Therefore these variates are bound to `inputs`: two copies of the run that skip
        the round with different inputs have different variates.
        """
        keys = np.array(state["step_keys"])
        if self._test_seed is None:
            skipped = number_of_inputs(f"skipped {inputs}")
            keys[round_number] = self._generator.bound_key(keys[round_number], skipped)
        kept = NoiseState(tf.constant(keys), tf.constant(state["buffer"]))
        _, after = self._generator.next(kept, tf.constant(round_number, tf.int64))
        return State(state, step_keys=keys, buffer=after.buffer.numpy())


def number_of_inputs(inputs: str) -> np.int64:
    """Converts a text to the entry `inputs` of a state: a 63-bit digest, never 0."""
    digest = hashlib.blake2b(inputs.encode(), digest_size=8).digest()
    return np.frombuffer(digest, np.int64)[0] | np.int64(1)


def _said_or_drawn(inputs: tf.Tensor) -> tf.Tensor:
    drawn = tf.bitcast(fresh_words([]), tf.int64)
    return tf.where(tf.equal(inputs, _UNSAID), drawn, inputs)
