"""One private run: all state of a `PrivateOptimizer` that Keras must not track.

A step of a run consists of these calls:

    run.start()                               # when fit or train_on_batch begins
    admitted = run.admit(facts)               # in Python: checks the step
    ...                                       # computes and clips gradients
    noisy = run.privatize(sums, ...)          # in a tf.function: adds noise
    run.secrets.confirm(noisy.drawn)          # in Python: records the step
    run.secrets.take(noisy.drawn)             # in a tf.function: updates the buffer
    run.apply(noisy.gradients, ...)           #   and the model's weights

The last two calls run in `run.secrets.changing(steps=1)`, which counts the step.

A run begins when the optimizer is built. From then on, it has a noise key, a step
counter, and digests of the weights (its seal). No file that Keras writes contains any
of these.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_bandmf.accounting.checks import whole_number
from tf_bandmf.files import machine
from tf_bandmf.keras.compat.keras_objects import given_learning_rate
from tf_bandmf.keras.metrics.counts import Counts
from tf_bandmf.keras.run import admission
from tf_bandmf.keras.run.noising import Noising, Noisy, Stored
from tf_bandmf.keras.run.secrets import SecretState
from tf_bandmf.keras.run.weights_seal import CHANGED, digest_of
from tf_bandmf.ledger import hooks
from tf_bandmf.ledger.errors import LedgerError
from tf_bandmf.noise.keys import NoiseKey
from tf_bandmf.planning.composition import compose
from tf_bandmf.planning.memory import refuse_too_large
from tf_bandmf.planning.plan import Plan
from tf_bandmf.planning.statement import PrivacyStatement, check_line, sentence
from tf_bandmf.planning.texts import phrase
from tf_bandmf.sampling.batches import BatchSchedule
from tf_bandmf.sampling.identity import remarks_of
from tf_bandmf.sampling.sources import OF_WEIGHTS

LATE = (
    "These gradients and the optimizer are at different steps: the gradients were applied "
    "before, or are not those of the last step. Apply the result of "
    "model.private_gradients(batch) once, before the next step."
)


class Run:
    """One run of a plan, with one noise key, on one model and one data set.

    Keras does not track this object, so no file that Keras writes contains any of its
    state.

    Args:
      plan: plan of the run.
      inner_optimizer: the Keras optimizer that applies the noisy gradients.
      keep_normals: True to keep the last normals in memory instead of redrawing them.
      is_additional: True if another run of the process may have trained the same model
        or used the same examples.

    Attributes:
      plan, inner_optimizer, keep_normals, is_additional: see above.
      schedule_id: id of the run's schedule; `NO_SCHEDULE` before the run has one, or if
        the caller makes the batches.
      entry: the run's reservation in the ledger that the plan is bound to; None if the
        plan is not bound to a ledger, or nothing is reserved yet.
      strategy: the distribution strategy in whose scope the run was created.
      notes: the names of the private evaluations whose budget is spent, and the steps
        at which tables were released; the private state file has a copy.
      num_evaluations: dictionary from a step to the number of private evaluations at
        this step, since the run began or was resumed.
      counts: the private counts of examples, if the plan reserves budget for them.
      tables: a `LazyTables`, the tables whose noise is drawn when their rows are read;
        None if there are none. Set it before `begin` is called.
      seal: digests of the weights and of the inner optimizer's state after steps. The
        digests after earlier steps are kept, because an earlier checkpoint may be
        restored.
      takes_steps: True while steps may change the weights, so that the weights are not
        compared with the seal.
      variables: the model's trainable variables; empty before the run begins.
      has_begun: True if the run has a key.
      name: a name that is derived from the key, but does not reveal it.
      noising: the function that adds noise to the sums of a step.
      secrets: a `SecretState` with the key, the digests of the steps (points), the
        noise buffer and the step.
      turn: a lock that a thread holds during a step, so that threads take turns.
      vouched: the reasons for changes of the weights that `vouch` was called with.
      cautions: remarks on callbacks that act on exact (not noisy) metrics, from `fit`.
      weights: all weights of the model, in a fixed order; set by the model.
      weighs_classes: True if `class_weight` was given to `train_on_batch`, or to `fit`
        under `MinSep`.
      returned: dictionary from the digest of a batch that the caller made to the last
        step that used the batch and the number of steps that used it.
      were_loaded: True if the initial weights were loaded or set.
      plain_steps: number of steps with a plain optimizer, before the model was made
        private.
      initial_weights: the caller's statement about where the initial weights come from,
        or None.
      resumed: steps at which the run was resumed after an interruption.
      file: the run's private state file, a `PrivateFile`; None if it has none.
    """

    # The methods `begin` and `adopt` set these attributes.
    has_begun = False
    name = ""
    schedule_id = admission.NO_SCHEDULE
    entry: Any = None
    noising: Noising
    secrets: SecretState
    seal: set[int]
    notes: dict[str, set[Any]]
    num_evaluations: dict[int, int]

    def __init__(
        self, plan: Plan, inner_optimizer: Any, keep_normals: bool, is_additional: bool
    ) -> None:
        self.plan = plan
        self.inner_optimizer = inner_optimizer
        self.turn = threading.RLock()
        self.strategy = tf.distribute.get_strategy()
        self.vouched: tuple[str, ...] = ()
        self.weights: Sequence[Any] = ()
        self.weighs_classes = False
        self.returned: dict[int, tuple[float, int]] = {}
        self.cautions: dict[str, None] = {}
        self.were_loaded = False
        self.plain_steps = 0
        self.initial_weights: str | None = None
        self.resumed: tuple[int, ...] = ()
        self.file: Any = None
        self.keep_normals, self.is_additional = keep_normals, is_additional
        self.variables: list[Any] = []
        self.counts = Counts(plan)
        self.tables: Any = None
        self.takes_steps = False

    # The methods below begin a run.

    def eager(self, variables: Sequence[Any]) -> list[Any]:
        """Returns the variables that get noise in each step: all but lazy tables."""
        return [variable for variable in variables if not self._is_lazy(variable)]

    def _is_lazy(self, variable: Any) -> bool:
        tables = () if self.tables is None else self.tables.variables
        return any(variable is table for table in tables)

    def begin(self, variables: Sequence[Any]) -> None:
        """Creates the noise generator and a fresh key.

        Call it in the scope of the distribution strategy.

        Args:
          variables: the model's trainable variables, for which the inner optimizer has
            slots.

        Raises:
          MemoryError: if the noise needs more memory than the machine has.
        """
        self.variables = list(variables)
        weights = [tf.TensorSpec(v.shape, v.dtype) for v in self.eager(variables)]
        settings = weights, self.counts.size, self.keep_normals
        self.noising = Noising.of(self.plan, *settings)
        # In each process, one device draws the noise for all replicas.
        num_parameters = self.noising.generator.num_parameters
        needed = self.plan.memory(num_parameters, keep_normals=self.keep_normals)
        if not tf.config.get_visible_devices("GPU"):
            refuse_too_large(needed, machine.memory_bytes())
        self.adopt(SecretState(self.noising, self.key, self.plan))

    @functools.cached_property
    def key(self) -> NoiseKey:
        """The run's secret key, from which noise and sample follow."""
        if self.plan.test_seed is not None:
            return NoiseKey.for_testing(self.plan.test_seed)
        with self.strategy.scope():
            return shared_key(self.strategy, NoiseKey.from_operating_system())

    def batches(self, schedule: BatchSchedule) -> BatchSchedule:
        """Returns the schedule with this run's sample, drawn from the run's key.

        If the run has already begun with this schedule, the schedule is returned
        unchanged. In a custom loop, it may have its own sample.

        Raises:
          ValueError: if the run began with other data.
        """
        if self.schedule_id == schedule.schedule_id:
            return schedule
        schedule = schedule.join(self.key.sampler_seed())
        if self.schedule_id not in (admission.NO_SCHEDULE, schedule.schedule_id):
            raise ValueError(admission.OTHER_DATA)
        return schedule

    def adopt(self, secrets: SecretState, memory: Sequence[np.ndarray] = ()) -> None:
        """Continues with the secrets of a new or a resumed run.

        Args:
          secrets: state of the run.
          memory: the states of the lazy tables' rows at the step of `secrets`, from
            `LazyTables.memory`; the tables' variables must hold the last release.
        """
        self.secrets, self.key, self.has_begun = secrets, secrets.key, True
        self.name = hooks.name_of(secrets.key)
        self.schedule_id, self.entry = admission.NO_SCHEDULE, None
        self.notes = admission.notes_of(self)
        self.seal, self.num_evaluations = set(), {}
        if self.tables is not None:
            self.tables.begin(memory)

    def _sealed(self) -> tuple[list[Any], list[Any]]:
        """Returns the weights and optimizer state that only steps may change."""
        inner = self.inner_optimizer
        others = (inner.iterations, given_learning_rate(inner))
        state = [v for v in inner.variables if not any(v is other for other in others)]
        return self.eager(self.weights), state

    # The methods below report the state of the run.

    @property
    def step(self) -> int:
        """The number of noisy steps that the run has taken."""
        return self.secrets.step if self.has_begun else 0

    @property
    def iterations(self) -> int:
        """The number of steps that the inner optimizer has taken."""
        return int(tf.convert_to_tensor(self.inner_optimizer.iterations.value))

    def is_restored(self) -> bool:
        """Returns True if the optimizer and the noise may be at different steps.

        This happens if the optimizer was restored from a file, or a step was
        interrupted. No further step is allowed then.
        """
        if not self.has_begun:
            return False
        return not self.secrets.is_whole or self.iterations != self.step

    def refuse_restored(self) -> None:
        """Raises InvalidArgumentError if `is_restored` is true."""
        admission.refuse(self.is_restored(), admission.RESTORED)

    # The methods below guard the weights between steps.

    def close_seal(self) -> None:
        """Adds the digests of the weights and optimizer state to the seal after a step.

        Until another step starts, the weights must not change.
        """
        self.note_weights()
        self.takes_steps = False

    def note_weights(self) -> None:
        """Adds the current weights to the seal, if the run is taking steps."""
        if self.takes_steps and self.step and not self.is_restored():
            self.seal.update(map(digest_of, self._sealed()))

    def _refuse_changed(self) -> None:
        if self.seal and not self.takes_steps:
            digests = map(digest_of, self._sealed())
            admission.refuse(not self.seal.issuperset(digests), CHANGED)
        if self.tables is not None:
            admission.refuse(self.tables.is_changed, CHANGED)

    # The methods below take the steps of the run.

    def start(self) -> None:
        """Calls `check`, and lets steps change the weights until `close_seal`."""
        self.check()
        self.takes_steps = True

    def check(self) -> None:
        """Checks that the run can go on from the current weights.

        Raises:
          InvalidArgumentError: if the optimizer was restored without its private state,
            a step was interrupted, or something else changed the weights.
          LedgerError: if the run has ended.
        """
        self.refuse_restored()
        if self.step:
            self.reserve()
            self._refuse_changed()

    def admit(
        self, facts: Sequence[np.ndarray]
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Checks all conditions of the next step; call `start` first.

        Args:
          facts: the numbers from `admission.facts` that identify the batch: one array
            for each replica of this process, which takes a part of the batch.

        Returns:
          The step's number, int64 scalar; the keys of its noise; and the seed of the masks
          of its random layers, int32 of shape [2]. Keys and seed are secret.

        Raises:
          TypeError, InvalidArgumentError, RuntimeError, ValueError, LedgerError: if
            `admission.checked` refuses the step; its docstring lists the conditions.
        """
        step, secrets = self.step, self.secrets
        admission.checked(self, facts, step)
        keys = tf.constant(secrets.step_keys(step))
        return tf.constant(step, tf.int64), keys, secrets.seed(step)

    def privatize(
        self,
        sums: Sequence[Any],
        scales: Sequence[tf.Tensor] | None,
        step: tf.Tensor,
        keys: tf.Tensor,
        facts: tf.Tensor,
        stored: Stored,
    ) -> Noisy:
        """Adds up the sums of all replicas, and adds noise to them.

        The arguments are those of `Noising.noisy`, except that `sums` and `facts` have
        one value per replica. The sums of lazy tables are returned without noise, as
        `rows`: a row gets its noise when it is read next, or when the tables are
        released. The values of these sums are needed here all the same, because the
        noise of all other sums is drawn with keys that depend on them.
        """
        add = functools.partial(self.strategy.reduce, "SUM", axis=None)
        sums, facts = tf.nest.map_structure(add, (sums, facts))
        arguments = scales, step, keys, facts, stored
        if self.tables is None:
            return self.noising.noisy(sums, *arguments)
        eager, of_tables = self.apart(sums)
        rows = self.tables.row_sums(of_tables)
        sums = [*eager, *sums[len(self.variables) :]]
        noisy = self.noising.noisy(sums, *arguments, self.tables.digest(rows, step))
        return noisy._replace(rows=rows)

    def apart(self, values: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Returns the values of the `eager` variables, and those of the lazy tables.

        Args:
          values: one for each trainable variable of the model, in order. Further values
            are ignored.
        """
        parts: tuple[list[Any], list[Any]] = [], []
        for variable, value in zip(self.variables, values):
            parts[self._is_lazy(variable)].append(value)
        return parts

    def check_variables(self, variables: Sequence[Any]) -> None:
        """Raises ValueError if the run did not begin with these trainable variables."""
        # Their order must not change, either: the noise of a step partly cancels
        # earlier noise of the same variable.
        if [id(v) for v in variables] != [id(v) for v in self.variables]:
            raise ValueError(
                "The model's trainable weights are not those that the run began with "
                "(layer.trainable was changed, or layers were added or removed). Noise is "
                "correlated over the steps of each weight, so each step must train the "
                "same weights. Undo the change, or start a new run with a new "
                "PrivateOptimizer and its own budget."
            )

    def apply(
        self, gradients: Sequence[Any], rows: Sequence[tf.IndexedSlices] = ()
    ) -> None:
        """In each replica, lets the inner optimizer apply the result of `privatize`.

        Args:
          gradients: the noisy gradients.
          rows: for each lazy table, the sums of its rows, without noise.
        """
        with tf.control_dependencies(tf.nest.flatten([gradients, rows], True)):
            if self.tables is not None:
                self.tables.apply(rows)
            if gradients:
                self.inner_optimizer.apply(gradients, self.eager(self.variables))
            else:
                self.inner_optimizer.iterations.assign_add(1)

    def refuse_late(self, step: int) -> None:
        """Raises InvalidArgumentError if a step's gradients can no longer be applied.

        Args:
          step: the step to which the gradients belong.
        """
        is_late = self.iterations != step or self.step != step + 1
        admission.refuse(is_late, LATE)
        self._refuse_changed()
        self.takes_steps = True

    def release(self) -> None:
        """Writes the current rows of all lazy tables into the layers' variables.

        Raises:
          InvalidArgumentError: if something else changed the variables, or a step was
            interrupted.
        """
        if self.tables is None:
            return
        with self.turn:
            self.refuse_restored()
            self.tables.release()

    # The methods below record and report what the run has done.

    def reserve(self) -> None:
        """Reserves the run's budget in the ledger, or finds its earlier reservation.

        Raises:
          LedgerError: if the ledger refuses the run, cannot be written, or is not open,
            or if the run has ended.
        """
        self.entry = hooks.begin(self.plan, self.name)

    def note_steps(self) -> None:
        """Records in the ledger how many steps were taken."""
        if self.entry is None:
            return
        try:
            hooks.note_steps(self.plan, self.name, self.step)
        except LedgerError as error:
            # A warning suffices: the budget is already reserved, and recording steps
            # spends nothing.
            warnings.warn(
                f"The ledger could not record that {self.step} steps were taken: {error}",
                stacklevel=3,
            )

    def end(self, reason: str, steps: int | None) -> None:
        """Ends the run in the plan's ledger, as `PrivateOptimizer.end_run` says."""
        if self.plan.account is None or not self.has_begun:
            raise ValueError(
                "end_run failed: the run has not begun, or is not in a ledger. Use the "
                "plan that ledger.bind(plan, dataset) returns, and train first."
            )
        with self.turn:
            self.reserve()
            taken, most = len(self.secrets.points()), self.plan.num_steps
            if steps is not None:
                taken = whole_number("steps", steps, taken, most, "num_steps")
            hooks.end(self.plan, self.name, taken, reason)

    def note(self, name: str, value: Any) -> None:
        """Records that a private evaluation or a release of tables is about to be made.

        A run that is resumed from an earlier step must repeat the recorded evaluations
        and releases at their steps. Otherwise, it would become a second run, with
        independent noise.

        Args:
          name: the key in `notes` under which the record is stored.
          value: the name of the evaluation, or the step of the release.
        """
        self.notes[name].add(value)
        if self.file is not None:
            self.file.write()

    def weights_digest(self) -> int:
        """Returns a digest of all weights of the model."""
        return digest_of(self.weights)

    def vouch(self, reason: str) -> None:
        """Accepts the current weights, as `PrivateOptimizer.vouch_for_weights` says."""
        check_line("reason", reason)
        if not self.step:
            self.initial_weights = reason.strip()
        if not self.has_begun:
            return
        with self.turn:
            self.seal.clear()
            if self.tables is not None:
                self.tables.accept()
            if self.step:
                self.vouched = tuple(dict.fromkeys((*self.vouched, reason.strip())))

    def statement(self, unit: str | None, remarks: Sequence[str]) -> PrivacyStatement:
        """Returns the run's privacy statement.

        If other runs of the process trained on the same weights or examples, this is the
        joint statement of all these runs.

        Args:
          unit: the privacy unit that the statement names, as in `Plan.statement`.
          remarks: remarks on the optimizer and the model, to be added to the statement.

        Raises:
          ValueError: if the runs protect different privacy units and `unit` is None, or
            no meaningful joint epsilon is known.
        """
        plan, others = self.plan, admission.related(self, self.schedule_id)
        if others:
            names = ", ".join(other.fingerprint[:12] for other in others)
            said = phrase("parts", "others", count=len(others), names=names, plan=plan)
            joint = compose([plan, *others]).statement(unit=unit)
            statement = dataclasses.replace(joint, remarks=(said,))
        else:
            statement = plan.statement(unit)
        remarks = [*statement.remarks, *remarks, *self._remarks()]
        return dataclasses.replace(
            statement, remarks=tuple(dict.fromkeys(remarks)), proviso=self._proviso()
        )

    def _proviso(self) -> str:
        """Returns the text that the statement puts before its guarantee, if any."""
        facts = []
        if self.were_loaded and self.initial_weights is None:
            facts.append(
                "The weights that this run began from were loaded: the guarantees of the "
                "runs that made them, and of trials from which they were chosen, add up "
                "with this one."
            )
        if not self.step:
            facts.append("This run has taken no step yet: its guarantee is planned.")
        return " ".join([*facts, "This run alone:"]) if facts else ""

    def _remarks(self) -> list[str]:
        """Returns the remarks that the run adds to its plan's statement."""
        remarks = list(remarks_of(self.schedule_id))
        if self.weighs_classes:
            remarks.append(OF_WEIGHTS)
        if self.plan.account is not None:
            entry = self.entry and f"entry {self.entry.name} is reserved"
            remarks.append(
                f"Bound to the budget of {self.plan.account}; "
                f"{entry or 'nothing is reserved yet'}."
            )
        if self.tables is not None:
            remarks += self.tables.remarks()
        remarks += [
            f"Weights were changed between steps; whoever trained the model vouches that "
            f"the change used no private data: {sentence(reason)}"
            for reason in self.vouched
        ]
        remarks += self.cautions
        if self.resumed:
            remarks.append(
                f"The run was interrupted, and resumed at step "
                f"{', '.join(map(str, self.resumed))}. If a failure of the machine kept "
                f"steps out of the private state file, they may have been taken again "
                f"with other sums and independent noise: the numbers above then hold only "
                f"for those who did not see the lost weights."
            )
        origin = (
            "those that the model had when it was made private. This process did not see "
            "them trained without privacy; weights that were loaded or set before are not "
            "checked."
        )
        if self.were_loaded:
            origin = (
                "loaded, or set by the program; it is not checked whether these records "
                "were used to make them."
            )
        if self.initial_weights is not None:
            origin = (
                f"whoever trained the model vouches that they were made without any of "
                f"these records: {sentence(self.initial_weights)}"
            )
        remarks.append(f"Initial weights: {origin}")
        return remarks


def shared_key(strategy: tf.distribute.Strategy, key: NoiseKey) -> NoiseKey:
    """Returns, in every process of the strategy, the `key` of the first process."""
    resolver = strategy.cluster_resolver
    if resolver is None or not resolver.task_type:
        return key

    def first(values: tf.Tensor) -> tf.Tensor:
        replicas = tf.distribute.get_replica_context()
        is_first = tf.equal(replicas.replica_id_in_sync_group, 0)
        mine = tf.where(is_first, values, tf.zeros_like(values))
        return replicas.all_reduce(tf.distribute.ReduceOp.SUM, mine)

    values = tf.constant(list(key.secret_bytes()), tf.int32)
    everywhere = tf.function(lambda: strategy.run(first, (values,)), autograph=False)
    shared = strategy.experimental_local_results(everywhere())[0]
    return NoiseKey(bytes(shared.numpy().tolist()))
