"""Private models: the training step that clips each example's gradient."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import os
import warnings
from collections.abc import Sequence
from typing import Any, Callable

import keras
import tensorflow as tf

from tf_bandmf.keras import runs
from tf_bandmf.keras.caller_batches import check_passes
from tf_bandmf.keras.clipping import (
    ClippedGradients,
    bad_values_become_nan,
    check_matmul_precision,
    check_supported,
    clipped_gradient_sums,
    made_up,
    metrics_change_no_weights,
    present_rows,
    regularization_gradients,
    self_check,
    vouched_classes,
)
from tf_bandmf.keras.fit_arguments import checked_data
from tf_bandmf.keras.nesting import refuse_plain_outer_training
from tf_bandmf.keras.optimizer import PrivateOptimizer
from tf_bandmf.keras.own_loops import NoisyGradients, traced_once
from tf_bandmf.keras.private_state import PrivateRun, refuse_shared_folder
from tf_bandmf.keras.secret_state import replica_id
from tf_bandmf.keras.step_guards import in_turn, private_inside
from tf_bandmf.keras.weights_seal import CHANGED, let_average
from tf_bandmf.planning.statement import PrivacyStatement
from tf_bandmf.sampling import batches as batches_lib
from tf_bandmf.sampling.batches import BatchSchedule
from tf_bandmf.sampling.fingerprints import is_as_drawn

# Of made-up data: three fill a group and begin another one.
_CHECKED_EXAMPLES = 3


class PrivateTraining:
    """Mixin that trains a Keras model privately; put it before `keras.Model`.

        class MyModel(tf_bandmf.keras.PrivateTraining, keras.Model): ...

    `make_private` does that for Sequential and Functional models. Evaluation,
    prediction and saving are those of the model.

    Formal guarantee: with a `PrivateOptimizer` the training step is the only way in
    which the training data reach the weights: gradients are clipped for each example,
    summed, and noised as the plan says; anything else raises before it computes.
    """

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        *,
        private_state: str | os.PathLike[str] | None = None,
        **kwargs: Any,
    ) -> Any:
        """As `keras.Model.fit`, on the batches of the plan.

            model.fit(
                plan.batches(x, y),
                epochs=10,
                private_state="run.private",
                callbacks=[keras.callbacks.BackupAndRestore("backup")],
            )

        resumes the interrupted run when the same program is started again.

        Args:
          x: `plan.batches(...)`, which cannot have another order in another epoch. If
            the plan's separation is asserted by the caller (`MinSep`): a
            `tf.data.Dataset` or generator that respects it. WARNING: nothing here can
            see whether it does. `Dataset.shuffle` has a new order in every pass unless
            told otherwise, and a new order has a separation of 1.
          y: not used.
          private_state: path of a file of mode 0600 that keeps the run's secrets, so that
            it can be resumed from checkpoints; see `tf_bandmf.keras.private_state`. Never
            share it. If it exists the run is resumed where its weights are; `epochs` are
            those of the whole run then, as with `BackupAndRestore`.
          **kwargs: as for `keras.Model.fit`. `epochs` times the steps per epoch must
            not exceed the steps that are left. `class_weight` multiplies the loss of an
            example by the weight of its class, before its gradient is clipped.

        Raises:
          TypeError, ValueError: if the data are not the plan's, or the plan has fewer
            steps left than asked for, or the private state file would be in a folder of
            a callback. Nothing was trained then.
          RuntimeError: if the process rounds float32 products (TensorFloat-32): norms
            would be wrong. The message says how to turn it off.
        """
        optimizer = self._private_optimizer()
        x, kwargs = checked_data(optimizer.plan, x, y, kwargs)
        if private_state is not None or self._is_distributed:
            self._prepare(optimizer, x)
        if private_state is not None:
            refuse_shared_folder(private_state, kwargs.get("callbacks"))
            _restore_backup(self, kwargs.get("callbacks"))
            x = self.begin_run(x, private_state)
            kwargs = self._from_where_it_was(x, kwargs)
        if isinstance(x, BatchSchedule):
            x, kwargs = self._resolve_schedule(optimizer, x, kwargs)
        else:
            kwargs = {**kwargs, "shuffle": False}
            check_passes(x, optimizer.plan.participation, kwargs)
            x = self._checked_stream(x) if self._self_check_is_due else x
        _warn_of_private_monitors(kwargs.get("callbacks"))
        let_average(kwargs.get("callbacks"), lambda: self._private_optimizer().seal)
        return super().fit(x, **kwargs)  # type: ignore[misc]

    def begin_run(
        self, batches: BatchSchedule, private_state: str | os.PathLike[str]
    ) -> BatchSchedule:
        """Begins a run that can be resumed, or resumes it; `fit` calls it by itself.

        For training loops of one's own: after the weights were loaded, with the optimizer,

            batches = model.begin_run(plan.batches(x, y), "run.private")
            for batch in batches.dataset(model.optimizer.steps_taken):
                model.train_on_batch(batch)

        Args:
          batches: of the plan.
          private_state: see `fit`.

        Returns:
          The batches of the run, sampled with the seed that began it.

        Raises:
          TypeError: if the plan's separation is asserted by the caller: nothing says that
            steps which are taken again would see the same batches.
          ValueError: if the file is of another run, or does not know the weights.
          PermissionError: if others may read the file.
        """
        if not isinstance(batches, BatchSchedule):
            raise TypeError(
                f"A run is resumed on the batches of its plan, found "
                f"{type(batches).__name__}. Where the caller makes the batches (MinSep) "
                f"nothing says that steps which are taken again would see the same ones: "
                f"such runs cannot be resumed."
            )
        self._prepare(self._private_optimizer(), batches)
        run = PrivateRun(os.fspath(private_state), self)
        batches = run.begin(batches)
        optimizer = self._private_optimizer()
        optimizer.check_run(self.weights, batches.schedule_id)  # type: ignore[attr-defined]
        if optimizer.steps_taken:
            optimizer.note_run(batches.schedule_id)
        # Keras must not track it: it would be saved.
        object.__setattr__(self, "_private_run", run)
        self.train_function = None
        return batches

    def privacy_statement(self) -> PrivacyStatement:
        """The plan's statement, with what the user of this model vouched for.

        Returns:
          `optimizer.statement()`; its remarks also name the classes of layers that
          `register_per_example_layer` took the user's word for.

        Raises:
          TypeError: if the model is not compiled with a PrivateOptimizer.
        """
        statement = self._private_optimizer().statement()
        classes = vouched_classes(self)  # type: ignore[arg-type]
        if not classes:
            return statement
        remark = (
            f"The user vouches that layers of the classes {', '.join(classes)} act on each "
            f"example alone; that was not shown."
        )
        return dataclasses.replace(statement, remarks=(*statement.remarks, remark))

    # Of `begin_run`; checkpoints are announced to it.
    _private_run: PrivateRun | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As `keras.Model`'s; raises RuntimeError in the training of a plain model."""
        refuse_plain_outer_training(self, PrivateTraining, kwargs.get("training"))
        return super().__call__(*args, **kwargs)  # type: ignore[misc]

    def save(self, *args: Any, **kwargs: Any) -> Any:
        """As `keras.Model.save`; a run with a private state file can be resumed from it."""
        if self._private_run is not None:
            self._private_run.record()
        return super().save(*args, **kwargs)  # type: ignore[misc]

    def save_weights(self, *args: Any, **kwargs: Any) -> Any:
        """As `keras.Model.save_weights`; see `save`."""
        if self._private_run is not None:
            self._private_run.record()
        return super().save_weights(*args, **kwargs)  # type: ignore[misc]

    def _from_where_it_was(
        self, schedule: BatchSchedule, kwargs: dict[str, Any]
    ) -> dict[str, Any]:
        """Arguments of `fit` for a run: a resumed one has epochs behind it."""
        assert self._private_run is not None
        if not self._private_run.resumed:
            return kwargs
        per_epoch = kwargs.get("steps_per_epoch") or schedule.steps_per_epoch
        done = self._private_optimizer().steps_taken // per_epoch
        return {**kwargs, "initial_epoch": max(done, kwargs.get("initial_epoch", 0))}

    def _prepare(self, optimizer: PrivateOptimizer, data: Any) -> None:
        """Builds model, optimizer, loss and metrics."""
        if not self.built or self._is_distributed:  # type: ignore[attr-defined]
            batches = data.dataset() if isinstance(data, BatchSchedule) else data
            batch = next(iter(batches))
            self._build_for_training(batch)
        optimizer.build(self.trainable_variables)  # type: ignore[attr-defined]
        if self._is_distributed:
            with self.distribute_strategy.scope():  # type: ignore[attr-defined]
                self._symbolic_build(data_batch=_contents(batch))  # type: ignore[attr-defined]

    def _maybe_symbolic_build(
        self, iterator: Any = None, data_batch: Any = None
    ) -> None:
        """As Keras', which averages first batches of replicas as if of one size."""
        if not (self._is_distributed and self.optimizer.built):  # type: ignore[attr-defined]
            super()._maybe_symbolic_build(iterator, data_batch)  # type: ignore[misc]

    @property
    def _is_distributed(self) -> bool:
        """Whether the model was made within the scope of a distribution strategy."""
        return self._distribute_strategy is not None  # type: ignore[attr-defined]

    @property
    def _num_replicas(self) -> int:
        strategy = self.distribute_strategy  # type: ignore[attr-defined]
        return 1 if strategy is None else strategy.num_replicas_in_sync

    def train_on_batch(self, x: Any, y: Any = None, **kwargs: Any) -> Any:
        """As `keras.Model.train_on_batch`; `x` is a batch of `plan.batches`.

        Under `MinSep`: inputs and targets, whose separation the caller enforces.
        """
        self._private_optimizer()
        if self._num_replicas > 1:
            raise NotImplementedError(
                "Keras gives the whole batch of train_on_batch to every replica: each "
                "example would count several times. Use model.fit."
            )
        if self._self_check_is_due:
            self._run_self_check((x, y, kwargs.get("sample_weight")))
        return super().train_on_batch(x, y, **kwargs)  # type: ignore[misc]

    def _checked_stream(self, x: Any) -> Any:
        """Checks the first batch; returns data that still begin with it."""
        iterator = iter(x)
        first = next(iterator)
        self._run_self_check(first)
        if isinstance(x, tf.data.Dataset):
            return x
        return (batch for batch in itertools.chain([first], iterator))

    def _run_self_check(self, data: Any) -> None:
        x, y, weight = _contents(data)
        if int(tf.shape(tf.nest.flatten(x)[0])[0]) == 0:
            return  # Nothing to compare yet.
        self._build_for_training(data)
        layers = _CheckedLayers(self._flatten_layers())  # type: ignore[attr-defined]
        self_check(
            self,
            *made_up((x, y, weight), _CHECKED_EXAMPLES),
            microbatch_size=self._microbatch_size,
            loss_scale_factor=self._private_optimizer().loss_scale_factor,
        )
        object.__setattr__(self, "_checked", layers)

    def _resolve_schedule(
        self,
        optimizer: PrivateOptimizer,
        schedule: BatchSchedule,
        kwargs: dict[str, Any],
    ) -> tuple[tf.data.Dataset, dict[str, Any]]:
        plan = optimizer.plan
        optimizer.refuse_restored()
        if schedule.plan_id != plan.plan_id:
            raise ValueError(
                "The batches belong to another plan than the optimizer. Use the same "
                "plan for both."
            )
        taken = optimizer.steps_taken
        left = plan.num_steps - taken
        per_epoch = kwargs.get("steps_per_epoch") or schedule.steps_per_epoch
        asked = (kwargs.get("epochs", 1) - kwargs.get("initial_epoch", 0)) * per_epoch
        # After an interruption within an epoch the last epoch may be cut short.
        if asked > left and not (taken % per_epoch and asked - left < per_epoch):
            raise ValueError(
                f"fit asks for {asked} steps, but {left} of the plan's "
                f"{plan.num_steps} steps are left. The budget is for no more: fit fewer "
                f"epochs, or make a plan for more."
            )
        dataset = schedule.dataset(first_step=taken)
        if optimizer.built and int(optimizer.schedule_id) not in (
            -1,
            schedule.schedule_id,
        ):
            raise ValueError(
                "The run began with other data, or the same data in other places: the "
                "accountant's assumption would be broken. Use the schedule that began it."
            )
        optimizer.check_run(self.weights, schedule.schedule_id)  # type: ignore[attr-defined]
        if self._self_check_is_due:
            for batch in dataset:
                self._run_self_check(batch)
                if not self._self_check_is_due:
                    break
        if self._is_distributed:
            dataset = self._distributed(schedule, taken)
        return dataset, {**kwargs, "steps_per_epoch": per_epoch, "shuffle": False}

    def _distributed(self, schedule: BatchSchedule, first_step: int) -> Any:
        """Each replica's part of each batch."""
        replicas = self._num_replicas

        def parts(context: tf.distribute.InputContext) -> tf.data.Dataset:
            here = replicas // context.num_input_pipelines
            first = context.input_pipeline_id * here
            batches = schedule.dataset(first_step)
            return batches_lib.in_parts(batches, range(first, first + here), replicas)

        strategy = self.distribute_strategy  # type: ignore[attr-defined]
        return strategy.distribute_datasets_from_function(parts)

    # The layers that were compared with batch-of-one gradients; or whether to do it.
    _checked: _CheckedLayers | bool = True

    @property
    def _self_check_is_due(self) -> bool:
        """Whether gradients are still to be checked: at first, and with other layers."""
        if isinstance(self._checked, bool):
            return self._checked
        return not self._checked.are(self._flatten_layers())  # type: ignore[attr-defined]

    @_self_check_is_due.setter
    def _self_check_is_due(self, due: bool) -> None:
        # Keras must not track it.
        object.__setattr__(self, "_checked", bool(due))

    # Examples whose gradients are held in memory together; None for the whole batch.
    _microbatch_size: int | None = None

    def train_step(self, data: Any) -> dict[str, Any]:
        """One private step; see the class."""
        object.__setattr__(self, "_steps_begun", self._steps_begun + 1)
        if tf.executing_eagerly() and not tf.distribute.has_strategy():
            with self._private_optimizer().turn:
                return self._train_step(data)
        return self._train_step(data)

    # How often the private training step was called or traced.
    _steps_begun = 0

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "train_step" in cls.__dict__:
            cls.train_step = private_inside(cls.train_step)  # type: ignore[method-assign]

    def _train_step(self, data: Any) -> dict[str, Any]:
        optimizer = self._private_optimizer()
        clipped, step, data = self._clipped(optimizer, data)
        x, y, sample_weight, rows = _as_drawn(data)
        variables = self.trainable_variables  # type: ignore[attr-defined]
        optimizer.apply_private(clipped, variables, step, self._penalties())
        optimizer.seal.renew(self.weights)  # type: ignore[attr-defined]
        # Training metrics are exact functions of the data: outside of the guarantee.
        batch_size = tf.cast(batches_lib.count_examples(data, x), tf.float32)
        mean_loss = tf.math.divide_no_nan(tf.reduce_sum(clipped.losses), batch_size)
        self._loss_tracker.update_state(mean_loss, sample_weight=batch_size)  # type: ignore[attr-defined]
        seen = (x, y, clipped.outputs, sample_weight)
        if rows is not None:
            seen = present_rows(seen, rows)
        with bad_values_become_nan(), metrics_change_no_weights(self):
            logs = self.compute_metrics(*seen)  # type: ignore[attr-defined]
        strategy = optimizer.strategy
        if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
            # Keras takes the mean over workers along the first axis of whatever is here.
            logs = {name: tf.reshape(value, [1]) for name, value in logs.items()}
        return logs

    def private_gradients(self, batch: Any) -> NoisyGradients:
        """The noisy mean gradient of a batch, for training loops of one's own.

            for batch in plan.batches(x, y).dataset(model.optimizer.steps_taken):
                noisy = model.private_gradients(batch)
                model.optimizer.apply_noisy(noisy)

        It is one step of the plan, with all that `fit` enforces. Whatever is made of the
        gradients costs no privacy: `noisy.map(function)` changes them,
        `apply_noisy(noisy, update)` applies them by a rule of one's own. They must be
        applied before the next step.

        Args:
          batch: of `plan.batches`; under `MinSep`, `(x, y)` or `(x, y, sample_weight)`.

        Returns:
          The gradients; no metrics, which are functions of the data.

        Raises:
          TypeError: if the model is not compiled with a PrivateOptimizer, or the batch is
            not one of the plan's.
          InvalidArgumentError: as a step of `fit`.
          NotImplementedError: on several replicas.
        """
        optimizer = self._private_optimizer()
        if self._num_replicas > 1:
            raise NotImplementedError(
                "private_gradients works on one replica. Use model.fit."
            )

        def gradients(batch: Any) -> tuple[list[tf.Tensor], tf.Tensor]:
            clipped, step, _ = self._clipped(optimizer, batch)
            variables = self.trainable_variables  # type: ignore[attr-defined]
            noisy = optimizer.private_mean(clipped, variables, step, self._penalties())
            return noisy, step

        if not tf.executing_eagerly():
            found = gradients(batch)
        else:
            if self._self_check_is_due:
                self._run_self_check(batch)
            if not optimizer.built:
                self._build_for_training(batch)
                optimizer.build(self.trainable_variables)  # type: ignore[attr-defined]
            with optimizer.turn:
                if self.run_eagerly:  # type: ignore[attr-defined]
                    found = gradients(batch)
                else:
                    found = traced_once(self, gradients)(batch)
        return NoisyGradients(*found, optimizer, self.weights)  # type: ignore[attr-defined]

    def _penalties(self) -> list[tf.Tensor] | None:
        """Gradients of the weights' regularizers, if there are any."""
        variables = self.trainable_variables  # type: ignore[attr-defined]
        if any(variable.regularizer is not None for variable in variables):
            return regularization_gradients(self)
        return None

    def _clipped(
        self, optimizer: PrivateOptimizer, data: Any
    ) -> tuple[ClippedGradients, tf.Tensor, Any]:
        """Checks that the step may be taken; its clipped sum, number and batch."""
        if self._self_check_is_due:
            raise RuntimeError(
                "The per-example gradients of this model were not checked yet: train with "
                "model.fit or model.train_on_batch, or give self_check=False to "
                "make_private if you have checked them."
            )
        if not optimizer.built:
            self._build_for_training(data)
            optimizer.build(self.trainable_variables)  # type: ignore[attr-defined]
        data = _unwrap_single(data)
        weights = self.weights  # type: ignore[attr-defined]
        schedule_id = tf.constant(runs.NO_SCHEDULE, tf.int64)
        if batches_lib.is_scheduled_batch(data):
            schedule_id = tf.cast(data[batches_lib.SCHEDULE_ID], tf.int64)
        step = optimizer.checked_step(
            [
                *self._batch_conditions(optimizer, data),
                (optimizer.seal.holds(weights), CHANGED),
                optimizer.may_begin(weights, schedule_id),
            ]
        )
        step = optimizer.note_first_step(step, schedule_id)
        x, y, sample_weight, rows = _as_drawn(data)
        checks = [step]
        if batches_lib.is_scheduled_batch(data):
            pin = optimizer.pin_schedule(data[batches_lib.SCHEDULE_ID], step)
            checks.extend([pin] if pin is not None else [])
        with tf.control_dependencies(checks):
            x = tf.nest.map_structure(tf.identity, x)
        clipped = self._compiled_clipping()(x, y, sample_weight, rows)
        return clipped, step, data

    def _build_for_training(self, data: Any) -> None:
        if not self.built:  # type: ignore[attr-defined]
            self(_contents(data)[0], training=False)  # type: ignore[operator]
        check_supported(self)

    def _batch_conditions(
        self, optimizer: PrivateOptimizer, data: Any
    ) -> list[tuple[tf.Tensor, str]]:
        """What must hold for the batch to be the one that the accountant analysed."""
        if not batches_lib.is_scheduled_batch(data):
            if optimizer.plan.participation.has_schedule:
                raise TypeError(
                    "The plan's accountant assumes the batches of its own sampler: the "
                    "training step takes only those of plan.batches(x, y)."
                )
            return []
        replicas = optimizer.strategy.num_replicas_in_sync
        part = data.get(batches_lib.PART, tf.constant([0, 1]))
        pinned = optimizer.schedule_id
        schedule_id = data[batches_lib.SCHEDULE_ID]
        plan_id = tf.constant(optimizer.plan.plan_id, tf.int64)
        conditions = [
            (
                tf.equal(
                    data[batches_lib.STEP], tf.cast(optimizer.iterations, tf.int64)
                ),
                "This batch is not the one that the plan has for this step: the "
                "accountant's assumption would be broken. Iterate over plan.batches(x, y) "
                "from the optimizer's step on, or use model.fit(plan.batches(x, y)).",
            ),
            (
                tf.reduce_all(tf.equal(part, [replica_id(), replicas])),
                "This is not the part of the batch that this replica has to take: "
                "examples would be used several times. Use model.fit.",
            ),
            (
                tf.equal(data[batches_lib.PLAN_ID], plan_id),
                "The batch belongs to another plan than the optimizer.",
            ),
            (
                tf.equal(pinned, -1) | tf.equal(pinned, schedule_id),
                "The run began with other data, or the same data in other places. Use the "
                "schedule of the plan that began it.",
            ),
        ]
        # Ids that are wrong have messages of their own.
        is_meant = tf.reduce_all(tf.stack([holds for holds, _ in conditions]))
        is_drawn = is_as_drawn(data) | ~is_meant
        return [*conditions, (is_drawn, batches_lib.EDITED)]

    def _private_optimizer(self) -> PrivateOptimizer:
        optimizer = getattr(self, "optimizer", None)
        if not isinstance(optimizer, PrivateOptimizer):
            raise TypeError(
                f"A private model trains only with a PrivateOptimizer, found "
                f"{type(optimizer).__name__}. Compile it with optimizer="
                f"tf_bandmf.keras.PrivateOptimizer(your_optimizer, plan), or use "
                f"tf_bandmf.keras.to_plain(model) to train without privacy. (Under "
                f"mixed_float16 give loss_scale_factor to PrivateOptimizer: the scale of "
                f"a LossScaleOptimizer depends on the data.)"
            )
        check_matmul_precision()
        strategy = self.distribute_strategy  # type: ignore[attr-defined]
        if self._num_replicas > 1 and optimizer.strategy is not strategy:
            raise ValueError(
                "Model and PrivateOptimizer belong to different distribution strategies: "
                "make both within strategy.scope()."
            )
        return optimizer

    def _compiled_clipping(self) -> Callable[..., ClippedGradients]:
        """The clipping, under XLA if compiled so.

        Only the clipping: assertions and noise stay outside, for XLA drops assertions.
        """
        optimizer = self._private_optimizer()
        plan = optimizer.plan

        def clipping(x: Any, y: Any, sample_weight: Any, rows: Any) -> ClippedGradients:
            return clipped_gradient_sums(
                self,
                x,
                y,
                sample_weight,
                l2_norm_clip=plan.l2_norm_clip,
                microbatch_size=self._microbatch_size,
                loss_scale_factor=optimizer.loss_scale_factor,
                rows=rows,
                automatic=optimizer.automatic,
            )

        if self.jit_compile and not self.run_eagerly:  # type: ignore[attr-defined]
            return tf.function(clipping, jit_compile=True)
        return clipping

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "train_step":
            raise AttributeError(
                "The training step of a private model is that of its class: derive a class "
                "whose train_step calls super().train_step(data)."
            )
        if name == "optimizer":
            value = without_dynamic_scale(value, getattr(self, "optimizer", None))
        super().__setattr__(name, value)

    def make_train_function(self, force: bool = False) -> Any:
        """As Keras', but never compiles the whole step with XLA (see above)."""
        jit_compile = self.jit_compile  # type: ignore[has-type]
        self.jit_compile = False
        before = self.train_function
        try:
            super().make_train_function(force)  # type: ignore[misc]
        finally:
            self.jit_compile = jit_compile
        if self.train_function is not before:
            self.train_function = in_turn(self, self.train_function)
        return self.train_function

    def get_compile_config(self) -> dict[str, Any]:
        """A copy, with the optimizer: Keras' .h5 writer removes it from the original.

        Without it a reloaded model would train with RMSprop and without privacy.
        """
        config = copy.deepcopy(super().get_compile_config())  # type: ignore[misc]
        optimizer = getattr(self, "optimizer", None)
        if config and optimizer is not None:
            config["optimizer"] = keras.saving.serialize_keras_object(optimizer)
        if config and self._microbatch_size is not None:
            config["microbatch_size"] = self._microbatch_size
        return config

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """As Keras', and with the microbatches of the saved model."""
        config = dict(config)
        self._microbatch_size = config.pop("microbatch_size", None)
        super().compile_from_config(config)  # type: ignore[misc]


