"""The conditions of a step, and the records that decide whether a run may take it.

The batch must be the one that the accountant assumed for this step. The run must be at
the step of its key and of its weights, and have budget left. It must not be an
unannounced second run.

Every `PrivateOptimizer` has its own noise key. Two keys on the same data are two releases,
whose privacy losses add up even if their plans and code are equal: a model that is compiled
again, trials of a tuner, folds, seeds, comparisons. Runs are recognized by their weights
(the same variables) and their examples (`sampling.identity`). A run is
recorded from its first step on. The records last as long as the process: the caller must
know about runs in other processes. Runs of plans with a test seed, which have no guarantee,
are not recorded.

At its first step, a run reserves its budget in the ledger that its plan is bound to: after
all checks that the step may be taken, before noise is added to anything. So a model that is
only loaded or compiled again reserves nothing, and a run that has not reserved releases no
noisy gradient.
"""

from __future__ import annotations

import collections
import dataclasses
import warnings
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from tf_bandmf.ledger import hooks
from tf_bandmf.ledger.errors import LedgerError
from tf_bandmf.noise.keys import NoiseKey
from tf_bandmf.planning.composition import compose
from tf_bandmf.planning.plan import Plan
from tf_bandmf.planning.statement import PrivacyStatement
from tf_bandmf.sampling import batches as batches_lib
from tf_bandmf.sampling import identity
from tf_bandmf.sampling.identity import CONTENT, FINGERPRINT, content_digest

if TYPE_CHECKING:
    from tf_bandmf.keras.run.run import Run

NOT_ITS_BATCHES = (
    "The plan's accountant assumes the batches of its own sampler, found {kind}. Use "
    "model.fit(plan.batches(x, y)), where x and y are arrays of all training examples. "
    "plan.batches(data) also takes a tf.data.Dataset, a PyDataset or a function that makes "
    "a generator, and reads it in its own order, if that is the same in each pass and the "
    "plan has sampling='fixed-order'. Other samplings read by index: write the examples "
    "once to arrays of np.lib.format.open_memmap, or give "
    "tf_bandmf.sampling.TFRecordExamples(files, parse), or a source whose len(source) "
    "examples are source[0], source[1], ..., each (x, y). Random augmentation goes into "
    "plan.batches(..., map=function)."
)
NOT_OF_THIS_STEP = (
    "This batch is not the one that the plan has for this step: the accountant's "
    "assumption would be broken. Iterate over plan.batches(x, y) from the optimizer's step "
    "on, or use model.fit(plan.batches(x, y))."
)
NOT_THIS_PART = (
    "This is not the part of the batch that this replica has to take: examples would be "
    "used several times. Use model.fit."
)
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
# Schedule id of runs whose batches the caller makes, without a schedule.
NO_SCHEDULE = -1
SECOND_RUN = (
    "This is a second run: a run of this process trained on the same weights or examples "
    "with another noise key, and both together spend more than either. If it is intended, "
    "give additional_run=True to PrivateOptimizer or fit_privately, and publish the joint "
    "guarantee, model.privacy_statement(). To go on with the first run, compile with its "
    "optimizer, or resume it from its private state file."
)
SAME_SAMPLE = (
    "Another run was trained on these batches. Their sample is secret and drawn for one "
    "run: the joint guarantee of two runs assumes that each has its own sample. Draw "
    "one for this run: for batch in model.begin_run(plan.batches(x, y)): ..., or use "
    "model.fit(plan.batches(x, y)), which does it by itself."
)
ENDED = (
    "The run has ended (end_run), and its unused share was given back to the budget. "
    "Start a new run with a new PrivateOptimizer."
)

_RUNS: dict[str, Membership] = {}
# What each run has noted in its private file.
_NOTES: dict[str, dict[str, set[Any]]] = {}


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


