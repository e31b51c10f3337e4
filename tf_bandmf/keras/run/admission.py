"""The conditions of a step: its batch is the one that the accountant analysed for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tf_bandmf.planning.plan import Plan
from tf_bandmf.sampling import batches as batches_lib
from tf_bandmf.sampling.identity import FINGERPRINT, content_digest

_IDS = (
    batches_lib.STEP,
    batches_lib.PLAN_ID,
    batches_lib.SCHEDULE_ID,
)


class Admitted(NamedTuple):
    """A step that a run admitted.

    Attributes:
      step: its number, int64 scalar.
      keys: of its noise. Secret.
      seed: from which the masks of its random layers follow, int32, shape [2]. Secret.
      digests: of the parts of its batch that this process has, int64.
    """

    step: tf.Tensor
    keys: tf.Tensor
    seed: tf.Tensor
    digests: list[tf.Tensor]


def facts(batch: Any) -> tf.Tensor:
    """What a batch says of itself, in a graph, int64.

    Its digest; of a batch of a schedule also its fingerprint, step, plan, schedule, part
    and number of parts.
    """
    with tf.device("/CPU:0"):
        if not batches_lib.is_scheduled_batch(batch):
            content = keras.utils.unpack_x_y_sample_weight(batch)
            given = zip(batches_lib.CONTENT, content)
            return content_digest({k: v for k, v in given if v is not None})[None]
        digest = content_digest(batch)
        said = [batch.get(FINGERPRINT, digest + 1), *(batch[name] for name in _IDS)]
        part = tf.cast(batch.get(batches_lib.PART, [0, 1]), tf.int64)
        words = [digest, *(tf.cast(number, tf.int64) for number in said)]
        return tf.concat([tf.stack(words), part], axis=0)


def check_batch(
    plan: Plan,
    found: Sequence[np.ndarray],
    step: int,
    pinned: int,
    first_part: int,
    num_parts: int,
) -> int | None:
    """Checks that a batch is the one of a step.

    Args:
      plan: plan of the run.
      found: `facts` of its parts that this process has.
      step: the coming step.
      pinned: the schedule that the run uses; -1 before its first step.
      first_part: of this process.
      num_parts: the number of replicas.

    Returns:
      The id of its schedule; None if the caller made the batch.

    Raises:
      TypeError: if the plan has a schedule, but the batch does not come from one.
      InvalidArgumentError: if it is another one.
    """
    if len(found[0]) == 1:
        if plan.participation.has_schedule:
            raise TypeError(
                "The plan's accountant assumes the batches of its own sampler: the "
                "training step takes only those of plan.batches(x, y)."
            )
        return None
    for number, row in enumerate(found, first_part):
        digest, fingerprint, of_step, of_plan, schedule_id, *part = map(int, row)
        conditions = (
            (
                of_step == step,
                "This batch is not the one that the plan has for this step: the "
                "accountant's assumption would be broken. Iterate over plan.batches(x, y) "
                "from the optimizer's step on, or use model.fit(plan.batches(x, y)).",
            ),
            (
                part == [number, num_parts],
                "This is not the part of the batch that this replica has to take: "
                "examples would be used several times. Use model.fit.",
            ),
            (
                of_plan == plan.plan_id,
                "The batch belongs to another plan than the optimizer.",
            ),
            (
                pinned in (-1, schedule_id),
                "The run began with other data, or the same data in other places, or "
                "another sample. Use the data that began it, with model.fit(batches), or "
                "in a custom loop the batches of model.begin_run(plan.batches(x, y)).",
            ),
            # Ids that are wrong have messages of their own.
            (fingerprint == digest, batches_lib.EDITED),
        )
        refuse(next((text for holds, text in conditions if not holds), None))
    return schedule_id


def refuse(text: str | None) -> None:
    """Raises InvalidArgumentError with a text, if there is one."""
    if text is not None:
        raise tf.errors.InvalidArgumentError(None, None, text)