def _restore_backup(model: keras.Model, callbacks: Any) -> None:
    """Lets `BackupAndRestore` restore before the data are asked for from its step on."""
    for callback in callbacks if isinstance(callbacks, (list, tuple)) else [callbacks]:
        if isinstance(callback, keras.callbacks.BackupAndRestore):
            callback.set_model(model)
            callback.on_train_begin()


class _CheckedLayers:
    """Layers that Keras, which saves whatever is in lists and tuples, does not see."""

    __slots__ = ("_layers",)

    def __init__(self, layers: Sequence[Any]) -> None:
        self._layers = tuple(layers)

    def are(self, layers: Sequence[Any]) -> bool:
        """Whether these are the layers, the same objects in the same order."""
        return list(map(id, layers)) == list(map(id, self._layers))


def without_dynamic_scale(new: Any, old: Any) -> Any:
    """What Keras' `compile` wraps into a LossScaleOptimizer under mixed_float16.

    Only what it wraps by itself: it has set the optimizer without the wrapper just before.
    """
    if (
        isinstance(new, keras.optimizers.LossScaleOptimizer)
        and isinstance(new.inner_optimizer, PrivateOptimizer)
        and new.inner_optimizer is old
    ):
        return old
    return new


def _unwrap_single(data: Any) -> Any:
    """A scheduled batch that `train_on_batch` put into a tuple."""
    if isinstance(data, tuple) and batches_lib.is_scheduled_batch(data[0]):
        if any(item is not None for item in data[1:]):
            raise ValueError("A scheduled batch holds its targets and weights itself.")
        return data[0]
    return data


