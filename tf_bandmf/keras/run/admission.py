"""Checks whether a step may be taken, and remembers the runs of the process.

The function `checked` tests a batch and its step, in this order: the batch must be the
one that the accountant assumed for this step, no earlier step may have been
interrupted, and steps of the plan must be left. The first step has further conditions:
the weights must not come from undeclared plain training, a second run must have been
announced with `additional_run=True`, and the ledger must have a budget for the run. The
messages are defined above the function, in the same order; the message after the plan's
last step is in `tf_bandmf.noise.generator`, and those of the ledger are in
`tf_bandmf.ledger`. When `fit` or `train_on_batch` begins, `Run.check` in `run.py` tests
the optimizer's step, the ledger and the weights.

Every `PrivateOptimizer` has its own noise key. Two runs with different keys on the same
data are two releases, whose privacy losses add up even if their plans and code are
equal. Such runs arise when a model is compiled again, and in trials of a tuner,
cross-validation and comparisons of seeds. Two runs are related if they train the same
variables, or use the same examples (`sampling.identity`). A run is recorded from its
first step on. The records last as long as the process, so runs in other processes are
not detected. Plans with a test seed have no guarantee, so their runs are not recorded.

At its first step, a run reserves its budget in the ledger that its plan is bound to. It
does so after all other checks of the step, and before it adds noise. A model that is
only loaded or compiled again therefore reserves nothing, and a run that has reserved
nothing releases no noisy gradient.
"""

from __future__ import annotations

import collections
import functools
import math
import warnings
import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tf_bandmf.keras.run.noising import SHARED
from tf_bandmf.keras.run.programs import Program
from tf_bandmf.planning.plan import Plan
from tf_bandmf.sampling import batches as batches_lib
from tf_bandmf.sampling import identity
from tf_bandmf.sampling.identity import CONTENT, FINGERPRINT, content_digest

if TYPE_CHECKING:
    from tf_bandmf.keras.run.run import Run

# The messages are in the order of the conditions in `checked`.
OTHER_PLAN = (
    "The batches belong to another plan than the optimizer. Use the same plan object for "
    "both: `reserve` and `bounded` return another plan."
)
NOT_OF_THIS_STEP = (
    "This batch is not the one that the plan has for this step (and replica), so the "
    "guarantee would not hold. Step, part and number of parts must be {expected}, found "
    "{place}. Call model.fit(plan.batches(x, y)), or iterate over "
    "model.begin_run(plan.batches(x, y)).dataset(model.optimizer.steps_taken)."
)
OTHER_DATA = (
    "The run began with other data, with another order of these data, or with a sample "
    "that was not drawn from its key, so the guarantee would not hold. Use the data that "
    "the run began with. Begin a custom loop with "
    "batches = model.begin_run(plan.batches(x, y), private_state)."
)
EDITED = (
    "The contents of this batch are not those that plan.batches drew for this step: they "
    "were changed afterwards (augmented, mixed, repeated, permuted, cut or weighted), so "
    "the guarantee would not hold. Train on unchanged batches. To change single examples, "
    "use plan.batches(..., map=function) or layers of the model."
)
NOT_ITS_BATCHES = (
    "The privacy guarantee holds only for batches of plan.batches, not for {kind}. "
    "Call model.fit(plan.batches(x, y)) with arrays x and y of all training examples. "
    "plan.batches(data) also takes a tf.data.Dataset, a PyDataset, a function that makes a "
    "generator, or tf_bandmf.sampling.TFRecordExamples. To augment, pass it map=function."
)
RESTORED = (
    "The optimizer and its noise are at different steps: the optimizer was restored from a "
    "file, which has no noise key, or a step was interrupted. Resume from the newest "
    "checkpoint with the run's private state file, which must exist: model.fit(batches, "
    "private_state=path). Or make a new PrivateOptimizer, which needs its own budget."
)
SECOND_RUN = (
    "This is a second run: another run of this process trained the same weights or "
    "used the same examples, and two runs spend more than one. To go on with the first "
    "run, compile with its optimizer, or resume it from its private state file. For a "
    "second run, give additional_run=True to PrivateOptimizer or fit_privately, and "
    "publish the joint guarantee, model.privacy_statement()."
)
SAME_SAMPLE = (
    "Another run was trained on these batches, but the joint guarantee of two runs assumes "
    "that each has its own secret sample. Call model.fit(plan.batches(x, y)), or iterate "
    "over model.begin_run(plan.batches(x, y)), which draws a sample for this run."
)
RETURNED = (
    "A batch returned sooner, or more often, than {use} permits: the numbers of the plan "
    "do not hold for its examples. Give fit data in which no example returns so soon, or "
    "make a plan with the min_separation and max_participations of these data."
)
# The schedule id of a run whose batches the caller makes, without a schedule.
NO_SCHEDULE = -1


