"""Checks that a batch is the one that the accountant analysed for its step."""

from __future__ import annotations

from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tf_bandmf.keras.run.known_runs import NO_SCHEDULE
from tf_bandmf.keras.run.secrets import replica_id
from tf_bandmf.planning.plan import Plan
from tf_bandmf.sampling import batches as batches_lib
from tf_bandmf.sampling.fingerprints import content_digest, is_as_drawn

is_scheduled = batches_lib.is_scheduled_batch


class Admitted(NamedTuple):
    """A step that a run admitted.

    Attributes:
      step: its number, int64 scalar; past the horizon if it is not allowed.
      inputs: what its point depends on besides the sum and the point before: the digest
        of the batch; int32, of a static shape [words].
    """

    step: tf.Tensor
    inputs: tf.Tensor


def schedule_id_of(batch: Any) -> tf.Tensor:
    """The id of a batch's schedule, int64; `NO_SCHEDULE` if the caller made the batch."""
    if not is_scheduled(batch):
        return tf.constant(NO_SCHEDULE, tf.int64)
    return tf.cast(batch[batches_lib.SCHEDULE_ID], tf.int64)


def conditions(
    plan: Plan,
    batch: Any,
    step: tf.Tensor,
    pinned: tf.Tensor,
    strategy: tf.distribute.Strategy,
) -> tuple[list[tuple[tf.Tensor, str]], tf.Tensor]:
    """Conditions for a batch to be that of a step, each with its message; and a digest.

    The digest is of its contents and of its place in a schedule; int64 scalar.

    Args:
      plan: plan of the run.
      batch: a batch of a schedule; or one that the caller made, if the plan permits it.
      step: the coming step, int64.
      pinned: the schedule that the run uses, int64; -1 before its first step.
      strategy: strategy of the run.

    Raises:
      TypeError: if the plan has a schedule, but the batch does not come from one.
    """
    if not is_scheduled(batch):
        if plan.participation.has_schedule:
            raise TypeError(
                "The plan's accountant assumes the batches of its own sampler: the "
                "training step takes only those of plan.batches(x, y)."
            )
        content = keras.utils.unpack_x_y_sample_weight(batch)
        given = zip(batches_lib.CONTENT, content)
        return [], content_digest({k: v for k, v in given if v is not None})
    part = batch.get(batches_lib.PART, tf.constant([0, 1]))
    expected = [
        (
            tf.equal(batch[batches_lib.STEP], step),
            "This batch is not the one that the plan has for this step: the "
            "accountant's assumption would be broken. Iterate over plan.batches(x, y) "
            "from the optimizer's step on, or use model.fit(plan.batches(x, y)).",
        ),
        (
            tf.reduce_all(
                tf.equal(part, [replica_id(), strategy.num_replicas_in_sync])
            ),
            "This is not the part of the batch that this replica has to take: "
            "examples would be used several times. Use model.fit.",
        ),
        (
            tf.equal(batch[batches_lib.PLAN_ID], tf.constant(plan.plan_id, tf.int64)),
            "The batch belongs to another plan than the optimizer.",
        ),
        (
            tf.equal(pinned, -1) | tf.equal(pinned, batch[batches_lib.SCHEDULE_ID]),
            "The run began with other data, or the same data in other places, or another "
            "sample. Use the data that began it, with model.fit(batches), or in a custom "
            "loop the batches of model.begin_run(plan.batches(x, y)).",
        ),
    ]
    # Ids that are wrong have messages of their own.
    is_meant = tf.reduce_all(tf.stack([holds for holds, _ in expected]))
    digest = content_digest(batch)
    unedited = is_as_drawn(batch, digest) | ~is_meant
    return [*expected, (unedited, batches_lib.EDITED)], digest
