"""What must not be in any file that a user shares: key, buffer and clock of a run."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
import tensorflow as tf

from tf_bandmf.files.hidden import HiddenArray
from tf_bandmf.noise import NoiseGenerator
from tf_bandmf.noise.keys import NoiseKey

TAKEN = (
    "Two threads took the same step of the run at once: its noise is for one batch. This "
    "one was refused before anything was released. Take the steps one after the other."
)


class SecretState:
    """Key, kept vectors and step of one run, invisible to Keras and to tf.train.

    Variables that Keras or TensorFlow track land in every saved file, even with
    `include_optimizer=False`. This is a plain Python object: nothing tracks it, and it
    refuses to be pickled or copied.

    Under a distribution strategy each replica has variables of its own: the same step
    and keys, and its part of the kept vectors.

    Args:
      generator: of the plan, with as many shards as there are replicas.
      key: of the run.
      step: number of noise vectors used so far.
      schedule_id: of the schedule that the run uses; -1 before it began.
      buffer: kept vectors after those steps, float32, shape [memory_vectors,
        num_shards * shard_size]; None for zeros.
    """

    __slots__ = (
        "_buffers",
        "_generator",
        "_schedule_ids",
        "_step_keys",
        "_steps",
        "_turns",
        "key",
    )

    def __init__(
        self,
        generator: NoiseGenerator,
        key: NoiseKey,
        step: int = 0,
        schedule_id: int = -1,
        buffer: np.ndarray | None = None,
    ) -> None:
        self._generator = generator
        self.key = key
        with tf.init_scope():
            self._steps = per_replica(tf.constant(step, tf.int64))
            self._turns = [tf.CriticalSection() for _ in self._steps]
            self._schedule_ids = per_replica(tf.constant(schedule_id, tf.int64))
            # Signed: workers cannot exchange unsigned numbers. A copy: TensorFlow may
            # alias NumPy's memory.
            keys = generator.step_keys(key).copy().view(np.int64)
            self._step_keys = per_replica(keys)
            shape = [generator.memory_vectors, generator.shard_size]
            self._buffers = per_replica(tf.zeros(shape))
        if buffer is not None:
            buffer = _hidden(buffer)
            first = _first_replica(len(self._buffers))
            for replica, variable in enumerate(self._buffers):
                start = (first + replica) * generator.shard_size
                variable.assign(buffer[:, start : start + generator.shard_size])

    @property
    def step(self) -> tf.Tensor:
        """Number of noise vectors used so far, int64."""
        return of_replica(self._steps).value()

    @property
    def schedule_id(self) -> tf.Tensor:
        """Of the schedule that the run uses, int64; -1 before it began."""
        return of_replica(self._schedule_ids).value()

    def pin_schedule(self, schedule_id: tf.Tensor) -> tf.Operation:
        """Binds the run to a schedule."""
        variable = of_replica(self._schedule_ids)
        return variable.assign(schedule_id, read_value=False)

    def secret_tensors(self) -> dict[str, np.ndarray]:
        """Keys of the steps and the kept vectors of this process' replicas."""
        return {
            "step_keys": _hidden(self._step_keys[0].numpy().view(np.uint64)),
            "buffer": _hidden(
                np.concatenate([part.numpy() for part in self._buffers], axis=1)
            ),
        }

    def next_noise(self, step: tf.Tensor) -> tf.Tensor:
        """Row `step` of `C^-1 Z`, this replica's part; advances buffer and clock.

        Args:
          step: int64 scalar that `generator.checked_step` returned.

        Returns:
          float32, shape [shard_size].

        Raises:
          InvalidArgumentError: in graphs too, if another thread took the step meanwhile.
        """
        buffer, clock = of_replica(self._buffers), of_replica(self._steps)
        keys = tf.bitcast(of_replica(self._step_keys).value(), tf.uint64)
        noise, update = self._generator.row(keys, buffer, step, replica_id())
        # The clock first: whatever is interrupted then leaves clock and weights at
        # different steps, and training on is refused.
        with tf.control_dependencies([noise]):
            is_ours = self._advance(clock, step)
        advanced = [tf.debugging.Assert(is_ours, [TAKEN])]
        noise = tf.where(is_ours, noise, np.nan)
        if update is not None:
            with tf.control_dependencies([op for op in advanced if op is not None]):
                kept = buffer.scatter_update(update)
            advanced.append(kept)
        with tf.control_dependencies([op for op in advanced if op is not None]):
            return tf.identity(noise)

    def _advance(self, clock: tf.Variable, step: tf.Tensor) -> tf.Tensor:
        """Sets the clock to `step + 1` if it is at `step`: for one of several threads.

        Graphs run outside of the locks of Python. Reading and writing is one operation.

        Returns:
          Whether it was, bool scalar.
        """

        def advance() -> tf.Tensor:
            now = clock.read_value()
            is_ours = tf.equal(now, step)
            following = tf.where(is_ours, step + 1, now)
            with tf.control_dependencies([clock.assign(following, read_value=False)]):
                return tf.identity(is_ours)

        return of_replica(self._turns).execute(advance)

    def __repr__(self) -> str:
        return "SecretState(<secret>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("The noise state is secret: it is not pickled or copied.")


def replica_id() -> int:
    """The number of the replica whose step is being traced; 0 without replicas.

    Raises:
      RuntimeError: if it is not known while the step is traced.
    """
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return 0
    found = tf.get_static_value(context.replica_id_in_sync_group)
    if found is None:
        raise RuntimeError(
            "This distribution strategy traces one step for all replicas, so that each "
            "replica's part of the noise is not known. Use MirroredStrategy or "
            "MultiWorkerMirroredStrategy."
        )
    return int(found)


def _first_replica(num_local: int) -> int:
    """The number of this process' first replica."""
    resolver = tf.distribute.get_strategy().cluster_resolver
    task = getattr(resolver, "task_id", None)
    return num_local * (task or 0)


def _hidden(array: np.ndarray) -> np.ndarray:
    return array.view(HiddenArray)


def per_replica(value: tf.Tensor | np.ndarray) -> list[tf.Variable]:
    """One untracked variable per replica of this process."""
    strategy = tf.distribute.get_strategy()
    if strategy.num_replicas_in_sync == 1:
        return [tf.Variable(value, trainable=False)]
    distributed = tf.Variable(
        value,
        trainable=False,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.NONE,
    )
    return list(strategy.experimental_local_results(distributed))


def of_replica(variables: list[tf.Variable]) -> Any:
    """The one of the replica whose step is being traced, of what `per_replica` made."""
    return variables[replica_id() % len(variables)]
