"""What must not be in any file that a user shares: key, buffer and clock of a run."""

from __future__ import annotations

from typing import NoReturn

import numpy as np
import tensorflow as tf

from tf_bandmf.key_schedule import NoiseKey
from tf_bandmf.noise import NoiseGenerator


class SecretState:
    """Key, ring buffer and step of one run, invisible to Keras and to tf.train.

    Variables that Keras or TensorFlow track land in every saved file, even with
    `include_optimizer=False`. This is a plain Python object: nothing tracks it, and it
    refuses to be pickled or copied.

    Attributes:
      step: int64 variable, number of noise vectors used so far.
      step_keys: uint64 variable, shape [num_steps, 2].
      buffer: float32 variable, shape [memory_vectors, num_parameters].
      schedule_id: int64 variable, of the schedule that the run uses; -1 before it began.
    """

    __slots__ = ("buffer", "schedule_id", "step", "step_keys")

    def __init__(self, generator: NoiseGenerator, key: NoiseKey) -> None:
        with tf.init_scope():
            self.step = tf.Variable(0, dtype=tf.int64, trainable=False)
            self.schedule_id = tf.Variable(-1, dtype=tf.int64, trainable=False)
            keys = key.step_keys(generator.num_steps)
            # A copy: TensorFlow may alias NumPy's memory.
            self.step_keys = tf.Variable(np.array(keys), trainable=False)
            shape = [generator.memory_vectors, generator.num_parameters]
            self.buffer = tf.Variable(tf.zeros(shape), trainable=False)

    def next_noise(self, generator: NoiseGenerator, step: tf.Tensor) -> tf.Tensor:
        """Row `step` of `C^-1 Z`; advances buffer and clock.

        Args:
          generator: the one that this state was made for.
          step: int64 scalar that `generator.checked_step` returned.

        Returns:
          float32, shape [num_parameters].
        """
        noise, update = generator.row(self.step_keys, self.buffer, step)
        # The clock first: whatever is interrupted then leaves clock and weights at
        # different steps, and training on is refused.
        with tf.control_dependencies([noise]):
            advanced = [self.step.assign(step + 1, read_value=False)]
        if update is not None:
            with tf.control_dependencies([op for op in advanced if op is not None]):
                kept = self.buffer.scatter_update(update)
            advanced.append(kept)
        with tf.control_dependencies([op for op in advanced if op is not None]):
            return tf.identity(noise)

    def __repr__(self) -> str:
        return "SecretState(<secret>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("The noise state is secret: it is not pickled or copied.")
