"""One private run: what a `PrivateOptimizer` has besides the optimizer of Keras.

A step of a run is four calls:

    admitted = run.admit(batch, weights)  # it may be taken, and is of this batch
    ...                                          # gradients are formed and clipped
    noisy = run.privatize(clipped, variables, admitted)
    run.apply(noisy, variables)
    run.seal.renew(weights)

A run begins when the optimizer is built. From then on it has a noise key, a clock, and
a seal of the weights; none of these is in a file that Keras writes.
"""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_bandmf import noise
from tf_bandmf.files import machine
from tf_bandmf.keras.clipping import (
    SUM_MARGIN,
    ClippedGradients,
    released,
)
from tf_bandmf.keras.compat.keras_objects import given_learning_rate
from tf_bandmf.keras.run import admission, pieces
from tf_bandmf.keras.run.counts import Counts
from tf_bandmf.keras.run.evaluations import Evaluations
from tf_bandmf.keras.run.known_runs import NO_SCHEDULE
from tf_bandmf.keras.run.membership import Membership
from tf_bandmf.keras.run.replicas import NoisyMean, shared_key
from tf_bandmf.keras.run.reservation import Reservation
from tf_bandmf.keras.run.scaling import UNSOUND, Scaling
from tf_bandmf.keras.run.secrets import SecretState
from tf_bandmf.keras.run.tables import LookedUpRows, RowSums, RunTables
from tf_bandmf.keras.run.update import Update
from tf_bandmf.keras.run.weights_seal import (
    CHANGED,
    STATE_CHANGED,
    WeightsSeal,
    digest_of,
)
from tf_bandmf.noise.devices import device_kind
from tf_bandmf.noise.keys import NoiseKey
from tf_bandmf.planning.memory import refuse_too_large
from tf_bandmf.planning.plan import Plan
from tf_bandmf.planning.statement import PrivacyStatement, sentence
from tf_bandmf.sampling.batches import BatchSchedule
from tf_bandmf.sampling.identity import remarks_of
from tf_bandmf.sampling.sources import OF_CLASS_WEIGHTS

RESTORED = (
    "The optimizer and its noise are at different steps: it was restored from a file, and "
    "files hold no noise key, or a step was interrupted. Training on would add noise that "
    "the plan did not account for. Resume with the run's private state file, "
    "model.fit(batches, private_state=path), or start a new run with a new "
    "PrivateOptimizer and its own budget."
)
HOW_TO_TRAIN = (
    "Make the model private with tf_bandmf.keras.make_private(model), compile it with "
    "this optimizer and train with model.fit(plan.batches(x, y))."
)