def facts(batch: Any) -> tf.Tensor:
    """Returns the numbers by which `checked` recognizes a batch, as one int64 tensor.

    The first number is a digest of the batch's contents. A batch of a schedule has six
    more numbers: the digest of its contents when it was made (the fingerprint), its
    step, the id of the plan, the id of the schedule, its part, and the number of parts.
    """
    with tf.device("/CPU:0"):
        if not batches_lib.is_scheduled_batch(batch):
            given = zip(CONTENT, keras.utils.unpack_x_y_sample_weight(batch))
            return content_digest({k: v for k, v in given if v is not None})[None]
        digest = content_digest(batch)
        ids = batches_lib.STEP, batches_lib.PLAN_ID, batches_lib.SCHEDULE_ID
        said = [batch.get(FINGERPRINT, digest + 1), *(batch[name] for name in ids)]
        part = tf.cast(batch.get(batches_lib.PART, [0, 1]), tf.int64)
        words = [digest, *(tf.cast(number, tf.int64) for number in said)]
        return tf.concat([tf.stack(words), part], axis=0)


@functools.cache
def program_of_facts(_device: str) -> Program:
    """Returns a compiled `facts`, which all models that train on this device share."""
    # TensorFlow compiles a program for the device on which it is traced, so the device is
    # part of the cache's key.
    return Program(facts)


def checked(run: Run, parts: Sequence[np.ndarray], step: int) -> None:
    """Checks all conditions of a step; at its first step, the run reserves its budget.

    From its first step on, the run is bound to the batch's schedule.

    Args:
      run: a run that has begun.
      parts: for each replica of this process, the result of `facts` for the replica's
        part of the batch.
      step: the coming step.

    Raises:
      TypeError: if the plan has a schedule, but the batch does not come from one.
      InvalidArgumentError: if the budget is spent, or the batch belongs to another
        step.
      RuntimeError: if this is a second run, without `additional_run=True`.
      ValueError: if the run would begin from weights that were trained without privacy.
      LedgerError: if the ledger that the plan is bound to has no budget for the run.
    """
    plan, replicas = run.plan, run.strategy.num_replicas_in_sync
    schedule_id = NO_SCHEDULE
    if len(parts[0]) > 1:
        resolver = run.strategy.cluster_resolver
        first_part = len(parts) * (getattr(resolver, "task_id", None) or 0)
        for number, row in enumerate(parts, first_part):
            digest, fingerprint, of_step, of_plan, schedule_id, *part = map(int, row)
            expected, place = [step, number, replicas], [of_step, *part]
            refuse(of_plan != plan.plan_id, OTHER_PLAN)
            said = NOT_OF_THIS_STEP.format(expected=expected, place=place)
            refuse(place != expected, said)
            refuse(run.schedule_id not in (NO_SCHEDULE, schedule_id), OTHER_DATA)
            # The fingerprint is checked last: wrong ids change it, too, and their own
            # messages are clearer.
            refuse(fingerprint != digest, EDITED)
    elif plan.participation.has_schedule:
        raise TypeError(NOT_ITS_BATCHES.format(kind="a batch from elsewhere"))
    refuse(not run.secrets.is_whole, RESTORED)
    refuse(step >= plan.num_steps, run.noising.generator.past_the_end)
    if not step:
        if run.plain_steps and run.initial_weights is None:
            raise ValueError(
                f"The model took {run.plain_steps} steps with a plain optimizer before it "
                f"was made private. If these steps used the private data, the weights "
                f"already reveal these data, and no noise hides them: begin with a new "
                f"model. If the steps used other data, say so before training: "
                f'model.optimizer.vouch_for_weights("pretrained on public data NAME").'
            )
        refuse_second(run, schedule_id)
        run.reserve()
        record(run, schedule_id)
    # The batch counts as used only if no check has refused the step.
    if not plan.participation.has_schedule:
        _watch(run, {int(row[0]) for row in parts}, step)