def _as_drawn(data: Any) -> tuple[Any, Any, Any, Any]:
    """Inputs, targets, sample weights and, of units, the rows of a batch of any kind."""
    data = _unwrap_single(data)
    if batches_lib.is_scheduled_batch(data):
        inputs, targets, weights, rows = (data.get(key) for key in batches_lib.CONTENT)
        return inputs, targets, weights, rows
    return (*keras.utils.unpack_x_y_sample_weight(data), None)


def _contents(data: Any) -> tuple[Any, Any, Any]:
    """Inputs, targets and sample weights of a batch of any kind, row by row."""
    *contents, rows = _as_drawn(data)
    if rows is not None:
        contents = present_rows(contents, rows)
    return contents[0], contents[1], contents[2]


def _warn_of_private_monitors(callbacks: Any) -> None:
    """Callbacks that act on training metrics carry unnoised data into the weights."""
    callbacks = getattr(callbacks, "callbacks", callbacks)  # of a CallbackList
    for callback in callbacks if isinstance(callbacks, (list, tuple)) else [callbacks]:
        monitor = getattr(callback, "monitor", None)
        acts = getattr(callback, "save_best_only", True)
        if isinstance(callback, keras.callbacks.TerminateOnNaN):
            warnings.warn(
                f"{type(callback).__name__} stops on the training loss, an exact function "
                f"of the training data: one record decides whether training goes on, and "
                f"that is not covered by the guarantee. Leave it out: an example whose "
                f"loss or gradient is not finite contributes zero.",
                stacklevel=3,
            )
        if isinstance(monitor, str) and acts and not monitor.startswith("val_"):
            warnings.warn(
                f"{type(callback).__name__} acts on {monitor!r}, an exact function of the "
                f"training data: what it does is not covered by the guarantee. Monitor a "
                f"metric of public validation data (val_...).",
                stacklevel=3,
            )
