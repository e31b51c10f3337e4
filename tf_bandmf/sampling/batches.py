"""The batch schedule of the fixed epoch order: data that carries its own position."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tf_bandmf.participation import FixedEpochOrder

# Keys of a batch. `step` and `plan_id` let the training step refuse a batch that is
# not the one which the accountant analysed.
INPUTS, TARGETS, SAMPLE_WEIGHT = "x", "y", "sample_weight"
STEP, PLAN_ID = "step", "plan_id"


def is_scheduled_batch(data: Any) -> bool:
    """Whether `data` is a batch of a `BatchSchedule`."""
    return isinstance(data, dict) and STEP in data and PLAN_ID in data


class BatchSchedule:
    """All batches of a run under `FixedEpochOrder`, from the first step to the last.

    The order of the examples is drawn once, from `order_seed`; each epoch repeats the
    same batches. A batch is a dictionary of `x`, `y`, `sample_weight` (if given), the
    `step` it is meant for and the `plan_id` of the plan it belongs to.

    Args:
      participation: what the accountant analyses.
      plan_id: identifies the plan; int64.
      x: array or nested structure of arrays whose first dimension is the example.
      y: targets, likewise, or None.
      sample_weight: shape [num_examples] or None. A weight multiplies the loss of an
        example before its gradient is clipped.

    Raises:
      ValueError: if the number of examples is not that of the participation.
      TypeError: if the data are not arrays.
    """

    def __init__(
        self,
        participation: FixedEpochOrder,
        plan_id: int,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
    ) -> None:
        self.participation = participation
        self.plan_id = plan_id
        arrays = {INPUTS: x, TARGETS: y, SAMPLE_WEIGHT: sample_weight}
        self._arrays = {
            key: tf.nest.map_structure(self._checked, value)
            for key, value in arrays.items()
            if value is not None
        }
        # RandomState's stream is frozen by NumPy's compatibility policy.
        order = np.random.RandomState(participation.order_seed)
        self._order = order.permutation(participation.num_examples).astype(np.int64)

    @property
    def num_steps(self) -> int:
        return self.participation.num_steps

    @property
    def steps_per_epoch(self) -> int:
        return self.participation.steps_per_epoch

    def _checked(self, array: Any) -> tf.Tensor:
        if isinstance(array, (tf.data.Dataset, str)) or callable(array):
            raise TypeError(
                f"A fixed epoch order needs arrays, found {type(array).__name__}: only "
                f"then can the library enforce each example's position."
            )
        # On the host: a data set need not fit the accelerator's memory.
        with tf.device("/CPU:0"):
            tensor = tf.convert_to_tensor(array)
        expected = self.participation.num_examples
        if tensor.shape.rank == 0 or tensor.shape[0] != expected:
            raise ValueError(
                f"The plan is for {expected} examples, found an array of shape "
                f"{tuple(tensor.shape)}. Make a plan for this data set."
            )
        return tensor

    def example_indices(self, step: int) -> np.ndarray:
        """Indices of the examples of a step, shape [size of that batch]."""
        if not 0 <= step < self.num_steps:
            raise ValueError(f"step must be in [0, {self.num_steps}), found {step}.")
        position = step % self.steps_per_epoch
        total, steps = self.participation.num_examples, self.steps_per_epoch
        return self._order[position * total // steps : (position + 1) * total // steps]

    def dataset(self, first_step: int = 0) -> tf.data.Dataset:
        """The batches from `first_step` to the end of the run, in order."""
        total, steps = self.participation.num_examples, self.steps_per_epoch
        order = tf.constant(self._order)

        def batch(step: tf.Tensor) -> dict[str, Any]:
            position = step % steps
            indices = order[position * total // steps : (position + 1) * total // steps]
            content = tf.nest.map_structure(
                lambda array: tf.gather(array, indices), self._arrays
            )
            return {**content, STEP: step, PLAN_ID: tf.constant(self.plan_id, tf.int64)}

        return (
            tf.data.Dataset.range(first_step, self.num_steps)
            .map(batch, num_parallel_calls=2, deterministic=True)
            .prefetch(2)
        )

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.dataset())

    def __len__(self) -> int:
        return self.num_steps