def _watch(run: Run, digests: Iterable[int], step: int) -> None:
    """Warns if a batch that the caller made returns too soon or too often.

    This finds data that are repeated in the same order. In another order, examples may
    return unnoticed: the caller is responsible for their separation.
    """
    use: Any = run.plan.participation
    most = use.participations(run.plan.num_steps)
    for digest in digests:
        last, count = run.returned.get(digest, (-math.inf, 0))
        if step == last:
            # The batch has not returned: it belongs to an interrupted step, which is
            # repeated.
            continue
        run.returned[digest] = step, count + 1
        if step - last < use.min_separation or count >= most:
            text = RETURNED.format(use=use)
            if text not in run.cautions:
                run.cautions[text] = None
                warnings.warn(text, stacklevel=2)


def refuse(is_wrong: bool, text: str) -> None:
    """Raises InvalidArgumentError with this text if `is_wrong` is true."""
    if is_wrong:
        raise tf.errors.InvalidArgumentError(None, None, text)


# The classes and functions below keep the runs that the process remembers.


class Record(NamedTuple):
    """What the process remembers of a run that has taken a step.

    Attributes:
      plan: plan of the run.
      schedule_id: id of its schedule; `NO_SCHEDULE` if the caller makes its batches.
      trained: references to its trainable weights.
    """

    plan: Plan
    schedule_id: int
    trained: list[weakref.ref[Any]]


_RECORDS: dict[str, Record] = {}
# For each run, what `Run.note` recorded: private evaluations and releases of tables.
_NOTES: Any = collections.defaultdict(lambda: collections.defaultdict(set))


def notes_of(run: Run) -> dict[str, set[Any]]:
    """Returns the records of a run's private evaluations and releases of tables.

    All models of the run in this process share them (see `Run.note`).
    """
    # Runs with the same test seed have the same key, but do not share notes.
    is_test = run.plan.test_seed is not None
    return collections.defaultdict(set) if is_test else _NOTES[run.name]


def forget() -> None:
    """Forgets all runs and their shared programs, so that each test starts without any."""
    SHARED.clear()
    program_of_facts.cache_clear()
    _RECORDS.clear()
    _NOTES.clear()


def record(run: Run, schedule_id: int) -> None:
    """Records a run at its first step, and when it is continued or resumed.

    Runs with a test seed have no guarantee, so they are not recorded.
    """
    run.schedule_id = schedule_id
    if run.plan.test_seed is None:
        trained = [weakref.ref(variable) for variable in run.variables]
        _RECORDS[run.name] = Record(run.plan, schedule_id, trained)


def refuse_second(run: Run, schedule_id: int) -> None:
    """Raises RuntimeError if a second run is not announced by `additional_run=True`.

    A run is a second one if another run used the same weights or examples. The error is
    also raised if another run used the same secret sample, even with
    `additional_run=True`.

    Args:
      run: the run.
      schedule_id: id of the schedule of its batches, or `NO_SCHEDULE`.
    """
    if run.plan.test_seed is not None:
        return
    is_new = not run.is_additional and run.name not in _RECORDS
    if is_new and related(run, schedule_id):
        raise RuntimeError(SECOND_RUN)
    if run.plan.participation.has_secret_sampler:
        if any(other.schedule_id == schedule_id for other in _others(run)):
            raise RuntimeError(SAME_SAMPLE)


def _others(run: Run) -> list[Record]:
    return [other for name, other in list(_RECORDS.items()) if name != run.name]


def related(run: Run, schedule_id: int) -> list[Plan]:
    """Returns the plans of other runs on the same weights or examples."""
    weights = {id(variable) for variable in (*run.variables, *run.weights)}
    examples = identity.records_of(schedule_id)
    return [
        other.plan
        for other in _others(run)
        if any(id(reference()) in weights for reference in other.trained)
        or identity.share_examples(identity.records_of(other.schedule_id), examples)
    ]
