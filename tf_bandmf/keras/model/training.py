"""Private models: `fit`, and the other methods that train, save and resume them.

The module `programs` implements a training step; `docs/inside.md` explains it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import os
import warnings
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import keras
import tensorflow as tf

from tf_bandmf.files import private as private_files
from tf_bandmf.keras.clipping.forward.supported import STEP_METHODS, refuse_own_step
from tf_bandmf.keras.clipping.independence.registration import vouched_classes
from tf_bandmf.keras.clipping.tensors.precision import prepare_process
from tf_bandmf.keras.compat.keras_objects import (
    BuiltBefore,
    all_layers,
    compile_loss,
    is_distributed,
)
from tf_bandmf.keras.metrics.counts import PrivateCounts
from tf_bandmf.keras.metrics.evaluation import evaluate_privately
from tf_bandmf.keras.model import callbacks as callbacks_lib
from tf_bandmf.keras.model import cautions, fit_data, preparation
from tf_bandmf.keras.model.preprocessing import of_adapted
from tf_bandmf.keras.model.programs import Programs
from tf_bandmf.keras.model.settings import StepSettings
from tf_bandmf.keras.optimizer.private import (
    NoisyGradients,
    PrivateOptimizer,
    check_inner,
    private_optimizer_of,
)
from tf_bandmf.keras.resume.private_file import PrivateFile
from tf_bandmf.keras.run import admission
from tf_bandmf.keras.tables.choice import DENSE
from tf_bandmf.planning.statement import PrivacyStatement
from tf_bandmf.sampling.batches import BatchSchedule

if TYPE_CHECKING:
    # The mixin uses attributes of `keras.Model`, which lacks most type annotations.
    _Model: TypeAlias = Any
else:
    _Model = object

# The key of the step's settings within the optimizer's entry of a compile config.
_STEP = "private_step"


@dataclasses.dataclass
class TrainingState:
    """State that belongs to a private model, but that Keras neither tracks nor saves.

    Attributes:
      programs: the cached programs of the training step, as (cache key, programs,
        objects). The key lists everything that the programs depend on, and contains the
        ids of the objects.
      evaluation: the cached graph of the last private evaluation, as a tuple of the
        same form as `programs`.
      plain_steps: number of steps that the model took with a plain optimizer, before it
        was made private.
      were_loaded: True if the model's weights were loaded or set.
    """

    programs: tuple[Any, Any, list[Any]] | None = None
    evaluation: tuple[Any, Any, list[Any]] | None = None
    plain_steps: int = 0
    were_loaded: bool = False


class PrivateTraining(BuiltBefore, _Model):
    """Mixin that trains a Keras model privately; list it before `keras.Model`.

        class MyModel(tf_bandmf.keras.extending.PrivateTraining, keras.Model): ...

    `make_private` creates such a class for the model that it gets. Evaluation,
    prediction and saving work as for the plain model.

    Formal guarantee: with a `PrivateOptimizer`, the training data reach the weights
    only through the training step, in which gradients are clipped for each example,
    summed, and noised as the plan says. Any other attempt to train raises an error
    before it computes anything.
    """

    _settings = StepSettings()

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        *,
        private_state: str | os.PathLike[str] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Trains as `keras.Model.fit` does, on the batches of the plan.

            model.fit(
                plan.batches(x, y),
                epochs=10,
                private_state="run.private",
                callbacks=[keras.callbacks.BackupAndRestore("backup")],
            )

        If the run is interrupted, restarting the same program resumes it.

        Args:
          x: `plan.batches(...)`, which fixes the batches of all epochs. If the caller
            asserts the plan's min separation (`MinSep`), x is instead a
            `tf.data.Dataset` or generator that respects it. WARNING: `fit` cannot check
            this. By default, `Dataset.shuffle` uses a new order in every pass, so the
            separation is only 1.
          y: must be None, because the batches contain the targets.
          private_state: path of a file of mode 0600 that stores the run's secrets, so
            that the run can be resumed from checkpoints; see
            `tf_bandmf.keras.resume.private_file`. Never share it. If it exists, the run
            is resumed from the model's weights; `epochs` then includes the epochs
            before the interruption, as with `BackupAndRestore`.
          **kwargs: as for `keras.Model.fit`. `epochs` times the steps per epoch must
            not exceed the remaining steps. `class_weight` multiplies an example's
            contribution by the weight of its class, divided by the largest weight if
            that is above 1.

        Raises:
          TypeError, ValueError: if the data are not the plan's, the plan has too few
            steps left, or the private state file would be in the folder of a
            callback. Nothing was trained then.
          RuntimeError: if TensorFlow may round float32 products in this process, which
            would make norms wrong. The message says how to turn rounding off.
          BudgetExceededError, LedgerError: if the ledger of the plan does not allow the
            run. Nothing was trained then.
          InvalidArgumentError: if something else changed the weights or the state of the
            inner optimizer between two steps.
        """
        optimizer = self._optimizer_for_data()
        x = fit_data.checked_data(optimizer.plan, x, y, kwargs)
        optimizer.run.weighs_classes |= kwargs.get("class_weight") is not None
        callbacks, run = kwargs.get("callbacks"), optimizer.run
        if private_state is not None:
            fit_data.refuse_stream(x)
        x = self._begun(x, private_state, callbacks)
        # The first step repeats this check, after callbacks have run.
        run.check()
        is_resumed = private_state is not None and run.file.resumed
        batches, x = x, fit_data.data_for_keras(self, x, kwargs, is_resumed)
        # If the model has too few outputs for its loss, the later check of gradients
        # would raise an obscure error.
        cautions.refuse_outputs(self, getattr(batches, "ranges", {}))
        fit_data.check_validation(self, kwargs)
        if self._settings.tables != DENSE:
            # This callback runs before the caller's callbacks, so that these see
            # released tables at the end of an epoch.
            releases = keras.callbacks.LambdaCallback(
                on_epoch_end=lambda epoch, logs: self.release()
            )
            kwargs["callbacks"] = [releases, *callbacks_lib.each_callback(callbacks)]
        cautions.warn(self, x, getattr(batches, "labels", ()), callbacks)
        try:
            with warnings.catch_warnings():
                if is_resumed:
                    # Keras would warn if the last epoch of a resumed run is shorter.
                    warnings.filterwarnings("ignore", "Your input ran out of data")
                history = super().fit(x, **{**kwargs, "shuffle": False})
            run.counts.warn(run.step)
            return history
        finally:
            run.close_seal()
            run.note_steps()

    def begin_run(
        self,
        batches: BatchSchedule,
        private_state: str | os.PathLike[str] | None = None,
    ) -> BatchSchedule:
        """Begins or resumes a run for a custom loop; returns the batches of the run.

        `fit` does this itself. Which examples the run samples is secret and follows
        from its key, so no other run has the same sample. To resume, load the weights
        and the optimizer's variables first:

            batches = model.begin_run(plan.batches(x, y), "run.private")
            for batch in batches.dataset(model.optimizer.steps_taken):
                model.train_on_batch(batch)

        Args:
          batches: batches of the plan.
          private_state: path of the file that stores the run's secrets, as in `fit`;
            None for a run that no other process will resume.

        Returns:
          The batches of the run.

        Raises:
          TypeError: if the caller makes the batches (`MinSep`), because nothing ensures
            then that repeated steps see the same batches.
          ValueError: if the batches belong to another plan, or if the file belongs to
            another run or has no record of the weights.
          RuntimeError: if another run of this process used the same weights or
            examples, and `additional_run=True` was not set.
          InvalidArgumentError: if the optimizer was restored, and `private_state` is
            None.
          PermissionError: if others may read the file.
          BlockingIOError: if another process uses the file.
        """
        fit_data.refuse_stream(batches)
        return self._begun(batches, private_state)

    def _begun(self, batches: Any, private_state: Any, callbacks: Any = None) -> Any:
        """Begins or resumes a run; returns its batches.

        Args:
          batches: batches of the plan; or a stream, which is returned, and is read only
            if a batch is needed to build the model.
          private_state: as in `begin_run`.
          callbacks: as in `fit`. The backup of a `BackupAndRestore` is restored first.
        """
        run = self._private_optimizer().run
        is_schedule = isinstance(batches, BatchSchedule)
        if private_state is not None:
            callbacks_lib.refuse_shared_folder(private_state, callbacks)
        if is_schedule and batches.plan_id != run.plan.plan_id:
            raise ValueError(admission.OTHER_PLAN)
        if is_schedule or self.built or is_distributed(self):
            preparation.build(self, batches)
        if not is_schedule:
            return batches
        file = run.file
        if private_state is None:
            run.refuse_restored()
            batches = run.batches(batches)
        else:
            callbacks_lib.restore_backup(self, callbacks)
            file = PrivateFile(private_state, self)
            if run.file is not None and run.file.path != file.path:
                raise ValueError(
                    f"This run must keep private_state={run.file.path}, but found "
                    f"{file.path}. For a new run, make a new PrivateOptimizer."
                )
            batches = file.begin(batches)
        admission.refuse_second(run, batches.schedule_id)
        if run.step:
            admission.record(run, batches.schedule_id)
        run.file = file
        return batches

    def train_on_batch(self, x: Any, y: Any = None, **kwargs: Any) -> Any:
        """Trains as Keras does on one batch; `x` is a batch of `plan.batches`.

        If the plan uses `MinSep`, `x` and `y` are inputs and targets, and the caller
        ensures the min separation.
        """
        optimizer = self._optimizer_for_data("train_on_batch")
        preparation.given((x, y, kwargs.get("class_weight")))
        optimizer.run.weighs_classes |= kwargs.get("class_weight") is not None
        if is_distributed(self):
            preparation.build(self, [(x, y, kwargs.get("sample_weight"))])
        try:
            return super().train_on_batch(x, y, **kwargs)
        finally:
            optimizer.run.close_seal()

    @tf.autograph.experimental.do_not_convert
    def private_gradients(self, batch: Any) -> NoisyGradients:
        """Returns the noisy mean gradient of a batch, for custom training loops.

            for batch in plan.batches(x, y).dataset(model.optimizer.steps_taken):
                noisy = model.private_gradients(batch)
                model.optimizer.apply_noisy(noisy)

        This takes one step of the plan, with the same checks as in `fit`.
        Post-processing the gradients costs no privacy: `noisy.map(function)` changes
        them, and `apply_noisy(noisy, update)` applies them by a custom rule. They must
        be applied before the next step.

        Args:
          batch: a batch of `plan.batches`; under `MinSep`, `(x, y)` or
            `(x, y, sample_weight)`.

        Returns:
          The gradients. Metrics are not returned: they would be exact functions of the
          data.

        Raises:
          TypeError: if the model is not compiled with a PrivateOptimizer, or the batch is
            not one of the plan's.
          InvalidArgumentError: in the same cases as `fit`.
          NotImplementedError: on several replicas.
        """
        optimizer = self._optimizer_for_data("private_gradients")
        batch = preparation.given(batch)
        with optimizer.run.turn:
            preparation.build(self, [batch])
            if optimizer.run.tables is not None:
                raise NotImplementedError(
                    "private_gradients does not support lazy tables. Use model.fit or "
                    "train_on_batch, or make_private(model, tables='dense')."
                )
            optimizer.run.start()
            step = optimizer.steps_taken
            try:
                noisy = self._programs(batch, applies=False).noisy_gradients(batch)
            finally:
                optimizer.run.close_seal()
        return NoisyGradients(noisy, step, optimizer)

    # The methods below take training steps.

    def train_step(self, data: Any) -> NoReturn:
        """Raises RuntimeError: a private step consists of programs that Python calls."""
        raise RuntimeError(
            "A private model has no train_step. Call model.fit or model.train_on_batch, "
            "or call model.private_gradients in your own training loop."
        )

    def make_train_function(self, force: bool = False) -> Any:
        """Sets Keras' train function to one that calls the programs of each step."""
        run = self._private_optimizer().run
        programs: Programs | None = None

        def in_turn(iterator: Any) -> dict[str, Any]:
            """Takes the steps of one execution of Keras' loop; threads take turns.

            If two threads took the same step at the same time, both would use its
            noise. With turns, the second thread is at the next step, and an error is
            raised if its batch belongs to the step that was taken.
            """
            nonlocal programs
            # This check is repeated for each execution, because a callback could have
            # changed TensorFlow's settings, so that it rounds products.
            prepare_process()
            logs, spec = None, getattr(iterator, "element_spec", None)
            with run.turn:
                for _, batch in zip(range(self.steps_per_execution), iterator):
                    batch = preparation.given(batch)
                    if programs is None:
                        preparation.build(self, [batch])
                        run.start()
                        programs = self._programs(batch, spec)
                    logs = programs.step(batch)
            if logs is None:
                raise StopIteration
            return logs

        # This replaces any other train function, whose steps would not be private.
        self.train_function = in_turn
        return in_turn

    def _programs(
        self, batch: Any = None, spec: Any = None, applies: bool = True
    ) -> Programs:
        """Returns the programs of the training step, cached until a setting changes.

        Args:
          batch: a batch for which the programs are prepared; None if no steps will be
            taken.
          spec: the specs that all batches match, if they are known.
          applies: True for steps that apply their gradients.
        """
        parts = [self.optimizer, self.optimizer.run.secrets, compile_loss(self)]
        parts += [*self.trainable_variables, *all_layers(self)]
        key = bool(self.jit_compile), self._settings, [*map(id, parts)]
        traced = self._training.programs
        if traced is None or traced[0] != key:
            # The cache keeps the objects in `parts` alive, so no new object gets one of
            # their ids.
            self._training.programs = traced = (key, Programs(self), parts)
        if batch is not None:
            traced[1].prepare(batch, spec, applies)
        return traced[1]

    def _private_optimizer(self) -> PrivateOptimizer:
        """Returns the private optimizer of the compiled model, after checks for a step.

        Raises:
          TypeError: if the model is compiled with an optimizer that is not private.
          ValueError: if the optimizer belongs to another distribution strategy, or its
            inner optimizer accumulates gradients.
          RuntimeError: if TensorFlow may round float32 products, or runs `tf.function`s
            or the model's steps eagerly.
        """
        optimizer = private_optimizer_of(self)
        prepare_process()
        if self.run_eagerly:
            raise RuntimeError(
                "A private model cannot train eagerly: compile it without run_eagerly="
                "True. To debug a model eagerly, train it before make_private(model)."
            )
        check_inner(optimizer.inner_optimizer)
        is_other = optimizer.run.strategy is not self.distribute_strategy
        if is_other and self.distribute_strategy.num_replicas_in_sync > 1:
            raise ValueError(
                "The model and its PrivateOptimizer have different distribution "
                "strategies. Make both inside the same `with strategy.scope():`."
            )
        if not optimizer.steps_taken:
            optimizer.run.were_loaded |= self._training.were_loaded
            optimizer.run.plain_steps = self._training.plain_steps
        optimizer.run.weights = self.weights
        return optimizer

    def _optimizer_for_data(self, method: str | None = None) -> PrivateOptimizer:
        """Returns the private optimizer, for a training method that takes data.

        Args:
          method: the method's name if it supports only one replica; None if it supports
            any number of replicas.
        """
        optimizer = self._private_optimizer()
        preparation.refuse_preprocessor(self)
        if method is not None and not tf.executing_eagerly():
            raise RuntimeError(
                f"{method} must not be called inside a tf.function: a step could be "
                f"repeated, and one record could stop the program with an error."
            )
        if method is not None and self.distribute_strategy.num_replicas_in_sync > 1:
            raise NotImplementedError(
                f"{method} supports only one replica: with more, each example would be "
                f"counted several times. Use one replica, or train by model.fit(...)."
            )
        return optimizer

    @functools.cached_property
    def _training(self) -> TrainingState:
        """The model's `TrainingState`, which is not saved in files."""
        return TrainingState()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # Another base class that precedes this mixin may override its methods.
        ours = vars(PrivateTraining)
        names = ours.keys() & STEP_METHODS
        refuse_own_step(cls, [n for n in names if getattr(cls, n) is not ours[n]])

    def __setattr__(self, name: str, value: Any) -> None:
        if name in STEP_METHODS:
            refuse_own_step(type(self), [name])
        if name == "optimizer":
            value = preparation.without_dynamic_scale(value)
        super().__setattr__(name, value)

    # The methods below release tables, make statements, and save and load models.

    def release(self) -> None:
        """Brings the weights of lazy tables up to date; call it between two steps.

        With `make_private(tables="lazy")`, the variables of the tables' layers change
        only when the tables are released. `fit` releases them at the end of each epoch;
        `evaluate` and `predict` release them before they begin. Without lazy tables,
        this method does nothing.

        Raises:
          InvalidArgumentError: if something else changed a table since its last release,
            or a step was interrupted.
        """
        self._private_optimizer().run.release()

    @property
    def _run(self) -> Any:
        """Returns the optimizer's run; None if the optimizer is not private."""
        return getattr(getattr(self, "optimizer", None), "run", None)

    def _before_use(self) -> None:
        """Releases the lazy tables, unless no further step is allowed."""
        if self._run is not None and not self._run.is_restored():
            self._run.release()

    def make_test_function(self, force: bool = False) -> Any:
        """Releases the lazy tables, then makes Keras' test function."""
        self._before_use()
        return super().make_test_function(force)

    def make_predict_function(self, force: bool = False) -> Any:
        """Releases the lazy tables, then makes Keras' predict function."""
        self._before_use()
        return super().make_predict_function(force)

    evaluate_privately = evaluate_privately

    def private_counts(self) -> PrivateCounts | None:
        """Returns noisy shares of clipped, zero and invalid examples.

        Returns:
          The shares over all steps so far; None before the first step, or if the plan
          reserves no budget for counts (see `plan.reserve(counts=0.01)`).
        """
        optimizer = self._private_optimizer()
        return optimizer.run.counts.value(optimizer.steps_taken)

    def privacy_statement(self, unit: str | None = None) -> PrivacyStatement:
        """Returns the run's privacy statement, with remarks on this model's layers.

        Args:
          unit: the privacy unit, such as "one device"; by default, the plan's unit.
            `Plan.statement` says what the caller asserts by naming a unit.

        Returns:
          `optimizer.statement()`; its remarks also name layers that were adapted to data,
          and the classes that the user vouched for with `register_per_example_layer`.

        Raises:
          TypeError: if the model is not compiled with a PrivateOptimizer.
          ValueError: for several runs on the same weights or examples, if no joint
            epsilon is known, or if `unit` is None and their privacy units differ.
        """
        optimizer = self._private_optimizer()
        remarks, classes = of_adapted([self]), vouched_classes(self)
        if classes:
            remarks += (
                f"The user vouches that layers of the classes {', '.join(classes)} act on "
                f"each example alone; that was not shown.",
            )
        remarks = (*optimizer.clipping.remarks(), *remarks)
        return optimizer.run.statement(unit, remarks)

    def load_weights(self, *args: Any, **kwargs: Any) -> Any:
        """Loads weights as Keras does; the run's statement says that it was done."""
        if self.built and isinstance(self.optimizer, PrivateOptimizer):
            # The file may contain the optimizer's variables, so they are created first.
            preparation.build(self)
        super().load_weights(*args, **kwargs)
        self._training.were_loaded = True

    def load_own_variables(self, store: Any) -> None:
        """Loads weights as Keras does; Keras calls this for models that it loads."""
        super().load_own_variables(store)
        self._training.were_loaded = True

    def set_weights(self, weights: Any) -> None:
        """Sets weights as Keras does; the run's statement says that it was done."""
        super().set_weights(weights)
        self._training.were_loaded = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the model; raises RuntimeError if a plain model is training it."""
        preparation.refuse_plain_outer_training(
            self, PrivateTraining, kwargs.get("training")
        )
        return super().__call__(*args, **kwargs)

    def save(self, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        """Saves as Keras does, to a file from which the run can be resumed.

        Resuming requires a private state file. With it, the saved file is replaced
        atomically: if saving is interrupted, the previous file remains.
        """
        with self._recorded(filepath, args, kwargs) as path:
            return super().save(path, *args, **kwargs)

    def save_weights(self, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        """Saves the weights as Keras does; the run can be resumed from the file.

        See `save`.
        """
        with self._recorded(filepath, args, kwargs) as path:
            return super().save_weights(path, *args, **kwargs)

    def export(self, *args: Any, **kwargs: Any) -> Any:
        """Releases the lazy tables, then exports the model as Keras does."""
        self._before_use()
        return super().export(*args, **kwargs)

    def _recorded(self, filepath: Any, args: Any, kwargs: Any) -> Any:
        """Records a checkpoint in the private state file, before Keras saves it.

        Returns:
          A context in which to save it; its value is the path to which to save.
        """
        self._before_use()
        run, name = self._run, str(filepath)
        if run is not None:
            run.note_weights()
        if run is not None and run.file is not None:
            run.file.record()
            replaces = not args and kwargs.get("overwrite", True)
            if replaces and name.endswith((".keras", ".h5")) and "://" not in name:
                return private_files.replaced(filepath)
        return contextlib.nullcontext(filepath)

    def get_compile_config(self) -> dict[str, Any]:
        """Returns the compile config, with the optimizer that the .h5 writer removes.

        Without the optimizer, a reloaded model would train with RMSprop and without
        privacy. The settings of the private step are stored in the optimizer's entry,
        because plain models ignore them there. For example, `keras.models.clone_model`
        compiles a plain model from this config.
        """
        config = super().get_compile_config()
        optimizer = getattr(self, "optimizer", None)
        if config and optimizer is not None:
            config["optimizer"] = {
                **keras.saving.serialize_keras_object(optimizer),
                _STEP: dataclasses.asdict(self._settings),
            }
        return config

    def _resolve_auto_jit_compile(self) -> bool:
        """Resolves `jit_compile="auto"`: False for lazy tables, else as Keras does.

        With lazy tables, the number of rows that a step reads is not known in advance,
        which XLA does not support.
        """
        return self._settings.tables == DENSE and super()._resolve_auto_jit_compile()

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compiles as Keras does, and restores the saved settings of the private step.

        Some models override `compile`, such as those of KerasHub. If their `compile`
        does not accept the saved arguments, they keep the optimizer that they have.
        """
        optimizer = config.get("optimizer")
        step = optimizer.get(_STEP, {}) if isinstance(optimizer, dict) else {}
        self._settings = StepSettings(**step)
        try:
            inspect.signature(self.compile).bind(**config)
        except TypeError:
            super().compile_from_config(config)
            return
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.built:
            preparation.build(self)
