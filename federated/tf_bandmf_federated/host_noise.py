"""Noise that the host makes, outside of TFF: for ring buffers too large for its state.

The key and the ring buffer stay in this process. Before each round the noise of that round
alone is put into TFF's state; the round takes it out again. So a saved state holds no
secret, and the file of `HostNoise.save` holds them all.
"""

from __future__ import annotations

import collections
import hashlib
import io
from typing import Any

import numpy as np
import tensorflow as tf

from tf_bandmf import Plan
from tf_bandmf.files import private as private_files
from tf_bandmf.noise import NoiseGenerator
from tf_bandmf.noise.keys import NoiseKey


class HostNoise:
    """The noise of the rounds of one program, made by the core's generator.

    A pure function of key, run and round; the ring buffer is remade from round 0 on if a
    round is wanted that is not the next one. Each round's noise is handed out once.

    Args:
      plan: strategy; with a test seed its key is the test key.
      num_parameters: d.
      key: of an interrupted run; None for a fresh one of 256 bits from the operating
        system.

    Raises:
      ValueError: if the plan has a test seed and a key is given.
    """

    def __init__(
        self, plan: Plan, num_parameters: int, key: NoiseKey | None = None
    ) -> None:
        if key is not None and plan.test_seed is not None:
            raise ValueError("A plan with a test seed has a key: leave noise_key out.")
        if key is None and plan.test_seed is None:
            key = NoiseKey.from_operating_system()
        self._key = key
        self._test_seed = plan.test_seed
        self._fingerprint = plan.fingerprint
        self._generator = NoiseGenerator(plan.strategy, num_parameters)
        shape = [self._generator.memory_vectors, self._generator.num_parameters]
        self._buffer = tf.Variable(tf.zeros(shape), trainable=False)
        self._run_id: int | None = None
        self._step_keys: tf.Tensor | None = None
        self._position = 0  # the round whose noise comes next from the buffer
        self._last: tuple[int, np.ndarray] | None = None
        self._issued: dict[int, int] = {}  # highest round handed out, by run
        self._next_row = tf.function(self._row_in_place)

    @property
    def key(self) -> NoiseKey:
        """The secret; keep `key.secret_bytes()` if the run shall survive this process.

        Runs have keys derived from it: see `run_key`.
        """
        if self._key is None:
            return NoiseKey.for_testing(self._test_seed)  # type: ignore[arg-type]
        return self._key

    @property
    def has_issued(self) -> bool:
        """Whether noise was handed out."""
        return bool(self._issued)

    def run_key(self, run_id: int) -> NoiseKey:
        """The noise key of one run: one `initialize` of the process.

        With a test seed it is the test key of every run.
        """
        if self._key is None:
            return self.key
        return NoiseKey(self._derive(run_id, b"tf-bandmf run", 32))

    def key_id(self, run_id: int) -> int:
        """A public number, positive, by which key and plan of a run are recognized."""
        digest = hashlib.blake2b(
            b"key id" + bytes.fromhex(self._fingerprint),
            key=self.run_key(run_id).secret_bytes(),
            digest_size=8,
            person=b"tf-bandmf keyid",
        ).digest()
        return (int.from_bytes(digest, "little") >> 1) | 1

    def prepare(self, state: Any, replay: bool = False) -> Any:
        """A state whose next round has its noise.

        Args:
          state: of a learning process, or of the aggregator alone.
          replay: permits to hand out a round's noise again. True says: the round is
            repeated with the same clients and the same data, or its first result was
            neither released nor kept. Two results with the same noise differ by the
            clients' exact contributions.

        Raises:
          ValueError: if a round comes again without `replay`, the state is of another
            key, or it is past the plan's last round.
          TypeError: if the state has no noise from the host.
        """
        run_id, round_number = self._checked(state)
        if round_number <= self._issued.get(run_id, -1) and not replay:
            raise ValueError(
                f"The noise of round {round_number} was handed out already. With another "
                f"cohort it would reveal both cohorts' contributions. Skip the round, or "
                f"say replay=True if the cohort and its data are the same."
            )
        values = self.values(run_id, round_number)
        self._issued[run_id] = max(round_number, self._issued.get(run_id, -1))
        prepared = self._noise_state(run_id, round_number, values)
        return replace_noise(state, prepared)

    def skip(self, state: Any) -> Any:
        """A state after its next round, whose noise is not handed out any more.

        Raises:
          ValueError: if the state is of another key.
          TypeError: if the state has no noise from the host.
        """
        run_id, round_number = self._checked(state)
        self._issued[run_id] = max(round_number, self._issued.get(run_id, -1))
        nothing = self._noise_state(run_id, -1, np.zeros([0], np.float32))
        return replace_noise(state, nothing, round_number + 1)

    def values(self, run_id: int, round_number: int) -> np.ndarray:
        """Row `round_number` of `C^-1 Z` of a run, float32, shape [d]. Secret.

        Raises:
          ValueError: if the round is not in [0, num_steps).
        """
        n = self._generator.num_steps
        if not 0 <= round_number < n:
            raise ValueError(
                f"The plan has {n} rounds, found round {round_number}. Its privacy "
                f"budget is spent; more rounds need a new plan."
            )
        if run_id != self._run_id:
            self._begin(run_id)
        if self._last is not None and self._last[0] == round_number:
            return self._last[1]
        if not self._generator.memory_vectors:
            self._position = round_number  # every row by itself
        elif round_number < self._position:
            self._begin(run_id)
        while self._position <= round_number:
            step = self._position
            # Until the row is there nothing is known of the buffer: should this be
            # interrupted, any round begins anew.
            self._position = n + 1
            row = self._next_row(self._step_keys, tf.constant(step, tf.int64))
            self._position = step + 1
        values = row.numpy()
        self._last = (round_number, values)
        return values

    def save(self, path: str) -> None:
        """Writes key and ring buffer, so that a restart need not remake the buffer.

        The file is as secret as the key: only the owner may read it (mode 0600). It is
        complete or not there: written beside and renamed, after it reached the disk.
        """
        content: dict[str, Any] = {
            "fingerprint": self._fingerprint,
            "key": np.frombuffer(self.key.secret_bytes(), np.uint8),
            "has_run": self._run_id is not None,
            "run_id": np.int64(self._run_id or 0),
            "position": self._position,
            "issued": np.array(list(self._issued.items()), np.int64).reshape(-1, 2),
            "buffer": self._buffer.numpy(),
        }
        with private_files.replaced(path) as file:
            np.savez(file, **content)

    @classmethod
    def load(cls, path: str, plan: Plan, num_parameters: int) -> HostNoise:
        """Reads a file of `save`.

        Raises:
          PermissionError: if others than the owner may read the file.
          ValueError: if the file is damaged or of another plan or model.
        """
        private_files.check_mode(path)
        try:
            with open(path, "rb") as file:
                with np.load(io.BufferedReader(file), allow_pickle=False) as archive:
                    content = {name: archive[name] for name in archive.files}
            secret = content["key"].tobytes()
            shape = content["buffer"].shape
            found = str(content["fingerprint"])
        except FileNotFoundError:
            raise
        except Exception as error:
            raise ValueError(f"{path} is damaged: {error}") from error
        noise = cls(
            plan,
            num_parameters,
            NoiseKey(secret) if plan.test_seed is None else None,
        )
        if found != plan.fingerprint or shape != tuple(noise._buffer.shape):
            raise ValueError(
                f"{path} is of another plan or model: found fingerprint {found[:12]} and "
                f"a buffer of shape {shape}, expected {plan.fingerprint[:12]} and "
                f"{tuple(noise._buffer.shape)}."
            )
        noise._issued = {int(run): int(last) for run, last in content["issued"]}
        if content["has_run"]:
            noise._begin(int(content["run_id"]))
            noise._buffer.assign(content["buffer"])
            noise._position = int(content["position"])
        return noise

    def _checked(self, state: Any) -> tuple[int, int]:
        """Run and round of a state that can go on with this key."""
        aggregator = find_aggregator(state)
        noise = aggregator["noise"]
        if "ready_for" not in noise:
            raise TypeError(
                "This state holds its own noise; only processes with noise='host' are "
                "prepared."
            )
        run_id, round_number = int(noise["run_id"]), int(aggregator["round"])
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

    def _noise_state(
        self, run_id: int, round_number: int, values: np.ndarray
    ) -> collections.OrderedDict:
        return collections.OrderedDict(
            run_id=np.int64(run_id),
            key_id=np.int64(self.key_id(run_id)),
            ready_for=np.int64(round_number),
            values=values,
        )

    def _begin(self, run_id: int) -> None:
        keys = self.run_key(run_id).step_keys(self._generator.num_steps)
        self._step_keys = tf.constant(keys)
        if self._run_id is not None:  # a new one is zero
            self._buffer.assign(tf.zeros_like(self._buffer))
        self._run_id, self._position, self._last = run_id, 0, None

    def _row_in_place(self, step_keys: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        step = self._generator.checked_step(step)
        noise, update = self._generator.row(step_keys, self._buffer, step)
        if update is not None:
            with tf.control_dependencies([noise]):
                self._buffer.scatter_update(update)
        return noise

    def _derive(self, run_id: int, person: bytes, size: int) -> bytes:
        return hashlib.blake2b(
            int(run_id).to_bytes(8, "little", signed=True)
            + bytes.fromhex(self._fingerprint),
            key=self.key.secret_bytes(),
            digest_size=size,
            person=person,
        ).digest()


def find_aggregator(state: Any) -> Any:
    """The part with "round" and "noise" of a state of a process or an aggregator.

    Raises:
      TypeError: if there is none.
    """
    aggregator = getattr(state, "aggregator", state)
    if isinstance(aggregator, collections.abc.Mapping):
        aggregator = aggregator.get("core", aggregator)
        if "noise" in aggregator and "round" in aggregator:
            return aggregator
    raise TypeError(
        f"Expected the state of a process with correlated noise, found "
        f"{type(state).__name__}."
    )


def replace_noise(state: Any, noise: Any, round_number: int | None = None) -> Any:
    """A copy of a state with other noise, and another round if one is given."""
    found = find_aggregator(state)
    core = collections.OrderedDict(found, noise=noise)
    if round_number is not None:
        core["round"] = np.int64(round_number)
    aggregator = getattr(state, "aggregator", state)
    if "core" in aggregator:
        core = collections.OrderedDict(core=core, registry=aggregator["registry"])
    return core if aggregator is state else state._replace(aggregator=core)
