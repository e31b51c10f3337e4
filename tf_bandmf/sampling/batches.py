"""Batch schedules: data that carries its own position in the run."""

from __future__ import annotations

import abc
import functools
import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tf_bandmf.participation import FixedEpochOrder, Participation

# Keys of a batch. `step` and `plan_id` let the training step refuse a batch that is
# not the one which the accountant analysed.
INPUTS, TARGETS, SAMPLE_WEIGHT = "x", "y", "sample_weight"
STEP, PLAN_ID, SCHEDULE_ID = "step", "plan_id", "schedule_id"


def is_scheduled_batch(data: Any) -> bool:
    """Whether `data` is a batch of a `BatchSchedule`."""
    return isinstance(data, dict) and {STEP, PLAN_ID, SCHEDULE_ID} <= set(data)


class BatchSchedule(abc.ABC):
    """All batches of a run, from the first step to the last; one schedule spans a run.

    A batch is a dictionary of `x`, `y`, `sample_weight` (if given), the `step` it is meant
    for, the `plan_id` of the plan it belongs to and a `schedule_id`: a hash of the data and
    of how they were placed, which must not change within a run. Its size may vary from step
    to step, down to 0, and is no static shape: a training step is traced once.

    Args:
      participation: what the accountant analyses.
      num_steps: n.
      steps_per_epoch: steps of one pass over the data, exactly or on average.
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
        participation: Participation,
        num_steps: int,
        steps_per_epoch: int,
        plan_id: int,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
    ) -> None:
        participation.validate_num_steps(num_steps)
        self.participation = participation
        self.num_steps, self.steps_per_epoch = num_steps, steps_per_epoch
        self.plan_id = plan_id
        arrays = {INPUTS: x, TARGETS: y, SAMPLE_WEIGHT: sample_weight}
        self._arrays = {
            key: tf.nest.map_structure(self._checked, value)
            for key, value in arrays.items()
            if value is not None
        }

    def _checked(self, array: Any) -> tf.Tensor:
        if isinstance(array, (tf.data.Dataset, str)) or callable(array):
            raise TypeError(
                f"A schedule needs arrays, found {type(array).__name__}: only then can the "
                f"library enforce which examples each step uses."
            )
        # On the host: a data set need not fit the accelerator's memory.
        with tf.device("/CPU:0"):
            tensor = tf.convert_to_tensor(array)
        expected = self.participation.num_examples  # type: ignore[attr-defined]
        if tensor.shape.rank == 0 or tensor.shape[0] != expected:
            raise ValueError(
                f"The plan is for {expected} examples, found an array of shape "
                f"{tuple(tensor.shape)}. Make a plan for this data set."
            )
        return tensor

    @abc.abstractmethod
    def example_indices(self, step: int) -> np.ndarray:
        """Indices of the examples of a step, int64, shape [size of that batch]."""

    @functools.cached_property
    def schedule_id(self) -> int:
        """63 bits of a hash of plan, data and placement; the same in all of a run."""
        digest = hashlib.blake2b(str(self.plan_id).encode(), digest_size=8)
        digest.update(self._placement())
        for tensor in tf.nest.flatten(self._arrays):
            array = np.ascontiguousarray(tensor.numpy())
            digest.update(f"{array.dtype} {array.shape}".encode())
            is_text = array.dtype == object
            digest.update(b"\0".join(array.ravel()) if is_text else array.data)
        return int.from_bytes(digest.digest(), "little") >> 1

    def _placement(self) -> bytes:
        """What, beside the plan, decides which examples meet at a step."""
        return b""

    def _check_step(self, step: int) -> None:
        if not 0 <= step < self.num_steps:
            raise ValueError(f"step must be in [0, {self.num_steps}), found {step}.")

    @abc.abstractmethod
    def _indices(self, step: tf.Tensor) -> tf.Tensor:
        """As `example_indices`, in a graph; `step` is an int64 scalar."""

    def dataset(self, first_step: int = 0) -> tf.data.Dataset:
        """The batches from `first_step` to the end of the run, in order."""
        identity = {
            PLAN_ID: tf.constant(self.plan_id, tf.int64),
            SCHEDULE_ID: tf.constant(self.schedule_id, tf.int64),
        }

        def batch(step: tf.Tensor) -> dict[str, Any]:
            indices = self._indices(step)
            content = tf.nest.map_structure(
                lambda array: tf.gather(array, indices), self._arrays
            )
            return {**content, **identity, STEP: step}

        return (
            tf.data.Dataset.range(first_step, self.num_steps)
            .map(batch, num_parallel_calls=2, deterministic=True)
            .prefetch(2)
        )

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.dataset())

    def __len__(self) -> int:
        return self.num_steps


class FixedOrderSchedule(BatchSchedule):
    """The batches under `FixedEpochOrder`: those of the first epoch, again and again.

    The order of the examples is drawn once, from `order_seed`.

    Args:
      participation: what the accountant analyses.
      plan_id, x, y, sample_weight: as for `BatchSchedule`.
    """

    def __init__(
        self,
        participation: FixedEpochOrder,
        plan_id: int,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
    ) -> None:
        steps = participation.steps_per_epoch
        super().__init__(
            participation, participation.num_steps, steps, plan_id, x, y, sample_weight
        )
        self._num_examples = participation.num_examples
        # RandomState's stream is frozen by NumPy's compatibility policy.
        order = np.random.RandomState(participation.order_seed)
        self._order = order.permutation(participation.num_examples).astype(np.int64)

    def example_indices(self, step: int) -> np.ndarray:
        self._check_step(step)
        position = step % self.steps_per_epoch
        total, steps = self._num_examples, self.steps_per_epoch
        return self._order[position * total // steps : (position + 1) * total // steps]

    def _indices(self, step: tf.Tensor) -> tf.Tensor:
        total, steps = self._num_examples, self.steps_per_epoch
        order, position = tf.constant(self._order), step % steps
        return order[position * total // steps : (position + 1) * total // steps]