def checked(run: Run, parts: Sequence[np.ndarray], step: int) -> None:
    """Checks all conditions of a step; at its first step, the run reserves its budget.

    From then on, the run is bound to the batch's schedule.

    Args:
      run: a run that has begun.
      parts: `facts` of the parts of its batch that this process has.
      step: the coming step.

    Raises:
      TypeError: if the plan has a schedule, but the batch does not come from one.
      InvalidArgumentError: if the budget is spent, or the batch is not that of the step.
      RuntimeError: if the run would be an unannounced second run.
      ValueError: if it would begin from weights that were trained without privacy.
      LedgerError: if the ledger that the plan is bound to has no budget for the run.
    """
    plan, replicas = run.plan, run.strategy.num_replicas_in_sync
    schedule_id = NO_SCHEDULE
    if len(parts[0]) > 1:
        resolver = run.strategy.cluster_resolver
        first_part = len(parts) * (getattr(resolver, "task_id", None) or 0)
        for number, row in enumerate(parts, first_part):
            digest, fingerprint, of_step, of_plan, schedule_id, *part = map(int, row)
            pinned = run.membership.schedule_id
            refuse(of_step != step, NOT_OF_THIS_STEP)
            refuse(part != [number, replicas], NOT_THIS_PART)
            refuse(of_plan != plan.plan_id, OTHER_PLAN)
            refuse(pinned not in (NO_SCHEDULE, schedule_id), OTHER_DATA)
            # Last: wrong ids also change the fingerprint, and have clearer messages.
            refuse(fingerprint != digest, batches_lib.EDITED)
    elif plan.participation.has_schedule:
        raise TypeError(NOT_ITS_BATCHES.format(kind="a batch without its step"))
    refuse(not run.secrets.is_whole, RESTORED)
    refuse(step >= plan.num_steps, run.generator.past_the_end)
    if not step:
        if run.plain_steps and run.initial_weights is None:
            raise ValueError(
                f"The model took {run.plain_steps} steps with a plain optimizer before it "
                f"was made private: if they used these records, its weights already reveal "
                f"them, and no noise covers that. Begin from a new model; or if the "
                f"weights come from other data, declare this before training, for the "
                f"statement to quote: "
                f'model.optimizer.vouch_for_weights("pretrained on public data: which").'
            )
        run.membership.refuse_second(run.weights, schedule_id)
        run.reservation.ensure()
    run.membership.note(schedule_id)


def refuse(is_wrong: bool, text: str) -> None:
    """Raises InvalidArgumentError with a text if a condition is broken."""
    if is_wrong:
        raise tf.errors.InvalidArgumentError(None, None, text)


def notes_of(key: NoiseKey) -> dict[str, set[Any]]:
    """The notes of a run, for all its models in this process; see `Run.note`."""
    return _NOTES.setdefault(hooks.name_of(key), collections.defaultdict(set))


def forget() -> None:
    """Forgets all runs, so that each test starts without any."""
    _RUNS.clear()
    _NOTES.clear()


