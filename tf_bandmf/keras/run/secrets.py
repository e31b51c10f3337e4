"""What must not be in any file that a user shares: key, buffer and clock of a run."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
import tensorflow as tf

from tf_bandmf.files.hidden import HiddenArray
from tf_bandmf.noise import NoiseGenerator
from tf_bandmf.noise.bound_keys import binding_keys, bound_step_key, sum_digest
from tf_bandmf.noise.keys import NoiseKey

TAKEN = (
    "Two threads took the same step of the run at once: its noise is for one batch. This "
    "one was refused before anything was released. Take the steps one after the other."
)
REPEATED = (
    "The run was resumed, and this step, which it had taken before, has another sum of "
    "gradients now: data, loss, layers, a callback or the random seeds differ, or an "
    "operation is not deterministic (on GPUs: "
    "tf.config.experimental.enable_op_determinism()). Nothing was released: with "
    "independent noise it would be a second run from here on. Resume from the newest "
    "checkpoint, or start a new run with its own budget."
)


class SecretState:
    """Key, keys of steps, kept vectors and step of one run, invisible to Keras.

    Variables that Keras or TensorFlow track land in every saved file, even with
    `include_optimizer=False`. This is a plain Python object: nothing tracks it, and it
    refuses to be pickled or copied.

    The key of a step is bound to the sum that its noise is added to, see
    `tf_bandmf.noise.bound_keys`: it is known when the step is taken, and kept.

    Under a distribution strategy each replica has variables of its own: the same step
    and keys, and its part of the kept vectors.

    Args:
      generator: of the plan, with as many shards as there are replicas.
      key: of the run.
      plan: fingerprint of the plan: what the run's secrets are bound to, beside the sums.
      step: number of noise vectors used so far.
      schedule_id: of the schedule that the run uses; -1 before it began.
      buffer: kept vectors after those steps, float32, shape [memory_vectors,
        num_shards * shard_size]; None for zeros.
      step_keys: of at least those steps, uint64, shape [steps, key_words]. Keys of later
        ones are of steps that the run took before it was resumed: a step whose key would
        be another one is refused.

    Raises:
      ValueError: if keys of steps before `step` are missing.
    """

    __slots__ = (
        "_buffers",
        "_digest_keys",
        "_generator",
        "_known_keys",
        "_recent_keys",
        "_roots",
        "_schedule_ids",
        "_steps",
        "_turns",
        "key",
    )

    def __init__(
        self,
        generator: NoiseGenerator,
        key: NoiseKey,
        plan: str,
        step: int = 0,
        schedule_id: int = -1,
        buffer: np.ndarray | None = None,
        step_keys: np.ndarray | None = None,
    ) -> None:
        self._generator = generator
        self.key = key
        all_keys = _all_keys(generator, step, step_keys)
        recent = np.zeros([generator.key_terms, generator.key_words], np.int64)
        for earlier in range(max(0, step - generator.key_terms), step):
            recent[earlier % generator.key_terms] = all_keys[earlier]
        with tf.init_scope():
            self._steps = per_replica(tf.constant(step, tf.int64))
            self._turns = [tf.CriticalSection() for _ in self._steps]
            self._schedule_ids = per_replica(tf.constant(schedule_id, tf.int64))
            # Signed: workers cannot exchange unsigned numbers. Copies: TensorFlow may
            # alias NumPy's memory.
            bindings = binding_keys(key, plan)
            self._roots = per_replica(bindings.root.copy().view(np.int32))
            self._digest_keys = per_replica(bindings.digest.copy().view(np.int32))
            self._known_keys = per_replica(all_keys)
            self._recent_keys = per_replica(recent)
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
        """Keys of the steps taken, and the kept vectors of this process' replicas."""
        keys = self._known_keys[0].numpy()[: int(self._steps[0])]
        return {
            "step_keys": _hidden(keys.view(np.uint64)),
            "buffer": _hidden(
                np.concatenate([part.numpy() for part in self._buffers], axis=1)
            ),
        }

    def next_noise(self, step: tf.Tensor, total: tf.Tensor) -> tf.Tensor:
        """Row `step` of `C^-1 Z`, this replica's part; advances buffer and clock.

        Args:
          step: int64 scalar that `generator.checked_step` returned.
          total: what the noise is added to: this replica's sum of clipped gradients,
            float32, shape [num_parameters].

        Returns:
          float32, shape [shard_size].

        Raises:
          InvalidArgumentError: in graphs too, if another thread took the step meanwhile,
            or the step was taken before the run was resumed, with another sum.
        """
        digest = sum_digest(of_replica(self._digest_keys).value(), total)
        key = bound_step_key(
            of_replica(self._roots).value(),
            step,
            from_all_replicas(digest),
            self._generator.key_words,
        )
        known = of_replica(self._known_keys).sparse_read(step)
        is_known = tf.reduce_all(tf.equal(known, 0)) | tf.reduce_all(tf.equal(known, key))
        checks = [tf.debugging.Assert(is_known, [REPEATED])]
        with tf.control_dependencies([check for check in checks if check is not None]):
            key = tf.where(is_known, key, 0)
        # Without the assertion, too, a refused step gets no noise but NaN.
        horizon = tf.constant(self._generator.num_steps, tf.int64)
        return self._draw(tf.where(is_known, step, horizon), step, key)

    def replay(self) -> tf.Tensor:
        """Draws the noise of the coming step once more, from its known key.

        Returns:
          A number of it, so that a graph keeps the operation.
        """
        step = self.step
        return self._draw(step, step, of_replica(self._known_keys).sparse_read(step))[0]

    def _draw(self, row: tf.Tensor, step: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        """The noise of `row`, which is `step` or past the horizon; advances everything."""
        buffer, clock = of_replica(self._buffers), of_replica(self._steps)
        recent = of_replica(self._recent_keys)
        slot = tf.reshape(step % self._generator.key_terms, [1, 1])
        keys = tf.tensor_scatter_nd_update(recent.value(), slot, key[None])
        noise, update = self._generator.row(
            tf.bitcast(keys, tf.uint64), buffer, row, replica_id()
        )
        # The clock first: whatever is interrupted then leaves clock and weights at
        # different steps, and training on is refused.
        with tf.control_dependencies([noise]):
            is_ours = self._advance(clock, step)
        advanced = [tf.debugging.Assert(is_ours, [TAKEN])]
        noise = tf.where(is_ours, noise, np.nan)
        with tf.control_dependencies([op for op in advanced if op is not None]):
            written = tf.IndexedSlices(key[None], step[None])
            advanced += [
                recent.assign(keys, read_value=False),
                of_replica(self._known_keys).scatter_update(written),
            ]
            if update is not None:
                advanced.append(buffer.scatter_update(update))
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


def from_all_replicas(value: tf.Tensor) -> tf.Tensor:
    """What every replica has, one after the other, in all of them.

    Args:
      value: of this replica, int32, shape [size].

    Returns:
      int32, shape [replicas, size].
    """
    replicas = tf.distribute.get_replica_context()
    if replicas is None or replicas.num_replicas_in_sync == 1:
        return value[None]
    before, after = replica_id(), replicas.num_replicas_in_sync - 1 - replica_id()
    rows = tf.pad(value[None], [[before, after], [0, 0]])
    return replicas.all_reduce(tf.distribute.ReduceOp.SUM, rows)


def _all_keys(
    generator: NoiseGenerator, step: int, step_keys: np.ndarray | None
) -> np.ndarray:
    """Keys of all steps, int64, shape [num_steps, key_words]; 0 where not known."""
    keys = np.zeros([generator.num_steps, generator.key_words], np.int64)
    known = 0 if step_keys is None else len(step_keys)
    if known < step:
        raise ValueError(f"Keys of {step} steps are needed, found {known}.")
    if step_keys is not None:
        keys[:known] = np.asarray(step_keys, np.uint64).view(np.int64)
    return keys


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
