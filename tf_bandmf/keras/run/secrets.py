"""The secrets of a run, which no shared file may hold: key, buffer and clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np
import tensorflow as tf

from tf_bandmf.files.hidden import HiddenArray, HiddenBytes
from tf_bandmf.noise import NoiseGenerator
from tf_bandmf.noise.digests import digest_key, keyed_digest
from tf_bandmf.noise.keys import NoiseKey

_PHILOX = 1
TAKEN = (
    "Two threads took the same step of the run at once: its noise is for one batch. This "
    "one was refused before anything was released. Take the steps one after the other."
)
REPEATED = (
    "The run was resumed, and this step, which it had taken before, is another one now: "
    "data, weights, loss, layers, a callback or random seeds differ, or sums are rounded "
    "differently (other versions, processors or numbers of threads; on GPUs operations "
    "that are not deterministic: tf.config.experimental.enable_op_determinism()). Nothing "
    "was released: with independent noise it would be a second run from here on. Resume "
    "from the newest checkpoint with everything as it was. Or go on as a second run, which "
    "composes with this one: load a checkpoint's weights into the model before compile, "
    "give PrivateOptimizer(..., additional_run=True) and another private state file, and "
    "publish tf_bandmf.compose([plan, plan]).statement()."
)


class SecretState:
    """Key, keys of steps, kept vectors and step of one run, invisible to Keras.

    Variables that Keras or TensorFlow track land in every saved file, even with
    `include_optimizer=False`. This is a plain Python object: nothing tracks it, and it
    refuses to be pickled or copied.

    The noise of a step is bound to its point, a digest of the point before, of the sum
    that it is added to and of the batch: the point is part of the step's key, see
    `NoiseGenerator.bound_key`. Points of the steps taken are kept, for mechanisms that
    draw earlier normals again.

    Under a distribution strategy each replica has variables of its own: the same step
    and keys, and its part of the kept vectors.

    Args:
      generator: the plan's generator, with as many shards as there are replicas.
      key: key of the run.
      plan: fingerprint of the plan, to which the run's secrets are bound besides the
        steps.
      step: number of noise vectors used so far.
      schedule_id: id of the schedule that the run uses; -1 before it began.
      buffer: kept vectors after those steps, float32, shape [memory_vectors,
        num_shards * shard_size]; None for zeros.
      digests: digests of at least those steps, int64, shape [steps]. Further digests
        are those of steps that the run took before it was resumed: such a step is
        refused if its digest differs now.
      is_bound: False for a test key, whose noise protects nobody: it follows from key and
        step alone, so that runs can be compared.
      compiles: whether digests of short sums are compiled, too: then steps are faster,
        but the first one takes longer. The bits are the same.

    Raises:
      ValueError: if digests of steps before `step` are missing.
    """

    __slots__ = (
        "_buffers",
        "_chain_key",
        "_compiles",
        "_digest_keys",
        "_generator",
        "_is_bound",
        "_known_digests",
        "_note",
        "_recent_keys",
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
        plan: str,
        step: int = 0,
        schedule_id: int = -1,
        buffer: np.ndarray | None = None,
        digests: np.ndarray | None = None,
        is_bound: bool = True,
        compiles: bool = False,
    ) -> None:
        self._generator = generator
        self._compiles = compiles
        self._is_bound = is_bound
        self._note: Callable[[bytes], None] | None = None
        self.key = key
        known = _known_digests(generator, step, digests)
        keys = generator.step_keys(key)
        terms = generator.key_terms
        recent = np.zeros([terms, generator.key_words], np.uint64)
        for earlier in range(max(0, step - terms), step):
            recent[earlier % terms] = self._bound(keys[earlier], known[earlier])
        with tf.init_scope():
            self._steps = per_replica(tf.constant(step, tf.int64))
            self._turns = [tf.CriticalSection() for _ in self._steps]
            self._schedule_ids = per_replica(tf.constant(schedule_id, tf.int64))
            # Signed: workers cannot exchange unsigned numbers. Copies: TensorFlow may
            # alias NumPy's memory.
            self._step_keys = per_replica(keys.copy().view(np.int64))
            self._recent_keys = per_replica(recent.view(np.int64))
            self._known_digests = per_replica(known)
            # Each replica's sum has a key of its own: the digests are added up.
            secret = key.secret_bytes()
            chain_key = digest_key(secret, f"{plan} chain")[:2]
            self._chain_key = tf.Variable(chain_key.view(np.int64), trainable=False)
            first = _first_replica(len(self._steps))
            self._digest_keys = per_replica(
                digest_key(secret, f"{plan} {first}").copy()
            )
            for replica, variable in enumerate(self._digest_keys[1:], first + 1):
                variable.assign(digest_key(secret, f"{plan} {replica}").copy())
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
        """The id of the schedule in use, int64; -1 before the run began."""
        return of_replica(self._schedule_ids).value()

    def pin_schedule(self, schedule_id: tf.Tensor) -> tf.Operation:
        """Binds the run to a schedule."""
        variable = of_replica(self._schedule_ids)
        return variable.assign(schedule_id, read_value=False)

    def watch(self, note: Callable[[bytes], None]) -> None:
        """Lets a function write down each step before its noise is drawn.

        Args:
          note: function of the step and its digest, which is secret, as two
            little-endian numbers of 8 bytes; whatever it raises ends the step. Graphs
            that were traced before do not call it.
        """
        self._note = note

    def secret_tensors(self) -> dict[str, np.ndarray]:
        """The keys of the steps taken, with their digests, and the kept vectors."""
        taken = int(self._steps[0])
        digests = self._known_digests[0].numpy()[:taken]
        keys = self._step_keys[0].numpy().view(np.uint64)[:taken]
        return {
            "digests": _hidden(digests),
            "step_keys": _hidden(self._bound(keys, digests)),
            "buffer": _hidden(
                np.concatenate([part.numpy() for part in self._buffers], axis=1)
            ),
        }

    def steps_known(self) -> int:
        """Steps that the run took, also before it was resumed, as far as digests show."""
        found = np.flatnonzero(self._known_digests[0].numpy())
        return max(int(self._steps[0]), int(found[-1]) + 1 if found.size else 0)

    def _bound(self, keys: Any, digests: Any) -> Any:
        """Keys of steps, bound to the digests of their sums."""
        return self._generator.bound_key(keys, digests) if self._is_bound else keys

    def next_noise(
        self,
        step: tf.Tensor,
        total: tf.Tensor | Sequence[tf.Tensor],
        inputs: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Row `step` of `C^-1 Z`, this replica's part; advances buffer and clock.

        Args:
          step: int64 scalar that `generator.checked_step` returned.
          total: what the noise is bound to: this replica's sum of clipped gradients,
            float32, of a static length, or its pieces; and
          inputs: everything else (`Admitted.inputs`, sums of tables), int32, of a
            static length.

        Returns:
          float32, shape [shard_size]; for a sum in pieces it may be longer: ignore what
          comes after the noise.

        Raises:
          InvalidArgumentError: in graphs too, if another thread took the step meanwhile,
            or the step was taken before the run was resumed, and differs now.
        """
        own = of_replica(self._digest_keys)
        part = keyed_digest(own, total, inputs, compiles=self._compiles)
        digest = self._point(tf.bitcast(sum_of_replicas(part), tf.int64), step)
        known = of_replica(self._known_digests).sparse_read(step)
        # 0 stands for a digest that is not known; one sum in 2^64 is not checked.
        may_be = tf.equal(known, 0) | tf.equal(known, digest)
        checks = [tf.debugging.Assert(may_be, [REPEATED])]
        if self._note is not None and own is self._digest_keys[0]:
            # One replica writes; the others' parts of the noise are of no use without its.
            with tf.control_dependencies([c for c in checks if c is not None]):
                checks.append(self._noted(tf.stack([step, digest])))
        with tf.control_dependencies([check for check in checks if check is not None]):
            # Without the assertion, too, a refused step gets no noise but NaN.
            horizon = tf.constant(self._generator.num_steps, tf.int64)
            row = tf.where(may_be, step, horizon)
        return self._draw(row, step, digest, may_be_longer=not tf.is_tensor(total))

    def _point(self, digest: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        """The point of a step: a PRF of the point before, and of the step's own digest.

        So histories that have differed once differ from then on: with correlated noise,
        two that met again would share normals, but not what earlier ones still add.
        """
        words = tf.stack([self.digest_before(step), digest])
        chained = tf.raw_ops.StatelessRandomUniformFullIntV2(
            shape=[1],
            key=tf.bitcast(self._chain_key, tf.uint64),
            counter=tf.bitcast(words, tf.uint64),
            alg=_PHILOX,
            dtype=tf.int64,
        )
        return tf.reshape(chained, [])

    def _noted(self, entry: tf.Tensor) -> tf.Tensor:
        def note(words: np.ndarray) -> bool:
            words = _hidden(words)
            assert self._note is not None
            self._note(HiddenBytes(words.astype("<i8").tobytes()))
            return True

        with tf.device("/CPU:0"):
            return tf.numpy_function(note, [entry], tf.bool)

    def digest_before(self, step: tf.Tensor) -> tf.Tensor:
        """The digest of the step before one, int64; 0 before the first."""
        digest = of_replica(self._known_digests).sparse_read(tf.maximum(step - 1, 0))
        return tf.where(step > 0, digest, tf.constant(0, tf.int64))

    def replay(self) -> tf.Tensor:
        """Draws the noise of the coming step once more, from its known digest.

        Returns:
          One number of the noise, so that a graph keeps the operation.
        """
        step = tf.identity(self.step)
        digest = of_replica(self._known_digests).sparse_read(step)
        return self._draw(step, step, digest)[0]

    def _draw(
        self,
        row: tf.Tensor,
        step: tf.Tensor,
        digest: tf.Tensor,
        may_be_longer: bool = False,
    ) -> tf.Tensor:
        """The noise of `row`, which is `step` or past the horizon; advances everything."""
        buffer, clock = of_replica(self._buffers), of_replica(self._steps)
        recent = of_replica(self._recent_keys)
        key = of_replica(self._step_keys).sparse_read(step)
        key = self._bound(key, digest)
        slot = tf.reshape(step % self._generator.key_terms, [1, 1])
        keys = tf.tensor_scatter_nd_update(recent.value(), slot, tf.expand_dims(key, 0))
        noise, updates = self._generator.row(
            tf.bitcast(keys, tf.uint64),
            buffer,
            row,
            replica_id(),
            may_be_longer=may_be_longer,
        )
        # The clock first: whatever is interrupted then leaves clock and weights at
        # different steps, and training on is refused.
        with tf.control_dependencies([noise]):
            is_ours = self._advance(clock, step)
        advanced = [tf.debugging.Assert(is_ours, [TAKEN])]
        if may_be_longer:
            drawn, shape = noise, noise.shape
            noise = tf.cond(is_ours, lambda: drawn, lambda: tf.fill(shape, np.nan))
        else:
            noise = tf.where(is_ours, noise, np.nan)
        with tf.control_dependencies([op for op in advanced if op is not None]):
            written = tf.IndexedSlices(
                tf.expand_dims(digest, 0), tf.expand_dims(step, 0)
            )
            advanced += [
                recent.assign(keys, read_value=False),
                of_replica(self._known_digests).scatter_update(written),
            ]
            advanced += [buffer.scatter_update(update) for update in updates]
        with tf.control_dependencies([op for op in advanced if op is not None]):
            return tf.identity(noise)

    def _advance(self, clock: tf.Variable, step: tf.Tensor) -> tf.Tensor:
        """Sets the clock to `step + 1` if it is at `step`; only one thread can.

        Graphs run outside of Python's locks, so reading and writing is one operation.

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


def sum_of_replicas(value: tf.Tensor) -> tf.Tensor:
    """The sum of what every replica has, in all of them; modulo 2^32 for int32."""
    replicas = tf.distribute.get_replica_context()
    if replicas is None or replicas.num_replicas_in_sync == 1:
        return value
    return replicas.all_reduce(tf.distribute.ReduceOp.SUM, value)


def _known_digests(
    generator: NoiseGenerator, step: int, digests: np.ndarray | None
) -> np.ndarray:
    """The digests of all steps, int64, shape [num_steps]; 0 where unknown."""
    known = np.zeros([generator.num_steps], np.int64)
    given = 0 if digests is None else len(digests)
    if given < step:
        raise ValueError(f"Digests of {step} steps are needed, found {given}.")
    if digests is not None:
        known[:given] = digests
    return known


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
        variable = tf.Variable(value, trainable=False)
        return list(strategy.experimental_local_results(variable))
    distributed = tf.Variable(
        value,
        trainable=False,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.NONE,
    )
    return list(strategy.experimental_local_results(distributed))


def of_replica(variables: list[tf.Variable]) -> Any:
    """The variable, of those that `per_replica` made, of the replica being traced."""
    return variables[replica_id() % len(variables)]