class Membership:
    """A run's entry in the records of this process; refuses unannounced second runs.

    Args:
      plan: plan of the run.
      is_additional: True if the user announced that there may be another run.
      key: key of the run; None before the run has begun.
      trained: the run's trainable weights.

    Attributes:
      schedule_id: id of the run's schedule; `NO_SCHEDULE` before the run has one, or if
        the caller makes its batches.
    """

    def __init__(
        self,
        plan: Plan,
        is_additional: bool,
        key: NoiseKey | None = None,
        trained: Sequence[Any] = (),
    ) -> None:
        # A run with a test seed protects nobody: it is neither recorded nor refused.
        self._counts = plan.test_seed is None
        self._may_be_second = is_additional or not self._counts
        self._plan = plan
        self._name = None if key is None else hooks.name_of(key)
        self._trained = [weakref.ref(variable) for variable in trained]
        self.schedule_id = NO_SCHEDULE

    def note(self, schedule_id: int) -> None:
        """Records the run when it takes a step, or has taken one in another process."""
        self.schedule_id = schedule_id
        if self._counts and self._name is not None:
            _RUNS[self._name] = self

    def refuse_second(self, weights: Sequence[Any], schedule_id: int) -> None:
        """Raises RuntimeError if this is a second run that was not announced.

        It also raises if another run used the same secret sample, even if announced.

        Args:
          weights: all weights of the model.
          schedule_id: id of the data's schedule, or `NO_SCHEDULE`.
        """
        is_new = not self._may_be_second and self._name not in _RUNS
        related = self._related(weights, schedule_id) if is_new else []
        if related:
            common, plan = related[-1]
            raise RuntimeError(
                f"{SECOND_RUN} (In common: {common}. The other run: epsilon = "
                f"{plan.epsilon:g}, delta = {plan.delta:g}, plan "
                f"{plan.fingerprint[:12]}.)"
            )
        if self._counts and self._plan.participation.has_secret_sampler:
            if any(run.schedule_id == schedule_id for run in self._others()):
                raise RuntimeError(SAME_SAMPLE)

    def _variables(self) -> list[Any]:
        variables = [reference() for reference in self._trained]
        return [variable for variable in variables if variable is not None]

    def _others(self) -> list[Membership]:
        return [run for name, run in list(_RUNS.items()) if name != self._name]

    def _related(
        self, weights: Sequence[Any], schedule_id: int
    ) -> list[tuple[str, Plan]]:
        """Returns the common parts ("weights", "examples") and the plan of related runs."""
        related = []
        for run in self._others():
            trained = {id(variable) for variable in run._variables()}
            common = ["weights"] if any(id(w) in trained for w in weights) else []
            theirs, ours = map(identity.records_of, (run.schedule_id, schedule_id))
            if identity.share_examples(theirs, ours):
                common.append("examples")
            if common:
                related.append((" and ".join(common), run._plan))
        return related

    def statement(self, unit: str | None, weights: Sequence[Any]) -> PrivacyStatement:
        """The plan's statement; if there are other runs, the joint statement of all runs.

        Args:
          unit: see `Plan.statement`.
          weights: all weights of the model that the caller has at hand.

        Raises:
          ValueError: see `JointGuarantee.statement`.
        """
        plan = self._plan
        related = self._related([*self._variables(), *weights], self.schedule_id)
        if not related:
            return plan.statement(unit)
        plans = [other for _, other in related]
        names = ", ".join(other.fingerprint[:12] for other in plans)
        joint = compose([plan, *plans]).statement(unit=unit)
        remark = (
            f"{len(plans)} other run(s) of the same process trained on the same weights "
            f"or examples (plans {names}), including trials of which only the best was "
            f"kept: the numbers are for all of them together. This run alone has epsilon = "
            f"{plan.epsilon:.6g} at delta = {plan.delta:.3g}."
        )
        return dataclasses.replace(joint, remarks=(remark,))


class Reservation:
    """The reservation of one run; it does nothing if the plan is bound to no ledger.

    Args:
      plan: plan of the run.
      key: key of the run; None before the run has begun.
    """

    def __init__(self, plan: Plan, key: NoiseKey | None = None) -> None:
        self._plan = plan
        self._run = "" if key is None else hooks.name_of(key)
        self._entry: Any = None
        self._noted_steps = 0
        self._has_ended = False

    def ensure(self) -> None:
        """Reserves the run's budget, or finds the run's earlier reservation.

        Raises:
          LedgerError: if the ledger refuses, cannot be written, or is not open; or the run
            has ended.
        """
        if self._has_ended:
            raise LedgerError(ENDED)
        self._entry = hooks.begin(self._plan, self._run)

    def refuse_ended(self) -> None:
        """Raises LedgerError if the run has been ended in the ledger."""
        if self._has_ended or self._entry is not None:
            self.ensure()

    def note(self, steps: int) -> None:
        """Records in the ledger how many steps were taken, if this is not recorded yet."""
        if self._entry is None or steps <= self._noted_steps:
            return
        try:
            hooks.note_steps(self._plan, self._run, steps)
            self._noted_steps = steps
        except LedgerError as error:
            # Only a warning: the budget is reserved already, and the note spends nothing.
            warnings.warn(
                f"The ledger could not record that {steps} steps were taken: {error}",
                stacklevel=3,
            )

    def end(self, steps: int, reason: str) -> Any:
        """Ends the run after this many steps, and gives back the cost of all others.

        Raises:
          ValueError: if the plan is bound to no ledger, or the run has not begun.
        """
        if self._plan.account is None or not self._run:
            raise ValueError(
                "Only a run that has begun, and whose plan is bound to a ledger, can be "
                "ended: see ledger.bind(plan, dataset)."
            )
        self.ensure()
        # Set first: no further step is allowed, even if writing to the ledger fails.
        self._has_ended = True
        return hooks.end(self._plan, self._run, steps, reason)

    def remarks(self) -> list[str]:
        """Remarks of the statement on the reservation."""
        account = self._plan.account
        if account is None:
            return []
        if self._entry is None:
            return [f"Bound to the budget of {account}; nothing is reserved yet."]
        return [f"Reserved in the budget of {account}: entry {self._entry.name}."]