class Run:
    """The steps of one plan, with one noise key, on one model and one data set.

    Keras tracks none of it, so no file holds it.

    Args:
      plan: plan of the run.
      inner_optimizer: the optimizer of Keras that applies the noisy gradients.
      scaling: scaling of coordinates, or None.
      keep_normals: see `PrivateOptimizer`.
      is_additional: whether another run of the process may have trained the same model,
        or on the same examples.

    Attributes:
      plan: plan of the run.
      inner_optimizer: the optimizer of Keras.
      scaling: scaling of coordinates, or None.
      membership: the run among the runs of this process.
      reservation: its reservation in the ledger that the plan is bound to.
      strategy: distribution strategy in whose scope it was made.
      evaluations: private evaluations that the plan has reserved.
      counts: private counts of examples that the plan has reserved.
      turn: held while a step is taken.
      vouched: the caller's reasons for changes of the weights, in order.
      weighs_classes: whether batches of the caller's were weighed by class.
      were_loaded: whether the weights that it began from had been loaded or set.
      initial_weights: the caller's words for where they come from; None if none.
      resumed_elsewhere: where it was resumed with other versions or devices, and how
        they differ.
      was_loaded_without_weights: whether Keras loaded the optimizer from an .h5 file,
        which leaves its variables behind.
    """

    def __init__(
        self,
        plan: Plan,
        inner_optimizer: Any,
        scaling: Scaling | None = None,
        *,
        keep_normals: bool = False,
        is_additional: bool = False,
    ) -> None:
        self.plan = plan
        self.inner_optimizer = inner_optimizer
        self.scaling = scaling
        self.turn = threading.RLock()
        self.strategy = tf.distribute.get_strategy()
        self.vouched: tuple[str, ...] = ()
        self.weighs_classes = False
        self.were_loaded = False
        self.initial_weights: str | None = None
        self.resumed_elsewhere: tuple[str, ...] = ()
        self.was_loaded_without_weights = False
        self._keep_normals = keep_normals
        self.membership = Membership(plan, is_additional)
        self.reservation = Reservation(plan)
        self._refusals: tuple[str, ...] = ()
        self._variables: list[Any] = []
        self._lazy: list[Any] = []
        self._tables: RunTables | None = None
        self._generator: noise.NoiseGenerator | None = None
        self._noisy_mean: NoisyMean | None = None
        self._fresh_key: NoiseKey | None = None
        self._secrets: SecretState | None = None
        self._seal: WeightsSeal | None = None
        self._update = Update(inner_optimizer)
        self.evaluations = Evaluations(plan)
        self.counts = Counts(plan)

    # Its beginning.

    def keep_lazily(self, tables: Sequence[Any]) -> None:
        """Draws the noise of these tables when their rows are read; before `begin`.

        Args:
          tables: trainable variables, [rows, columns].
        """
        assert not self.has_begun
        self._lazy = list(tables)

    def eager(self, variables: Sequence[Any]) -> list[Any]:
        """The variables, of these, that get their noise in each step."""
        lazy = {id(table) for table in self._lazy}
        return [variable for variable in variables if id(variable) not in lazy]

    def begin(self, variables: Sequence[Any]) -> None:
        """Makes the noise generator and a fresh key, within the strategy's scope.

        Args:
          variables: the model's trainable variables, for which the inner optimizer has
            slots.

        Raises:
          MemoryError: if the noise needs more memory than there is.
        """
        self._variables, strategy = list(variables), self.strategy
        replicas = strategy.num_replicas_in_sync
        eager = self.eager(variables)
        # One that nobody sees, if there are none.
        num_parameters = sum(math.prod(variable.shape) for variable in eager) or 1
        num_parameters += self.counts.size
        needed = self.plan.memory(num_parameters, replicas, self._keep_normals)
        if not tf.config.get_visible_devices("GPU"):
            here = 1 if replicas == 1 else len(strategy.extended.worker_devices)
            refuse_too_large(needed, machine.memory_bytes(), here)
        generator = noise.NoiseGenerator(
            self.plan.strategy,
            num_parameters,
            num_shards=replicas,
            keep_normals=self._keep_normals,
            generator=self.plan.generator,
        )
        self._generator, self._noisy_mean = generator, NoisyMean(generator)
        try:
            self.adopt(self.secrets_of(self.key))
        except tf.errors.ResourceExhaustedError as error:
            raise MemoryError(f"{needed} The device has less.") from error

    @property
    def key(self) -> NoiseKey:
        """The secret of the run, from which noise and sample follow."""
        if self._secrets is not None:
            return self._secrets.key
        if self._fresh_key is None:
            seed = self.plan.test_seed
            with self.strategy.scope():
                self._fresh_key = (
                    shared_key(self.strategy, NoiseKey.from_operating_system())
                    if seed is None
                    else NoiseKey.for_testing(seed)
                )
        return self._fresh_key

    def batches(self, schedule: BatchSchedule) -> BatchSchedule:
        """The schedule as this run draws it: the sample follows from the run's key.

        Only where a custom loop began with batches that no run had drawn, the run has
        those to the end.
        """
        if self.has_begun and int(self.schedule_id) == schedule.schedule_id:
            return schedule
        return schedule.join(self.key.sampler_seed())

    def secrets_of(self, key: NoiseKey, **state: Any) -> SecretState:
        """Secrets of this run's plan and model.

        Args:
          key: key of the run.
          **state: the state of the run, as for `SecretState`; by default its beginning.
        """
        assert self._generator is not None
        return SecretState(
            self._generator,
            key,
            self.plan.fingerprint,
            is_bound=self.plan.test_seed is None,
            # Steps with lazy tables are short, and have programs of their own anyway.
            compiles=bool(self._lazy),
            **state,
        )

    def adopt(self, secrets: SecretState, memory: Any = None) -> None:
        """Continues with these secrets, of a new run or of a resumed one.

        Args:
          secrets: state of the run.
          memory: memory of its tables, whose variables hold a release: see `RunTables`.
        """
        self._secrets = secrets
        if self._lazy:
            self._tables = RunTables(
                self._lazy,
                self.plan,
                self.inner_optimizer,
                self.generator,
                secrets.key,
                secrets.digest_before,
                int(secrets.step),
                memory,
            )
        self.evaluations.join(secrets.key)
        self.membership.join(secrets.key, self._variables)
        self.reservation.join(secrets.key)
        self._seal = WeightsSeal(self._state_of_steps)

    def _state_of_steps(self) -> list[Any]:
        """Variables of the inner optimizer that its steps alone change."""
        inner = self.inner_optimizer
        state = [*inner.variables, *(self.scaling.state() if self.scaling else ())]
        others = (inner.iterations, given_learning_rate(inner))
        return [v for v in state if not any(v is other for other in others)]

    # What it is, and where.

    @property
    def has_begun(self) -> bool:
        """Whether it has a key."""
        return self._secrets is not None

    @property
    def secrets(self) -> SecretState:
        """Key, clock and buffer; only for the private state file."""
        if self._secrets is None:
            raise ValueError("The run has not begun: the optimizer is not built.")
        return self._secrets

    @property
    def seal(self) -> WeightsSeal:
        """The seal by which changes of the weights between steps are noticed."""
        if self._seal is None:
            raise ValueError("The run has not begun: the optimizer is not built.")
        return self._seal

    @property
    def tables(self) -> RunTables | None:
        """The tables whose noise is drawn when their rows are read, if any."""
        return self._tables

    def renew_seal(self, weights: Sequence[Any]) -> None:
        """Seals the weights after a step; those of tables are sealed at releases."""
        self.seal.renew(self.eager(weights))

    def close_seal(self, weights: Sequence[Any]) -> None:
        """Seals the weights that a run is resumed with: between steps."""
        self.seal.close(self.eager(weights))

    @property
    def generator(self) -> noise.NoiseGenerator:
        """The noise generator."""
        assert self._generator is not None
        return self._generator

    @property
    def schedule_id(self) -> tf.Tensor:
        """The id of the schedule in use, int64; -1 before the first step."""
        return self.secrets.schedule_id

    @property
    def iterations(self) -> tf.Tensor:
        """Steps of the inner optimizer, int64."""
        return tf.cast(self.inner_optimizer.iterations.value, tf.int64)

    def is_restored(self) -> bool:
        """Whether it may take no step, because a file set the optimizer's step."""
        if self.was_loaded_without_weights:
            return True
        if not self.has_begun:
            return False
        if self._tables is not None and not bool(self._tables.is_at(self.secrets.step)):
            return True
        return int(self.iterations) != int(self.secrets.step)

    def refuse_restored(self) -> None:
        """Raises InvalidArgumentError before a step does, if none may be taken."""
        if self.is_restored():
            raise tf.errors.InvalidArgumentError(None, None, RESTORED)

    def refuse_changed(self, weights: Sequence[Any]) -> None:
        """Raises InvalidArgumentError before a step does, if something changed the run.

        Args:
          weights: all of the model's, in the same order as in `admit`.
        """
        self.refuse_restored()
        if not self.has_begun or not int(self.secrets.step):
            return
        is_whole = bool(self.seal.digest_if_holds(self.eager(weights))[1])
        if self._tables is not None:
            is_whole &= not self._tables.was_changed()
        if not is_whole:
            raise tf.errors.InvalidArgumentError(None, None, CHANGED)
        # Moments that scale may also be unsound, of which a step says more.
        if self.scaling is None and not bool(self.seal.digest_if_state_holds()[1]):
            raise tf.errors.InvalidArgumentError(None, None, STATE_CHANGED)

    def refusal_in(self, error: tf.errors.InvalidArgumentError) -> str | None:
        """What `admit` said in a graph, without all that TensorFlow adds to it."""
        # It escapes quotation marks.
        said = error.message.replace("\\'", "'")
        return next((text for text in self._refusals if text in said), None)

    # Its steps.

    def admit(self, batch: Any, weights: Sequence[Any]) -> admission.Admitted:
        """The coming step, after all checks that it may be taken.

        If a tool strips the assertions from the graph, a step that is not allowed
        becomes a step past the horizon, whose noise is NaN.

        Args:
          batch: of the plan's schedule; or one that the caller made.
          weights: all weights of the model, in the same order each time.

        Raises:
          TypeError: if the plan has a schedule, but the batch does not come from one.
          InvalidArgumentError: in graphs too, if the budget is spent, the batch is not
            that of the step, the run would be an unannounced second run, the optimizer
            was restored from a file without its private state, something else changed
            weights or the inner optimizer's state, there are no scales, or the ledger
            that the plan is bound to has no budget for the run.
        """
        noise.refuse_xla()
        schedule_id = admission.schedule_id_of(batch)
        iterations, taken = self.iterations, self.secrets.step
        is_new = tf.equal(taken, 0) & tf.equal(iterations, 0)
        of_batch, batch_digest = admission.conditions(
            self.plan, batch, iterations, self.schedule_id, self.strategy
        )
        unchanged = self.seal.digest_if_holds(self.eager(weights))[1]
        conditions = [
            (tf.equal(iterations, taken), RESTORED),
            *of_batch,
            (unchanged, CHANGED),
            *self.membership.conditions(is_new, weights, schedule_id),
            *self.reservation.conditions(),
        ]
        if self._tables is not None:
            conditions.append((self._tables.is_at(taken), RESTORED))
        sound = tf.constant(True)
        if self.scaling is not None:
            sound = self.scaling.is_sound()
            conditions.append((sound, UNSOUND))
        # Moments that are not sound have a message of their own.
        unchanged = self.seal.digest_if_state_holds()[1]
        conditions.append((unchanged | ~sound, STATE_CHANGED))
        words = tf.bitcast(batch_digest, tf.int32)
        step = self.reservation.held(self._checked(conditions))
        step = self.membership.noted(step, schedule_id)
        if not admission.is_scheduled(batch):
            return admission.Admitted(step, words)
        # From its first step on the run has one schedule.
        with tf.control_dependencies([step]):
            pinned = self.secrets.pin_schedule(schedule_id)
        with tf.control_dependencies([] if pinned is None else [pinned]):
            return admission.Admitted(tf.identity(step), words)

    def _checked(self, conditions: Sequence[tuple[tf.Tensor, str]]) -> tf.Tensor:
        # One assertion for all, with the text of the first that does not hold: a step's
        # graph takes its time for each operation, before it runs first.
        hold = tf.stack([holds for holds, _ in conditions])
        allowed = tf.reduce_all(hold)
        first = tf.argmin(hold)
        self._refusals = tuple(text for _, text in conditions)
        text = tf.gather(tf.constant(self._refusals), first)
        check = tf.debugging.Assert(allowed, [text])
        with tf.control_dependencies([] if check is None else [check]):
            step = self.generator.checked_step(tf.identity(self.secrets.step))
        horizon = tf.constant(self.plan.num_steps, tf.int64)
        return tf.where(allowed, step, horizon)

    def privatize(
        self,
        clipped: ClippedGradients,
        variables: Sequence[Any],
        admitted: admission.Admitted,
        penalties: Sequence[tf.Tensor] | None = None,
        looked_up: Sequence[LookedUpRows] = (),
    ) -> list[tf.Tensor]:
        """Adds noise to the clipped sum and divides it by the expected batch size.

        Args:
          clipped: what `clipped_gradient_sums` returned.
          variables: the model's trainable variables, in the order of `clipped.sums`.
          admitted: what `admit` returned.
          penalties: gradients of weight regularizers, which depend on no data; added to
            the noisy gradients.
          looked_up: what `RunTables.bring_up_to_date` returned, if there are lazy tables.

        Returns:
          Noisy gradients, in the variables' shapes and dtypes; for tables whose noise
          is drawn when rows are read, `RowSums`, which have no noise yet.

        Raises:
          TypeError: if `clipped` did not come from the clipping of this library.
          ValueError: if the variables are not those that the run began with, or `clipped`
            is not scaled as this run does.
          InvalidArgumentError: if the sum is not finite or larger than clipped
            gradients can add up to. `clipped_gradient_sums` returns no such sum for any
            data: only a programming error can.
        """
        self._check_origin(clipped, variables)
        row_sums, sums, eager, penalties = self._split(
            clipped, variables, penalties, looked_up
        )
        parts = [pieces.reshaped(total, [-1]) for total in sums] or [tf.zeros([1])]
        parts += self.counts.coordinates(clipped)
        total = pieces.StepSum.of(parts, in_pieces=self._is_alone())
        inputs = self._inputs(admitted, row_sums)
        vectors = [*total.pieces, *(own.sums for own in row_sums)]
        with tf.control_dependencies([self._refuse_unclipped(vectors, clipped)]):
            step = tf.identity(admitted.step)
            noise = self.secrets.next_noise(step, total.value, inputs)
        gradients = self._noisy_gradients(total, noise, eager)
        if clipped.scales:
            gradients = [g / s for g, s in zip(gradients, clipped.scales, strict=True)]
        if penalties is not None:
            gradients = [a + b for a, b in zip(gradients, penalties)]
        found = {
            id(variable): tf.cast(gradient, variable.dtype)
            for gradient, variable in zip(gradients, eager)
        }
        if self._tables is not None:
            with tf.control_dependencies([noise]):
                found |= {
                    id(variable): RowSums(*map(tf.identity, own))
                    for variable, own in zip(self._tables.variables, row_sums)
                }
        return [found[id(variable)] for variable in variables]

    def _inputs(
        self, admitted: admission.Admitted, row_sums: Sequence[RowSums]
    ) -> tf.Tensor:
        """What the noise is bound to besides the sum."""
        if self._tables is None:
            return admitted.inputs
        of_tables = self._tables.digest(row_sums, admitted.step)
        return tf.concat([admitted.inputs, of_tables], axis=0)

    def _refuse_unclipped(
        self, vectors: Sequence[tf.Tensor], clipped: ClippedGradients
    ) -> tf.Operation | None:
        """An assertion that a sum is no larger than clipped gradients can add up to."""
        halves = [tf.nn.l2_loss(vector) for vector in vectors]
        norm = tf.sqrt(2.0 * tf.cast(tf.add_n(halves), tf.float64))
        examples = tf.cast(tf.size(clipped.norms), tf.float64)
        # NaN fails this comparison too.
        is_clipped = norm <= SUM_MARGIN * self.plan.l2_norm_clip * examples
        message = "The sum of gradients is not clipped, or not finite."
        return tf.debugging.Assert(is_clipped, [message])

    def _noisy_gradients(
        self, total: pieces.StepSum, noise: tf.Tensor, variables: Sequence[Any]
    ) -> list[tf.Tensor]:
        """The noisy mean, by variable; that of the counts is added to them."""
        plan = self.plan
        assert self._noisy_mean is not None and plan.expected_batch_size is not None
        settings = plan.noise_stddev, plan.expected_batch_size
        if len(total.pieces) == 1:
            noisy = [self._noisy_mean(total.pieces[0], noise, *settings)]
        else:
            noisy = self._noisy_mean.of_pieces(total.pieces, noise, *settings)
        # Replicas take turns: another one's update may come before these are used.
        released(noisy)
        noisy[-1] = self.counts.taken_from(noisy[-1])
        return pieces.apart(noisy, total.groups, variables)

    def _split(
        self,
        clipped: ClippedGradients,
        variables: Sequence[Any],
        penalties: Sequence[tf.Tensor] | None,
        looked_up: Sequence[LookedUpRows],
    ) -> tuple[list[RowSums], list[tf.Tensor], list[Any], list[tf.Tensor] | None]:
        """Row sums of tables; sums, variables and penalties of all others."""
        by_id = {id(v): s for v, s in zip(variables, clipped.sums, strict=True)}
        row_sums: list[RowSums] = []
        if self._tables is not None:
            of_tables = [by_id[id(v)] for v in self._tables.variables]
            rate = self._update.learning_rate()
            row_sums = self._tables.row_sums(of_tables, rate, looked_up)
        eager = self.eager(variables)
        if penalties is not None:
            added = {id(v): p for v, p in zip(variables, penalties)}
            penalties = [added[id(v)] for v in eager]
        return row_sums, [by_id[id(v)] for v in eager], eager, penalties

    def _is_alone(self) -> bool:
        """Whether one host has all of a sum."""
        return self.strategy.num_replicas_in_sync == 1 and device_kind() == "CPU"

    def _check_origin(self, clipped: Any, variables: Sequence[Any]) -> None:
        if not isinstance(clipped, ClippedGradients):
            raise TypeError(
                f"Gradients must be clipped by this library. {HOW_TO_TRAIN}"
            )
        if bool(clipped.scales) != (self.scaling is not None):
            raise ValueError(
                f"Gradients must be clipped in the coordinates of this optimizer, which "
                f"are {'scaled' if self.scaling else 'not scaled'}. {HOW_TO_TRAIN}"
            )
        # Correlated noise cancels within a variable: each keeps its place in it.
        if [id(v) for v in variables] != [id(v) for v in self._variables]:
            raise ValueError(
                "The model's trainable weights are not those that the run began with "
                "(trainable was changed, or layers were added or removed). The noise is "
                "correlated over the steps of each weight: a run keeps its weights. "
                "Change them back, or start a new run with a new PrivateOptimizer and "
                "its own budget."
            )

    def apply(self, noisy: Sequence[tf.Tensor], variables: Sequence[Any]) -> None:
        """Lets the inner optimizer apply what `privatize` returned.

        Args:
          noisy: gradients.
          variables: the model's trainable ones.
        """
        by_id = {id(v): gradient for v, gradient in zip(variables, noisy, strict=True)}
        eager = self.eager(variables)
        with tf.control_dependencies(tf.nest.flatten(list(noisy))):
            if self._tables is not None:
                row_sums = [by_id[id(v)] for v in self._tables.variables]
                step = tf.identity(self.inner_optimizer.iterations.value)
                self._tables.apply(row_sums, step)
            if eager:
                self._update.apply([by_id[id(v)] for v in eager], eager)
            else:
                self.inner_optimizer.iterations.assign_add(1)

    def still_at(
        self, step: tf.Tensor, weights: Sequence[Any]
    ) -> list[tf.Operation | None]:
        """Assertions that nothing has changed since the noise of `step` was drawn.

        Raises:
          InvalidArgumentError: in graphs too, if gradients of that step may not be
            applied any more.
        """
        conditions = [
            (tf.equal(self.iterations, step), RESTORED),
            (self.seal.digest_if_holds(self.eager(weights))[1], CHANGED),
            (self.seal.digest_if_state_holds()[1], STATE_CHANGED),
        ]
        return [tf.debugging.Assert(holds, [text]) for holds, text in conditions]

    def release(self) -> None:
        """Writes the current rows of all tables into the layers' variables.

        Raises:
          InvalidArgumentError: if something else changed the variables, or a step was
            interrupted.
        """
        if self._tables is None:
            return
        with self.turn:
            self.refuse_restored()
            if not self._tables.release():
                raise tf.errors.InvalidArgumentError(None, None, CHANGED)

    def evaluate(
        self, sums: np.ndarray, what: str, weights: Sequence[Any]
    ) -> np.ndarray:
        """Releases sums over records with noise, as one of the plan's evaluations.

        Args:
          sums: float64, shape [M], to which each unit adds a vector of norm <= 1.
          what: describes what was summed, and over which records, for the noise's key.
          weights: all weights of the model, in the same order as in `admit`.

        Returns:
          Float64, shape [M].

        Raises:
          InvalidArgumentError: if the optimizer was restored without its private state, or
            something else changed the weights.
          ValueError: if the run has taken no step, or no evaluation is left.
          LedgerError: if the run has ended.
        """
        with self.turn:
            self.refuse_restored()
            if not self.has_begun or not int(self.secrets.step):
                raise ValueError(
                    "The run has taken no step yet: its evaluations begin after its first "
                    "one, which may be refused."
                )
            is_whole = bool(self.seal.digest_if_holds(self.eager(weights))[1])
            if self._tables is not None:
                is_whole &= not self._tables.was_changed()
            if not is_whole:
                raise tf.errors.InvalidArgumentError(None, None, CHANGED)
            self.reservation.ensure()
            self.reservation.refuse_ended()
            what = f"{what}\n{int(digest_of(weights))}"
            return self.evaluations.release(sums, what, int(self.secrets.step))

    def vouch(self, reason: str) -> None:
        """See `PrivateOptimizer.vouch_for_weights`."""
        if not isinstance(reason, str) or not reason.strip():
            raise ValueError(
                f"reason must say what changed the weights, found {reason!r}."
            )
        if not self.has_begun or not int(self.secrets.step):
            self.initial_weights = reason.strip()
        if not self.has_begun:
            return
        with self.turn:
            self.seal.open()
            if self._tables is not None:
                self._tables.accept()
            if int(self.secrets.step):
                self.vouched = tuple(dict.fromkeys((*self.vouched, reason.strip())))

    def refuse_trained(self, plain_steps: int) -> None:
        """Raises ValueError if a run would begin from weights that were trained plainly.

        Args:
          plain_steps: of the model's optimizer before the model was made private.
        """
        if plain_steps and self.initial_weights is None:
            raise ValueError(
                f"The model took {plain_steps} steps with a plain optimizer before it was "
                f"made private: if they used these records, its weights already reveal "
                f"them, and no noise covers that. Begin from a new model; or if the "
                f"weights come from other data, say so before training, which the "
                f"statement quotes: "
                f'model.optimizer.vouch_for_weights("pretrained on public data: which").'
            )

    def statement(
        self,
        unit: str | None,
        remarks: Sequence[str] = (),
        weights: Sequence[Any] = (),
    ) -> PrivacyStatement:
        """The statement of the run; see `PrivateOptimizer.statement`.

        Args:
          unit: see `Plan.statement`.
          remarks: on the optimizer and the model.
          weights: all of the model's, as far as they are at hand.
        """
        data = int(self.schedule_id) if self.has_begun else NO_SCHEDULE
        found = self.membership.statement(unit, weights, data)
        said = [*found.remarks, *remarks, *self._remarks(data)]
        return dataclasses.replace(
            found, remarks=tuple(dict.fromkeys(said)), proviso=self._proviso()
        )

    def _proviso(self) -> str:
        """What the statement says before its numbers."""
        loaded = self.were_loaded and self.initial_weights is None
        taken = int(self.secrets.step) if self.has_begun else 0
        if not taken and not loaded:
            return "This run has taken no step yet; it is to have this guarantee:"
        if not taken:
            return (
                "This run has taken no step, and the model's weights were loaded: they "
                "have the guarantees of the runs that made them, which add up, as those "
                "of trials do from which they were chosen. This run would add:"
            )
        if loaded:
            return (
                "The weights that this run began from were loaded: the guarantees of the "
                "runs that made them add up with this one. This run alone:"
            )
        return ""

    def _remarks(self, schedule_id: int) -> list[str]:
        """What the statement must say in addition to the guarantee."""
        remarks = list(remarks_of(schedule_id))
        if self.weighs_classes:
            remarks.append(OF_CLASS_WEIGHTS)
        remarks += self.reservation.remarks()
        if self._tables is not None:
            remarks += self._tables.remarks()
        remarks += [
            f"Weights were changed between steps, for which whoever trained vouches that "
            f"no private data had a part in it: {sentence(reason)}"
            for reason in self.vouched
        ]
        remarks += [
            f"The run was interrupted, and resumed on another kind of machine or with "
            f"other versions ({said}). Steps that had been taken, and that a failure of "
            f"the machine kept out of its private state file, may have been taken again "
            f"with sums that are rounded differently, and with independent noise: the "
            f"numbers above hold for whoever did not see the lost weights."
            for said in self.resumed_elsewhere
        ]
        remarks.append(
            f"Initial weights: whoever trained vouches that none of these records had a "
            f"part in them: {sentence(self.initial_weights)}"
            if self.initial_weights is not None
            else "Initial weights: loaded, or set by the program; whether these records "
            "had a part in them is not checked."
            if self.were_loaded
            else "Initial weights: as the model was made; this process did not see them "
            "trained without privacy. Weights that were loaded or set are not checked."
        )
        return remarks
