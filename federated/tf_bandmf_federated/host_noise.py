"""Noise that the server makes outside of an engine, by the core's generator.

A folder keeps the key for a restart. The ring buffer of a banded C, in this
process, is then made again from round 0; BISR, BandInvMF and λ-CGD have none.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tf_bandmf import Plan
from tf_bandmf.files import machine
from tf_bandmf.files import private as private_files
from tf_bandmf.ledger import hooks
from tf_bandmf.noise import NoiseGenerator
from tf_bandmf.noise.keys import NoiseKey
from tf_bandmf.planning.memory import refuse_too_large
from tf_bandmf_federated.large_vectors import ahead
from tf_bandmf_federated.plan_checks import check_horizon

KEY_FILE = "noise.key"
_PART = 1 << 20  # normals that are made at a time, where nothing is kept


class HostNoise:
    """The noise of one run's rounds, made by the core's generator.

    It is a pure function of key, round, and the digests that bind the rounds to the sums
    that their noise is added to; see `bound_to`. If a round other than the next one is
    requested, the ring buffer is rebuilt from round 0.

    Args:
      plan: plan whose strategy makes the noise; with a test seed, the key is the test
        key, otherwise 256 bits from the operating system, until `keep_in`.
      num_parameters: d, the number of parameters.

    Raises:
      MemoryError: if this machine cannot hold the ring buffer: BISR, BandInvMF and λ-CGD
        have none.
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
        self._position = 0  # the round whose noise comes next from the buffer
        self._reserved: str | None  # in the plan's ledger
        self._key: NoiseKey
        self._keys: np.ndarray
        self._row = tf.function(self._row_in_place)
        self._part = tf.function(self._part_of_row)
        self._begin(NoiseKey.from_operating_system())

    def keep_in(self, folder: str, is_new: bool) -> None:
        """Goes on with the key in a folder; a new run that has none gets one there.

        Raises:
          PermissionError: if anybody but the owner may read the key.
          ValueError: if the file is damaged, or is missing and the run is not new.
        """
        if self._plan.test_seed is not None:
            return
        os.makedirs(folder, mode=0o700, exist_ok=True)
        path = os.path.join(folder, KEY_FILE)
        if not os.path.exists(path):
            if not is_new:
                raise ValueError(
                    f"The ledger says that rounds were begun, but the noise key is not at "
                    f"{path}: the run cannot go on with another one."
                )
            private_files.write(path, NoiseKey.from_operating_system().secret_bytes())
        self._begin(NoiseKey(private_files.read(path)))

    @property
    def key_id(self) -> int:
        """A positive public number that identifies the key and plan of the run."""
        found = int.from_bytes(self._derive(b"tf-bandmf keyid")[:8], "little")
        return (found >> 1) | 1

    def seal(self, text: str) -> str:
        """A digest of a text that only this key can make."""
        return hashlib.blake2b(
            f"{self._fingerprint} {text}".encode(),
            key=self._secret,
            person=b"round's receipt",
            digest_size=16,
        ).hexdigest()

    def note_rounds(self, rounds: int) -> None:
        """Tells the plan's ledger how many rounds were done."""
        if self._reserved is not None:
            hooks.note_steps(self._plan, self._reserved, rounds)

    def digest(self, round_number: int, total: np.ndarray, inputs: str = "") -> int:
        """A keyed digest of what the noise of a round is added to.

        BLAKE2b (RFC 7693) with a key of the run: two different sums have one digest with
        probability 2^-64, as far as nobody tells it from a random function.

        Args:
          round_number: of the round.
          total: all numbers of the sum, in an order that is the same each time.
          inputs: what else the noise is bound to, such as a random number. Without it,
            two histories with equal sums have equal results, which shows that they are
            equal.

        Returns:
          A signed 64-bit number. As secret as the noise. 0 with a test seed, whose
          noise protects nobody, so that runs can be compared.
        """
        if self._plan.test_seed is not None:
            return 0
        found = hashlib.blake2b(
            round_number.to_bytes(8, "little"),
            key=self._derive(b"tf-bandmf sums"),
            digest_size=8,
            person=b"tf-bandmf sum",
        )
        found.update(np.ascontiguousarray(total).reshape(-1).view(np.uint8).data)
        found.update(inputs.encode())
        return int.from_bytes(found.digest(), "little", signed=True)

    def bound_to(
        self, state: Any, total: np.ndarray, inputs: str = ""
    ) -> tuple[Iterator[np.ndarray], np.ndarray]:
        """The noise of a state's round, bound to the sum that it is added to.

        If an older state is restored and the sums differ from there on, the noise is
        independent: no difference of releases is free of noise. Equal sums and inputs
        get equal noise. So nothing needs to be known about what was handed out before.
        The first time, the run reserves in the ledger that its plan is bound to.

        Args:
          state: after the rounds before, whose digests it has.
          total: see `digest`.
          inputs: see `digest`.

        Returns:
          Row `round` of `C^-1 Z`, float32, in consecutive parts that are made on
          demand; and the digests including this round's, int64, shape [round + 1]. Both
          are secret.

        Raises:
          LedgerError: if the ledger does not let the run begin, or is not open.
          ValueError: past the plan's last round, or if the state is of another run.
        """
        number, before = int(state["round"]), np.asarray(state["noise"]["digests"])
        check_horizon(self._plan, number)
        if int(state["noise"]["key_id"]) != self.key_id:
            raise ValueError(
                "The state was made with another noise key, or for another plan. Give "
                "the key of the interrupted run; a run cannot go on with a new one."
            )
        if len(before) != number:
            raise ValueError(
                f"The state is at round {number} and has digests of {len(before)} "
                f"rounds: it was damaged or made by hand."
            )
        if self._reserved is None and hooks.is_needed(self._plan):
            name = hooks.name_of(self._key)
            hooks.begin(self._plan, name)
            self._reserved = name
        digests = np.append(before, np.int64(self.digest(number, total, inputs)))
        bound = np.pad(digests, (0, self._plan.num_steps - len(digests)))
        keys = tf.constant(self._generator.bound_key(self._keys, bound))
        if self._generator.memory_vectors:
            parts = iter([self._from_buffer(keys, number, digests)])
        else:
            parts = self._parts(keys, number)
        return (np.asarray(memoryview(part)) for part in parts), digests

    def _begin(self, key: NoiseKey) -> None:
        self._secret, self._reserved = key.secret_bytes(), None
        self._key = NoiseKey(self._derive(b"tf-bandmf run"))
        if self._plan.test_seed is not None:
            self._key = NoiseKey.for_testing(self._plan.test_seed)
            self._secret = self._key.secret_bytes()
        self._keys = self._generator.step_keys(self._key)
        self._restart()

    def _restart(self) -> None:
        """The buffer before round 0."""
        if self._position:
            self._buffer.assign(tf.zeros_like(self._buffer))
        self._position, self._digests = 0, np.zeros([0], np.int64)

    def _derive(self, person: bytes) -> bytes:
        plan = bytes.fromhex(self._fingerprint)
        return hashlib.blake2b(
            plan, key=self._secret, digest_size=32, person=person
        ).digest()

    def _parts(self, keys: tf.Tensor, number: int) -> Iterator[tf.Tensor]:
        """A row without a buffer, in parts.

        TensorFlow keeps the memory that it once had: a row at once would cost as much as
        the model for the rest of the program. Threads make the next parts meanwhile.
        """
        step, length = tf.constant(number, tf.int64), self._generator.shard_size

        def part(shard: int) -> tf.Tensor:
            return self._part(keys, step, tf.constant(shard))[
                : self._size - shard * length
            ]

        return ahead(part, range(self._generator.num_shards))

    def _from_buffer(
        self, keys: tf.Tensor, number: int, digests: np.ndarray
    ) -> tf.Tensor:
        """Makes the rows that the buffer needs, and the wanted one."""
        position = self._position
        drawn = self._digests[:position]
        if number < position or not np.array_equal(drawn, digests[:position]):
            self._restart()
        for step in range(self._position, number + 1):
            # Until the row is there nothing is known of the buffer: should this be
            # interrupted, any round begins anew.
            self._position = self._plan.num_steps + 1
            row = self._row(keys, tf.constant(step, tf.int64))
            self._position = step + 1
        self._digests = digests
        return row

    def _row_in_place(self, keys: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        """The noise of a step; the buffer goes on to the next one."""
        step = self._generator.checked_step(step)
        noise, updates = self._generator.row(keys, self._buffer, step)
        with tf.control_dependencies([noise]):
            for update in updates:
                self._buffer.scatter_update(update)
        return noise

    def _part_of_row(
        self, keys: tf.Tensor, step: tf.Tensor, shard: tf.Tensor
    ) -> tf.Tensor:
        step = self._generator.checked_step(step)
        return self._generator.row(keys, self._buffer, step, shard)[0]
