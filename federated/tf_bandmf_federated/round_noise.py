"""The noise of each round, for a server that does not use TensorFlow Federated.

For a strategy with a banded strategy matrix, this module keeps a ring buffer of noise
vectors in memory. After a restart, it recomputes the ring buffer from round 0. The
strategies BISR, BandInvMF and λ-CGD need no ring buffer.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping

import numpy as np
import tensorflow as tf

from tf_bandmf import Plan
from tf_bandmf.files import machine
from tf_bandmf.ledger import hooks
from tf_bandmf.noise import NoiseGenerator
from tf_bandmf.noise.keys import NoiseKey
from tf_bandmf.planning.memory import refuse_too_large
from tf_bandmf_federated.large_vectors import ahead
from tf_bandmf_federated.plan_checks import check_horizon

# Without a ring buffer, this many entries of a noise vector are generated at a time.
_PART = 1 << 20


class RoundNoise:
    """Computes each round's noise from a secret key, the round number and digests.

    The digest of a round is computed from the sum to which the noise is added. If the
    round is repeated with another sum, the new noise is therefore independent of the
    earlier noise. If the ring buffer cannot be advanced to the requested round, it is
    rebuilt from round 0.

    Args:
      plan: plan whose strategy determines the noise. If the plan has a test seed, the
        noise is generated with a key derived from this seed, and not with the key in
        the state.
      num_parameters: d, the number of parameters.

    Raises:
      MemoryError: if the ring buffer does not fit into memory. BISR, BandInvMF and
        λ-CGD have no ring buffer.
    """

    def __init__(self, plan: Plan, num_parameters: int) -> None:
        self._plan, self._fingerprint = plan, plan.fingerprint
        refuse_too_large(plan.memory(num_parameters), machine.memory_bytes())
        has_buffer = plan.strategy.memory_vectors > 0
        self._size = num_parameters
        self._generator = NoiseGenerator(
            plan.strategy,
            num_parameters,
            num_shards=1 if has_buffer else -(-num_parameters // _PART),
            generator=plan.generator,
        )
        shape = [self._generator.memory_vectors, self._generator.shard_size]
        self._buffer = tf.Variable(tf.zeros(shape), trainable=False)
        # The digests of all rounds through which the ring buffer has been advanced.
        # None means that the buffer's content is unknown.
        self._drawn: np.ndarray | None = np.zeros([0], np.int64)
        # The secret key of the state that was used last.
        self._secret = b""
        self._row = tf.function(self._row_in_place)

    def initial_state(self) -> OrderedDict[str, np.ndarray]:
        """Returns a state with a fresh 256-bit key from the operating system."""
        secret = NoiseKey.from_operating_system().secret_bytes()
        return OrderedDict(
            key=np.frombuffer(secret, np.uint8), digests=np.zeros([0], np.int64)
        )

    def name_of(self, state: Mapping[str, np.ndarray]) -> str:
        """Returns the name of the run that a state belongs to; the name is not secret."""
        self._take_key(state)
        return hooks.name_of(self._key)

    def note_rounds(self, state: Mapping[str, np.ndarray], rounds: int) -> None:
        """Reports the number of completed rounds to the plan's budget ledger, if any."""
        hooks.note_steps(self._plan, self.name_of(state), rounds)

    def _digest(self, number: int, total: np.ndarray, point: str) -> int:
        """Returns a keyed digest of the sum to which a round's noise will be added.

        The digest is BLAKE2b (RFC 7693) with a secret key of the run. Two different sums
        have the same digest with probability 2^-64, if BLAKE2b is computationally
        indistinguishable from a random function.

        Returns:
          A signed 64-bit number, which must stay as secret as the noise. With a test
          seed, which gives no privacy anyway, it is 0, so that runs can be compared.
        """
        if self._plan.test_seed is not None:
            return 0
        digest = hashlib.blake2b(
            number.to_bytes(8, "little"),
            key=self._secret,
            digest_size=8,
            person=b"tf-bandmf sum",
        )
        digest.update(np.ascontiguousarray(total).reshape(-1).view(np.uint8).data)
        digest.update(point.encode())
        return int.from_bytes(digest.digest(), "little", signed=True)

    def bound_to(
        self, state: Mapping[str, np.ndarray], total: np.ndarray, point: str
    ) -> tuple[Iterator[np.ndarray], OrderedDict[str, np.ndarray]]:
        """Returns the noise of the next round, bound to the sum to which it is added.

        If a round is repeated with another sum or `point`, the new noise is independent
        of the earlier noise, so the difference of the two releases is still noisy. If
        both are the same, the noise is the same, too. Therefore no record of earlier
        releases is needed.

        Args:
          state: state after the previous rounds, with the digests of these rounds.
          total: all entries of the sum, always in the same order.
          point: text to which the noise is bound in addition to the sum. It must contain
            a random number. Otherwise two copies of a run with equal sums would have
            equal results, which would reveal that the sums are equal.

        Returns:
          The noise vector, float32, in consecutive parts that are generated on demand;
          and the state after the round. Both are secret.

        Raises:
          LedgerError: if the plan's budget ledger rejects the run, or is not open.
          ValueError: if the plan has no further round.
        """
        number = len(state["digests"])
        after = self.after(state, total, point)
        bound = np.pad(after["digests"], (0, self._plan.num_steps - number - 1))
        keys = tf.constant(self._generator.bound_key(self._keys, bound))
        if self._generator.memory_vectors:
            parts = iter([self._from_buffer(keys, after["digests"])])
        else:
            parts = self._parts(keys, number)
        return (np.asarray(memoryview(part)) for part in parts), after

    def after(
        self, state: Mapping[str, np.ndarray], total: np.ndarray, point: str
    ) -> OrderedDict[str, np.ndarray]:
        """Returns the state after a round: a copy of `state` with the round's digest.

        The digest is computed from the round number, `total` and `point`. If the plan
        is bound to a budget ledger, the first call reserves the run's budget there.
        """
        number = len(state["digests"])
        check_horizon(self._plan, number)
        hooks.begin(self._plan, self.name_of(state))
        digest = np.int64(self._digest(number, total, point))
        return OrderedDict(state, digests=np.append(state["digests"], digest))

    def _take_key(self, state: Mapping[str, np.ndarray]) -> None:
        """Uses the key of this state for all further noise."""
        secret = np.asarray(state["key"]).tobytes()
        if secret == self._secret:
            return
        if self._secret:
            # The ring buffer contains noise of another key, so it must be rebuilt.
            self._drawn = None
        self._secret = secret
        self._key = NoiseKey(secret)
        if self._plan.test_seed is not None:
            self._key = NoiseKey.for_testing(self._plan.test_seed)
        self._keys = self._generator.step_keys(self._key)

    def _parts(self, keys: tf.Tensor, number: int) -> Iterator[tf.Tensor]:
        """Yields a noise vector in parts, for strategies without a ring buffer.

        TensorFlow does not return memory to the operating system. A noise vector
        generated as a whole would therefore permanently occupy as much memory as the
        model. Threads generate the next parts in advance.
        """
        step, length = tf.constant(number, tf.int64), self._generator.shard_size

        def part(shard: int) -> tf.Tensor:
            row = self._row(keys, step, tf.constant(shard))
            return row[: self._size - shard * length]

        return ahead(part, range(self._generator.num_shards))

    def _from_buffer(self, keys: tf.Tensor, digests: np.ndarray) -> tf.Tensor:
        """Returns the noise of the last round in `digests`, from the ring buffer.

        The buffer must be advanced through all rounds in order. If earlier rounds are
        missing, their noise is generated first. If the buffer belongs to other digests,
        it is rebuilt from round 0.
        """
        drawn, first = self._drawn, 0
        # The buffer's content is unknown until all steps are done.
        self._drawn = None
        if drawn is not None and np.array_equal(drawn, digests[:-1][: len(drawn)]):
            first = len(drawn)
        else:
            self._buffer.assign(tf.zeros_like(self._buffer))
        for step in range(first, len(digests)):
            row = self._row(keys, tf.constant(step, tf.int64), tf.constant(0))
        self._drawn = digests
        return row

    def _row_in_place(
        self, keys: tf.Tensor, step: tf.Tensor, shard: tf.Tensor
    ) -> tf.Tensor:
        """Returns the noise of a step, and advances the ring buffer, if there is one.

        Without a ring buffer, `shard` is the number of the part to generate.
        """
        step = self._generator.checked_step(step)
        noise, updates = self._generator.row(keys, self._buffer, step, shard)
        with tf.control_dependencies([noise]):
            for update in updates:
                self._buffer.scatter_update(update)
        return noise
