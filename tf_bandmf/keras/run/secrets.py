"""The secrets of a run, which no shared file may contain: key, points and buffer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_bandmf.files.hidden import HiddenArray, HiddenBytes
from tf_bandmf.keras.run.admission import refuse
from tf_bandmf.noise import NoiseGenerator
from tf_bandmf.noise.digests import digest_key, keyed_digest
from tf_bandmf.noise.keys import NoiseKey, Secret
from tf_bandmf.planning.plan import Plan

REPEATED = (
    "The run was resumed, and this step, which it had taken before, is not the same now: "
    "data, weights, loss, layers, a callback or random seeds differ, or sums are rounded "
    "differently (other versions, processors or numbers of threads; on GPUs operations "
    "that are not deterministic: tf.config.experimental.enable_op_determinism()). Nothing "
    "was released: with independent noise it would be a second run from here on. Resume "
    "from the newest checkpoint with everything unchanged. Or go on as a second run, which "
    "composes with this one: load a checkpoint's weights into the model before compile, "
    "give PrivateOptimizer(..., additional_run=True) and another private state file, and "
    "publish tf_bandmf.compose([plan, plan]).statement()."
)
_PHILOX = 1  # the code of the Philox algorithm in TensorFlow's random operations


class Drawn(NamedTuple):
    """A step whose noise is drawn, and of which nothing is released yet.

    Attributes:
      step: the number of the step, int64 scalar.
      point: the digest to which the step's noise is bound (see `SecretState`), int64
        scalar. Secret.
      rows: the changes to the buffer, `IndexedSlices`. Secret.
    """

    step: tf.Tensor
    point: tf.Tensor
    rows: Sequence[Any]


class SecretState(Secret):
    """Key, points, noise buffer and step of one run, invisible to Keras.

    Variables that Keras or TensorFlow track end up in every saved file, even with
    `include_optimizer=False`. This is a plain Python object that nothing tracks. It
    refuses to be pickled or copied.

    The noise of a step is bound to the step's point. The point is a digest of the
    previous point, the sum to which the noise is added, and the batch. The step's key
    contains it (see `NoiseGenerator.bound_key`). All points stay on the device, for
    mechanisms that regenerate the normals of earlier steps.

    `draw` changes nothing, so a step that is interrupted before `take` can be repeated.
    With several replicas, the whole state is on one device.

    Args:
      generator: the noise generator of the plan's strategy.
      key: key of the run.
      plan: the plan of the run, to which the noise is bound, too. If it has a test
        seed, the noise depends only on key and step, so that runs can be compared; it
        then protects nobody.
      step: number of noise vectors used so far.
      buffer: the vectors that the noise generator keeps between steps, after those
        steps; float32, shape [memory_vectors, num_parameters]; None for zeros.
      points: points of at least those steps, int64, shape [steps]. Further points
        belong to steps that the run took before it was resumed: if such a step now has
        a different point, it is refused. 0 stands for an unknown point.
      compiles: see `keyed_digest`. If True, digests of short sums are compiled, too:
        steps are then faster, but the first step takes longer. The digests are the
        same.

    Attributes:
      generator, key, step: see above.
      note: None; or a function that records each step before anything of it is
        released. Its argument is the step and its secret point, as two little-endian
        numbers of 8 bytes. If it raises an exception, the step ends.
      is_whole: False after a program that changes the run's state was interrupted.
    """

    def __init__(
        self,
        generator: NoiseGenerator,
        key: NoiseKey,
        plan: Plan,
        step: int = 0,
        buffer: np.ndarray | None = None,
        points: Sequence[int] | np.ndarray = (),
        compiles: bool | None = None,
    ) -> None:
        self.generator, self._compiles = generator, compiles
        self._is_bound = plan.test_seed is None
        self.note: Callable[[bytes], None] | None = None
        self.key, self.step = key, step
        self.is_whole = True
        # The points of all known steps, then the points of the steps taken so far.
        self._known = np.zeros([generator.num_steps], np.int64).view(HiddenArray)
        self._known[: len(points)] = points
        self._points = _variable(self._known)
        if buffer is None:
            buffer = np.zeros(
                [generator.memory_vectors, generator.num_parameters], "f4"
            )
        # The dtype is int64 because GPUs cannot gather unsigned integers, and
        # TensorFlow keeps int32 variables on the host.
        self._step_keys = generator.step_keys(key).view(np.int64)
        for_digest, for_chain = (
            digest_key(key.secret_bytes(), f"{plan.fingerprint} {use}")
            for use in ("0", "chain")
        )
        self._digest_key = _variable(for_digest.view(np.int64))
        self._chain_key = _variable(for_chain[:2].view(np.int64))
        self._buffer = _variable(buffer.view(HiddenArray))

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """A context for a program that changes the run's state or the model's weights.

        If the program is interrupted, the state and the weights may belong to different
        steps, so further training is refused.
        """
        self.is_whole = False
        yield
        self.is_whole = True

    @property
    def buffer(self) -> np.ndarray:
        """The kept noise vectors, float32, [memory_vectors, num_parameters]. Secret."""
        return self._buffer.numpy().view(HiddenArray)

    def points(self) -> np.ndarray:
        """Returns the points of all known steps of the run; 0 for unknown points."""
        points = self._points.numpy()
        last = np.max(np.nonzero(points)[0] + 1, initial=self.step)
        return points[: int(last)].view(HiddenArray)

    def _recent_steps(self, step: Any) -> Any:
        """Returns the last step with each remainder modulo `key_terms`, or < 0."""
        terms = self.generator.key_terms
        return step - (step - np.arange(terms)) % terms

    def step_keys(self, step: int) -> np.ndarray:
        """Returns the keys of a step and of the earlier steps that `draw` needs."""
        return self._step_keys[np.maximum(self._recent_steps(step), 0)]

    def seed(self, step: int) -> tf.Tensor:
        """Returns the seed of a step's random layers (dropout); int32, shape [2]."""
        message, person = step.to_bytes(8, "little"), b"tf-bandmf masks"
        drawn = self.key.derived(message, 8, person)
        return tf.constant(np.frombuffer(drawn, "<i4"))

    # Methods that run in graphs.

    def draw(
        self,
        step: tf.Tensor,
        keys: tf.Tensor,
        total: tf.Tensor | Sequence[tf.Tensor],
        inputs: tf.Tensor | None = None,
    ) -> tuple[tf.Tensor, Drawn]:
        """Draws row `step` of `C^-1 Z`; returns it with the drawn step, for `take`.

        Args:
          step: the coming step, int64 scalar.
          keys: `step_keys` of this step.
          total: the sum of clipped gradients, to which the noise is bound; float32, of
            a static length, in one or several tensors.
          inputs: everything else to which the noise is bound (the batch's digest, sums
            of lazy tables), int32, of a static length.

        Returns:
          The row, float32, shape [num_parameters], possibly followed by further
          numbers, which the caller must ignore; and the drawn step.
        """
        digest = keyed_digest(self._digest_key, total, inputs, compiles=self._compiles)
        point = self._point(tf.bitcast(digest, tf.int64), step)
        return self._row(step, keys, point)

    def _point(self, digest: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        """Returns a step's point: a PRF of the previous point and the step's digest.

        If two histories of a run differ in one step, all their later points differ,
        too. With a digest of only the step itself, they could share the normals of a
        later step, but not the earlier normals that contribute to its correlated noise.
        """
        words = tf.stack([self.point_before(step), digest])
        chained = tf.raw_ops.StatelessRandomUniformFullIntV2(
            shape=[1],
            key=tf.bitcast(self._chain_key, tf.uint64),
            counter=tf.bitcast(words, tf.uint64),
            alg=_PHILOX,
            dtype=tf.int64,
        )
        return tf.reshape(chained, [])

    def point_before(self, step: tf.Tensor) -> tf.Tensor:
        """Returns the point of the previous step, int64; 0 for the first step."""
        return tf.where(step > 0, self._points.sparse_read(tf.maximum(step - 1, 0)), 0)

    def _row(
        self, step: tf.Tensor, keys: tf.Tensor, point: tf.Tensor
    ) -> tuple[tf.Tensor, Drawn]:
        steps = self._recent_steps(step)
        earlier = self._points.sparse_read(tf.maximum(steps, 0))
        points = tf.where(steps == step, point, earlier)
        if self._is_bound:
            keys = self.generator.bound_key(keys, points)
        keys = tf.bitcast(keys, tf.uint64)
        noise, rows = self.generator.row(keys, self._buffer, step, may_be_longer=True)
        return noise, Drawn(step, point, list(rows))

    def confirm(self, drawn: Drawn) -> None:
        """Records a step in Python, before anything of it is released.

        Raises:
          InvalidArgumentError: if the step was taken before the run was resumed, and
            differs now.
        """
        step, earlier = self.step, self._known[self.step]
        if self.note is None and not earlier:
            return
        point = int(drawn.point.numpy())
        # A point that is 0 by chance (1 in 2^64) is not checked: 0 means "unknown".
        refuse(earlier not in (0, point), REPEATED)
        if self.note is not None:
            self.note(HiddenBytes(np.array([step, point], "<i8").tobytes()))

    def take(self, drawn: Drawn) -> list[tf.Operation]:
        """Advances to the next step; run the returned operations before any release."""
        point = tf.IndexedSlices(drawn.point[None], drawn.step[None])
        taken = [self._points.scatter_update(point)]
        return taken + [self._buffer.scatter_update(row) for row in drawn.rows]

    def replay(self, last: int) -> None:
        """Advances to a later step: draws the noise of the steps in between again."""

        @tf.function(autograph=False)
        def again(step: tf.Tensor, keys: tf.Tensor, point: tf.Tensor) -> None:
            self.take(self._row(step, keys, point)[1])

        for step in range(self.step, last):
            point = tf.constant(self._known[step])
            again(tf.constant(step, tf.int64), self.step_keys(step), point)
            self.step += 1


def _variable(value: Any) -> tf.Variable:
    """Creates a variable that Keras does not track, on one device of this process."""

    def make() -> tf.Variable:
        # The copy is needed because TensorFlow may alias NumPy's memory.
        return tf.Variable(value.copy(), trainable=False)

    if not tf.distribute.has_strategy():
        with tf.init_scope():
            return make()
    # A new thread is outside any strategy's scope, so the variable is not mirrored.
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(make).result()
