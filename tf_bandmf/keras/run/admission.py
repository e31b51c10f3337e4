"""Checks the conditions of a step, and raises errors that say what to do.

The batch must be the one that the accountant assumed for this step. The run must be at
the step of its key and of its weights, and have budget left. It must not be an
unannounced second run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from tf_bandmf.keras.run.known_runs import NO_SCHEDULE
from tf_bandmf.sampling import batches as batches_lib
from tf_bandmf.sampling.identity import CONTENT, FINGERPRINT, content_digest

if TYPE_CHECKING:
    from tf_bandmf.keras.run.run import Run

RESTORED = (
    "The optimizer and its noise are at different steps: the optimizer was restored from a "
    "file, which has no noise key, or a step was interrupted. Further training would add "
    "noise that the plan did not account for. Resume with the run's private state file, "
    "model.fit(batches, private_state=path), or start a new run with a new "
    "PrivateOptimizer and its own budget."
)
OTHER_PLAN = (
    "The batches belong to another plan than the optimizer. Use the same plan object for "
    "both: `reserve` and `bounded` return another plan."
)
OTHER_DATA = (
    "The run began with other data, or with the same data in another order, or in a custom "
    "loop with batches whose sample does not follow from the run's key: the accountant's "
    "assumption would be broken. Use the data, or the schedule object, that the run began "
    "with. Begin a custom loop with batches = "
    "model.begin_run(plan.batches(x, y), private_state)."
)
_IDS = batches_lib.STEP, batches_lib.PLAN_ID, batches_lib.SCHEDULE_ID


def facts(batch: Any) -> tf.Tensor:
    """Reads the facts about a batch that `checked` needs; in a graph, int64.

    The facts are the batch's digest; for a batch of a schedule, also its fingerprint,
    step, plan, schedule, part and number of parts.
    """
    with tf.device("/CPU:0"):
        if not batches_lib.is_scheduled_batch(batch):
            content = keras.utils.unpack_x_y_sample_weight(batch)
            given = zip(CONTENT, content)
            return content_digest({k: v for k, v in given if v is not None})[None]
        digest = content_digest(batch)
        said = [batch.get(FINGERPRINT, digest + 1), *(batch[name] for name in _IDS)]
        part = tf.cast(batch.get(batches_lib.PART, [0, 1]), tf.int64)
        words = [digest, *(tf.cast(number, tf.int64) for number in said)]
        return tf.concat([tf.stack(words), part], axis=0)


def checked(
    run: Run, parts: Sequence[np.ndarray], step: int, weights: Sequence[Any]
) -> None:
    """Checks all conditions of a step; at its first step, the run reserves its budget.

    From then on, the run is bound to the batch's schedule.

    Args:
      run: a run that has begun.
      parts: `facts` of the parts of its batch that this process has.
      step: the coming step.
      weights: all weights of the model.

    Raises:
      TypeError: if the plan has a schedule, but the batch does not come from one.
      InvalidArgumentError: if the budget is spent, or the batch is not that of the step.
      RuntimeError: if the run would be an unannounced second run.
      LedgerError: if the ledger that the plan is bound to has no budget for the run.
    """
    plan, replicas = run.plan, run.strategy.num_replicas_in_sync
    conditions: list[tuple[bool, str]] = []
    schedule_id = NO_SCHEDULE
    if len(parts[0]) > 1:
        resolver = run.strategy.cluster_resolver
        first_part = len(parts) * (getattr(resolver, "task_id", None) or 0)
        for number, row in enumerate(parts, first_part):
            digest, fingerprint, of_step, of_plan, schedule_id, *part = map(int, row)
            conditions += [
                (
                    of_step == step,
                    "This batch is not the one that the plan has for this step: the "
                    "accountant's assumption would be broken. Iterate over "
                    "plan.batches(x, y) from the optimizer's step on, or use "
                    "model.fit(plan.batches(x, y)).",
                ),
                (
                    part == [number, replicas],
                    "This is not the part of the batch that this replica has to take: "
                    "examples would be used several times. Use model.fit.",
                ),
                (of_plan == plan.plan_id, OTHER_PLAN),
                (run.membership.schedule_id in (NO_SCHEDULE, schedule_id), OTHER_DATA),
                # Checked last: wrong ids also change the fingerprint, but have clearer
                # messages.
                (fingerprint == digest, batches_lib.EDITED),
            ]
    elif plan.participation.has_schedule:
        raise TypeError(
            "The plan's accountant assumes the batches of its own sampler: the "
            "training step takes only those of plan.batches(x, y)."
        )
    conditions += [
        (run.secrets.is_whole, RESTORED),
        (step < plan.num_steps, run.generator.past_the_end),
    ]
    refuse(next((text for holds, text in conditions if not holds), None))
    if not step:
        run.membership.refuse_second(weights, schedule_id)
        run.reservation.ensure()
    run.membership.note(schedule_id)


def refuse(text: str | None) -> None:
    """Raises InvalidArgumentError with this text; does nothing if it is None."""
    if text is not None:
        raise tf.errors.InvalidArgumentError(None, None, text)
