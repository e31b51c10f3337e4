"""Noise that the server makes outside of an engine, by the core's generator.

Key and ring buffer stay in this process; a folder keeps the key for a restart. The ring
buffer of a banded C is then made again from round 0; BISR, BandInvMF and λ-CGD have none.
"""

from __future__ import annotations

import hashlib
import os
import threading
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
    """The noise of the rounds of one program, made by the core's generator.

    It is a pure function of key, run, round, and the digests that bind the rounds to the
    sums that their noise is added to; see `bound_to`. If a round other than the next one
    is requested, the ring buffer is rebuilt from round 0. Threads may call it.

    Args:
      plan: plan whose strategy makes the noise; with a test seed, the key is the test
        key.
      num_parameters: d, the number of parameters.
      key: key of an interrupted run; None for a fresh 256-bit key from the operating
        system.

    Raises:
      MemoryError: if this machine cannot hold the ring buffer: BISR, BandInvMF and λ-CGD
        have none.
      ValueError: if the plan has a test seed and a key is given.
    """

    def __init__(
        self, plan: Plan, num_parameters: int, key: NoiseKey | None = None
    ) -> None:
        if key is not None and plan.test_seed is not None:
            raise ValueError("A plan with a test seed has a key: leave noise_key out.")
        if plan.test_seed is not None:
            key = NoiseKey.for_testing(plan.test_seed)
        self._key = key or NoiseKey.from_operating_system()
        self._plan, self._fingerprint = plan, plan.fingerprint
        self._reserved: dict[int, str] = {}  # in the plan's ledger, by the run's number
        self._generator = NoiseGenerator(
            plan.strategy, num_parameters, generator=plan.generator
        )
        refuse_too_large(plan.memory(num_parameters), machine.memory_bytes())
        shape = [self._generator.memory_vectors, self._generator.num_parameters]
        self._buffer = tf.Variable(tf.zeros(shape), trainable=False)
        self._lock = threading.RLock()
        self._run_id: int | None = None
        # Signed, as everywhere: of the run, bound to the digests.
        keys = np.zeros([plan.num_steps, self._generator.key_words], np.int64)
        self._step_keys = tf.Variable(keys, trainable=False)
        self._keys = keys.view(np.uint64)
        self._position = 0  # the round whose noise comes next from the buffer
        self._digests = np.zeros([plan.num_steps], np.int64)  # of the rounds drawn
        self._next_row = tf.function(self._row_in_place)
        self._sharded = NoiseGenerator(
            plan.strategy,
            num_parameters,
            num_shards=-(-num_parameters // _PART),
            generator=plan.generator,
        )
        self._part = tf.function(self._part_of_row)

    @property
    def key(self) -> NoiseKey:
        """The secret; keep `key.secret_bytes()` if the run must survive this process.

        Runs have keys derived from it: see `run_key`.
        """
        return self._key

    def seal(self, text: str) -> str:
        """A digest of a text that only this key can make."""
        return hashlib.blake2b(
            f"{self._fingerprint} {text}".encode(),
            key=self._key.secret_bytes(),
            person=b"round's receipt",
            digest_size=16,
        ).hexdigest()

    def keep_in(self, folder: str) -> None:
        """Continues with the key in a folder, or saves this one there.

        The folder is created with mode 0700.

        Raises:
          PermissionError: if anybody but the owner may read the key.
          ValueError: if the file is damaged; if it has another key, and noise of this key
            was already handed out.
        """
        os.makedirs(folder, mode=0o700, exist_ok=True)
        path = os.path.join(folder, KEY_FILE)
        if self._plan.test_seed is not None:
            return
        if not os.path.exists(path):
            private_files.write(path, self._key.secret_bytes())
        found = NoiseKey(private_files.read(path))
        if found.secret_bytes() == self._key.secret_bytes():
            return
        if self._run_id is not None:
            raise ValueError(
                "This process handed out noise of another key already. Build a new one."
            )
        self._key = found

    def run_key(self, run_id: int) -> NoiseKey:
        """The noise key of one run: one `initialize` of the process.

        With a test seed, it is the test key for every run.
        """
        if self._plan.test_seed is not None:
            return self._key
        return NoiseKey(self._derive(run_id, b"tf-bandmf run"))

    def key_id(self, run_id: int) -> int:
        """A positive public number that identifies the key and plan of a run."""
        digest = hashlib.blake2b(
            b"key id" + bytes.fromhex(self._fingerprint),
            key=self.run_key(run_id).secret_bytes(),
            digest_size=8,
            person=b"tf-bandmf keyid",
        ).digest()
        return (int.from_bytes(digest, "little") >> 1) | 1

    def digest(
        self, run_id: int, round_number: int, total: np.ndarray, inputs: str = ""
    ) -> int:
        """A keyed digest of what the noise of a round is added to, for `values`.

        BLAKE2b (RFC 7693) with a key of the run: two different sums have one digest with
        probability 2^-64, as far as nobody tells it from a random function.

        Args:
          run_id: number of the run.
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
            key=self._derive(run_id, b"tf-bandmf sums"),
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

        Args:
          state: after the rounds before, whose digests it has.
          total: see `digest`.
          inputs: see `digest`.

        Returns:
          Row `round` of `C^-1 Z`, float32, in consecutive parts that are made on
          demand; and the digests including this round's, int64, shape [round + 1]. Both
          are secret.
        """
        run_id, round_number = self._checked(state)
        check_horizon(self._plan, round_number)
        before = np.asarray(state["noise"]["digests"], np.int64)
        if len(before) != round_number:
            raise ValueError(
                f"The state is at round {round_number} and has digests of "
                f"{len(before)} rounds: it was damaged or made by hand."
            )
        self._reserve(run_id)
        now = self.digest(run_id, round_number, total, inputs)
        digests = np.append(before, np.int64(now))
        with self._lock:
            if self._generator.memory_vectors == 0:
                self._go_to(run_id, round_number, digests)
                parts = self._parts(self._step_keys.read_value(), round_number)
            else:
                parts = iter([self._row(run_id, round_number, digests)])
        return (np.asarray(memoryview(part)) for part in parts), digests

    def _parts(self, keys: tf.Tensor, round_number: int) -> Iterator[tf.Tensor]:
        """A row without a buffer, in parts.

        TensorFlow keeps the memory that it once had: a row at once would cost as much as
        the model for the rest of the program. Threads make the next parts meanwhile.
        """
        d, step = self._generator.num_parameters, tf.constant(round_number, tf.int64)

        def part(shard: int) -> tf.Tensor:
            found = self._part(keys, step, tf.constant(shard))
            return found[: d - shard * self._sharded.shard_size]

        return ahead(part, range(self._sharded.num_shards))

    def values(
        self, run_id: int, round_number: int, digests: np.ndarray | None = None
    ) -> np.ndarray:
        """Row `round_number` of `C^-1 Z` of a run, float32, shape [d]. Secret.

        Args:
          run_id: number of the run.
          round_number: of the round.
          digests: of the rounds up to this one, int64; None for noise that is bound
            only to the rounds.

        Raises:
          ValueError: if the round is not in [0, num_steps).
        """
        check_horizon(self._plan, round_number)
        self._reserve(run_id)
        if digests is None:
            digests = np.zeros([round_number + 1], np.int64)
        with self._lock:
            return self._row(run_id, round_number, digests).numpy()

    def _reserve(self, run_id: int) -> None:
        """Before any noise of a run: reserves in the ledger that its plan is bound to.

        Raises:
          LedgerError: if the ledger does not let the run begin, or is not open.
        """
        if run_id in self._reserved or not hooks.is_needed(self._plan):
            return
        name = hooks.name_of(self.run_key(run_id))
        hooks.begin(self._plan, name)
        self._reserved[run_id] = name

    def note_rounds(self, rounds: int) -> None:
        """Tells the plan's ledger how many rounds were done."""
        for name in self._reserved.values():
            hooks.note_steps(self._plan, name, rounds)

    def _row(self, run_id: int, round_number: int, digests: np.ndarray) -> tf.Tensor:
        """Makes the rows that the buffer needs, and the wanted one."""
        self._go_to(run_id, round_number, digests)
        while self._position <= round_number:
            step = self._position
            # Until the row is there nothing is known of the buffer: should this be
            # interrupted, any round begins anew.
            self._position = self._generator.num_steps + 1
            row = self._next_row(tf.constant(step, tf.int64))
            self._position = step + 1
        return row

    def _go_to(self, run_id: int, round_number: int, digests: np.ndarray) -> None:
        """Brings the buffer to this round, or to one before it."""
        has_buffer = self._generator.memory_vectors > 0
        drawn = min(self._position, len(digests))
        if (
            run_id != self._run_id
            or (has_buffer and round_number < self._position)
            or not np.array_equal(self._digests[:drawn], digests[:drawn])
        ):
            self._begin(run_id)
        self._digests[: len(digests)] = digests
        keys = self._generator.bound_key(self._keys, self._digests)
        self._step_keys.assign(keys.view(np.int64))
        if not has_buffer:
            self._position = round_number  # every row by itself

    def _checked(self, state: Any) -> tuple[int, int]:
        """Run and round of a state that can go on with this key."""
        noise = state["noise"]
        run_id, round_number = int(noise["run_id"]), int(state["round"])
        found = int(noise["key_id"])
        if found not in (0, self.key_id(run_id)):
            raise ValueError(
                "The state was made with another noise key, or for another plan. Give "
                "the key of the interrupted run; a run cannot go on with a new one."
            )
        if found == 0 and round_number:
            raise ValueError(
                f"The state is at round {round_number} but never had noise: it was "
                f"damaged or made by hand."
            )
        return run_id, round_number

    def _begin(self, run_id: int) -> None:
        self._keys = self._generator.step_keys(self.run_key(run_id))
        if self._run_id is not None:  # a new one is zero
            self._buffer.assign(tf.zeros_like(self._buffer))
        self._run_id, self._position = run_id, 0

    def _row_in_place(self, step: tf.Tensor) -> tf.Tensor:
        """The noise of a step; the buffer goes on to the next one."""
        step = self._generator.checked_step(step)
        keys = tf.bitcast(self._step_keys, tf.uint64)
        noise, updates = self._generator.row(keys, self._buffer, step)
        with tf.control_dependencies([noise]):
            for update in updates:
                self._buffer.scatter_update(update)
        return noise

    def _part_of_row(
        self, keys: tf.Tensor, step: tf.Tensor, shard: tf.Tensor
    ) -> tf.Tensor:
        generator = self._sharded
        buffer = tf.zeros([0, generator.shard_size])
        step = generator.checked_step(step)
        return generator.row(tf.bitcast(keys, tf.uint64), buffer, step, shard)[0]

    def _derive(self, run_id: int, person: bytes) -> bytes:
        return hashlib.blake2b(
            int(run_id).to_bytes(8, "little", signed=True)
            + bytes.fromhex(self._fingerprint),
            key=self._key.secret_bytes(),
            digest_size=32,
            person=person,
        ).digest()
