"""The secrets of a run: noise key, noise buffer, and points (digests of the steps).

No file that is shared may contain any of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorflow as tf

from tf_bandmf.files.hidden import HiddenArray, HiddenBytes
from tf_bandmf.keras.run.admission import refuse
from tf_bandmf.keras.run.noising import Drawn, Noising, Stored
from tf_bandmf.noise.digests import digest_key
from tf_bandmf.noise.keys import NoiseKey, Secret
from tf_bandmf.planning.plan import Plan

REPEATED = (
    "The run was resumed, and this step, which it had taken before, is not the same now: "
    "data, weights, loss, layers, a callback or random seeds differ, or sums are rounded "
    "differently (other versions, processors or numbers of threads; on GPUs, call "
    "tf.config.experimental.enable_op_determinism()). Nothing was released. Resume from "
    "the newest checkpoint with everything unchanged. Or go on as a second run: load a "
    "checkpoint's weights before compile, give PrivateOptimizer(..., additional_run=True) "
    "another private state file, and publish compose([plan, plan]).statement()."
)


class SecretState(Secret):
    """Holds the key, points, noise buffer and step of one run, invisible to Keras.

    Variables that Keras or TensorFlow track end up in every saved file, even with
    `include_optimizer=False`. This is a plain Python object that nothing tracks. It
    refuses to be pickled or copied.

    The noise of a step is bound to the step's point: a digest of the previous point,
    the sum to which the noise is added, and the batch. The key of the noise contains
    the point (see `NoiseGenerator.bound_key`). All points stay on the device, because
    some mechanisms generate the normals of earlier steps again. With several replicas,
    the whole state is on one device.

    Args:
      noising: the function that adds the run's noise.
      key: key of the run.
      plan: the plan of the run. The noise keys also depend on the plan's fingerprint.
      step: number of noise vectors used so far.
      buffer: the vectors that the noise generator has stored after the first `step`
        steps, float32, shape [memory_vectors, num_parameters]; None for zeros.
      points: points of at least the first `step` steps, int64, shape [steps]; 0 stands
        for an unknown point. Further points belong to steps that the run took before
        it was resumed. If such a step now gets a different point, the step is refused.

    Attributes:
      key, step: see above.
      stored: the variables that the noise is computed from.
      note: None; or a function that records each step before the step's results are
        released. Its argument contains two little-endian numbers of 8 bytes: the step
        and the step's secret point. If the function raises an exception, the step ends.
      is_whole: False after a program that changes the run's state was interrupted.
    """

    def __init__(
        self,
        noising: Noising,
        key: NoiseKey,
        plan: Plan,
        step: int = 0,
        buffer: np.ndarray | None = None,
        points: Sequence[int] | np.ndarray = (),
    ) -> None:
        self._noising, generator = noising, noising.generator
        self.note: Callable[[bytes], None] | None = None
        self.key, self.step = key, step
        self.is_whole = True
        # The points that are known so far; 0 stands for an unknown point.
        self._known = np.zeros([generator.num_steps], np.int64).view(HiddenArray)
        self._known[: len(points)] = points
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
        self.stored = Stored(
            _variable(self._known),
            _variable(buffer.view(HiddenArray)),
            _variable(for_digest.view(np.int64)),
            _variable(for_chain[:2].view(np.int64)),
        )

    @contextlib.contextmanager
    def changing(self, steps: int = 0) -> Iterator[None]:
        """Provides a context for a program that changes the run's state or the weights.

        If the program is interrupted, the state and the weights may belong to different
        steps, so further training is refused.

        Args:
          steps: the number of steps that the program takes: 0 or 1.
        """
        self.is_whole = False
        yield
        self.step += steps
        self.is_whole = True

    @property
    def buffer(self) -> np.ndarray:
        """The secret noise vectors that are kept between steps.

        Float32, shape [memory_vectors, num_parameters].
        """
        return self.stored.buffer.numpy().view(HiddenArray)

    def points(self) -> np.ndarray:
        """Returns the points of the run's steps, int64; an unknown point is 0."""
        points = self.stored.points.numpy()
        last = np.max(np.nonzero(points)[0] + 1, initial=self.step)
        return points[: int(last)].view(HiddenArray)

    def step_keys(self, step: int) -> np.ndarray:
        """Returns the keys of a step, and of the earlier steps that its noise needs."""
        return self._step_keys[np.maximum(self._noising.recent_steps(step), 0)]

    def seed(self, step: int) -> tf.Tensor:
        """Returns the seed of a step's random layers (dropout); int32, shape [2]."""
        message, person = step.to_bytes(8, "little"), b"tf-bandmf masks"
        drawn = self.key.derived(message, 8, person)
        return tf.constant(np.frombuffer(drawn, "<i4"))

    def confirm(self, drawn: Drawn) -> None:
        """Records a step in Python, before the step's results are released.

        Raises:
          InvalidArgumentError: if the run took this step before it was resumed, and the
            step's point (see `SecretState`) is different now.
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
        """Stores a step's point, and the buffer rows that the step changes.

        Returns:
          The operations, which must run before any result of the step is released.
        """
        point = tf.IndexedSlices(
            *(tf.reshape(t, [1]) for t in (drawn.point, drawn.step))
        )
        taken = [self.stored.points.scatter_update(point)]
        return taken + [self.stored.buffer.scatter_update(row) for row in drawn.rows]

    def replay(self, last: int) -> None:
        """Draws the noise of all steps from `step` to `last - 1` again.

        Afterwards, `step` is `last`, and the buffer is up to date.
        """

        @tf.function(autograph=False)
        def again(step: tf.Tensor, keys: tf.Tensor, point: tf.Tensor) -> None:
            self.take(self._noising.row(step, keys, point, self.stored)[1])

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
