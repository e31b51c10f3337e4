"""Private models: `fit`, and the other methods that train, save and resume them."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import inspect
import os
import warnings
from collections.abc import Iterator
from typing import Any

import keras

from tf_bandmf.files import private as private_files
from tf_bandmf.keras.clipping import vouched_classes
from tf_bandmf.keras.compat.keras_objects import BuiltBefore, is_distributed
from tf_bandmf.keras.model import cautions, preparation
from tf_bandmf.keras.model.callbacks import refuse_shared_folder, restore_backup
from tf_bandmf.keras.model.fit_data import (
    check_inputs,
    check_passes,
    checked_data,
    scheduled,
)
from tf_bandmf.keras.model.preprocessing import of_adapted
from tf_bandmf.keras.model.reporting import (
    NoisyMetrics,
    evaluate_privately,
    warn_of_counts,
)
from tf_bandmf.keras.model.step import PrivateStep
from tf_bandmf.keras.model.tables import DENSE, StepSettings, with_releases
from tf_bandmf.keras.optimizer.private import PrivateOptimizer
from tf_bandmf.keras.resume.private_file import PrivateRun
from tf_bandmf.keras.run.counts import PrivateCounts
from tf_bandmf.planning.statement import PrivacyStatement
from tf_bandmf.sampling.batches import BatchSchedule

# The key of the private step's settings, in the optimizer's part of a compile config.
_STEP = "private_step"


class PrivateTraining(BuiltBefore, PrivateStep):
    """Mixin that trains a Keras model privately; put it before `keras.Model`.

        class MyModel(tf_bandmf.keras.extending.PrivateTraining, keras.Model): ...

    `make_private` does this for Sequential and Functional models. Evaluation,
    prediction and saving work as for the plain model.

    Formal guarantee: with a `PrivateOptimizer`, the training step is the only way in
    which the training data reach the weights: gradients are clipped for each example,
    summed, and noised as the plan says. Any other way raises before it computes anything.
    """

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
            `tf.data.Dataset` or generator that respects it. WARNING: nothing here can
            check this. By default, `Dataset.shuffle` has a new order in every pass, and
            a new order means a separation of 1.
          y: not used.
          private_state: path of a file of mode 0600 that keeps the run's secrets, so
            that it can be resumed from checkpoints; see
            `tf_bandmf.keras.resume.private_file`. Never share it. If it exists, the run
            is resumed from the model's weights; `epochs` then counts the epochs of the
            whole run, as with `BackupAndRestore`.
          **kwargs: as for `keras.Model.fit`. `epochs` times the steps per epoch must
            not exceed the remaining steps. `class_weight` multiplies an example's
            contribution by the weight of its class, divided by the largest weight.

        Raises:
          TypeError, ValueError: if the data are not the plan's, or the plan has fewer
            steps left than asked for, or the private state file would be in a folder of
            a callback. Nothing was trained then.
          RuntimeError: if the process rounds float32 products (TensorFloat-32): norms
            would be wrong. The message says how to turn it off.
          BudgetExceededError, LedgerError: if the plan's ledger does not let the run
            begin. Nothing was trained then.
          InvalidArgumentError: if something else changed the weights or the state of the
            inner optimizer between two steps.
        """
        optimizer = self._private_optimizer()
        preparation.refuse_preprocessor(self)
        x = checked_data(optimizer.plan, x, y, kwargs)
        optimizer.run.weighs_classes |= kwargs.get("class_weight") is not None
        self._training.is_quiet = kwargs.get("verbose") == 0
        batches, callbacks = x, kwargs.get("callbacks")
        # A stream is read before its first step only if building the model needs a batch.
        is_needed = is_distributed(self) or self._settings.tables != DENSE
        if self.built or is_needed or isinstance(x, BatchSchedule):
            self._prepare(x)
        kept = None
        if private_state is not None:
            refuse_shared_folder(private_state, callbacks)
            restore_backup(self, callbacks)
            x = self.begin_run(x, private_state)
            kept = self._training.run_file
            if kept is not None and kept.resumed:
                per_epoch = kwargs.get("steps_per_epoch") or x.steps_per_epoch
                done = optimizer.steps_taken // per_epoch
                kwargs["initial_epoch"] = max(done, kwargs.get("initial_epoch", 0))
        if isinstance(x, BatchSchedule):
            x = scheduled(self, x, kwargs)
        else:
            check_passes(x, optimizer.plan.participation, kwargs)
        # This is checked before gradients are compared, which would raise an obscure
        # error.
        cautions.refuse_outputs(self, getattr(batches, "ranges", {}))
        if optimizer.run.tables is not None:
            kwargs["callbacks"] = with_releases(callbacks, self)
        check_inputs(self, kwargs.get("validation_data"))
        labels = getattr(batches, "labels", ())
        cautions.warn(self, x, labels, callbacks, self._training.run_file is not None)
        # Callbacks run before the first step, which checks the weights again.
        optimizer.run.check(self.weights)
        try:
            with contextlib.ExitStack() as stack:
                if kept is not None and kept.resumed:
                    # The last epoch of a resumed run may be shorter: Keras would warn.
                    stack.enter_context(warnings.catch_warnings())
                    warnings.filterwarnings("ignore", "Your input ran out of data")
                history = super().fit(x, **{**kwargs, "shuffle": False})
            warn_of_counts(self)
            return history
        finally:
            optimizer.run.close_seal(self.weights)
            optimizer.run.reservation.note(optimizer.steps_taken)

    def begin_run(
        self,
        batches: BatchSchedule,
        private_state: str | os.PathLike[str] | None = None,
    ) -> BatchSchedule:
        """Begins or resumes a run for a custom loop; returns the batches of the run.

        `fit` does this itself. The run's secret sample follows from its key, so no
        other run has the same sample. To resume, load the weights and the optimizer's
        variables first:

            batches = model.begin_run(plan.batches(x, y), "run.private")
            for batch in batches.dataset(model.optimizer.steps_taken):
                model.train_on_batch(batch)

        Args:
          batches: batches of the plan.
          private_state: see `fit`; None for a run that no other process will resume.

        Returns:
          The batches of the run.

        Raises:
          TypeError: if the caller asserts the plan's separation: then nothing ensures
            that repeated steps see the same batches.
          ValueError: if the file belongs to another run, or has no record of the weights.
          PermissionError: if others may read the file.
          BlockingIOError: if another process uses the file.
        """
        if not isinstance(batches, BatchSchedule):
            raise TypeError(
                f"A run is resumed on the batches of its plan, found "
                f"{type(batches).__name__}. Where the caller makes the batches (MinSep), "
                f"nothing ensures that repeated steps see the same batches: such runs "
                f"cannot be resumed."
            )
        optimizer = self._private_optimizer()
        self._prepare(batches)
        if private_state is None:
            return optimizer.run.batches(batches)
        kept = self._training.run_file
        if kept is not None and kept.is_elsewhere(private_state):
            raise ValueError(
                f"This run is kept in {kept.path}, found private_state="
                f"{os.fspath(private_state)!r}: a run has one private state file, which "
                f"records all that the run has spent."
            )
        run = PrivateRun(os.fspath(private_state), self)
        batches = run.begin(batches)
        membership = optimizer.run.membership
        membership.refuse_second(self.weights, batches.schedule_id)
        if optimizer.steps_taken:
            membership.note(batches.schedule_id)
            # A new run reserves at its first step.
            optimizer.run.reservation.ensure()
        self._training.run_file = run
        return batches

    def release(self) -> None:
        """Brings the weights of lazy tables up to date; call it between two steps.

        With `make_private(tables="lazy")`, the layers' variables hold the last release
        until the next one. `fit` releases tables at the ends of epochs; `evaluate` and
        `predict` release them before they begin. Without lazy tables, this does nothing.

        Raises:
          InvalidArgumentError: if something else changed a table since its last release,
            or a step was interrupted.
        """
        self._private_optimizer().run.release()

    def _before_use(self) -> Any:
        """Releases tables; returns the run, or None if the optimizer is not private."""
        optimizer = getattr(self, "optimizer", None)
        run = optimizer.run if isinstance(optimizer, PrivateOptimizer) else None
        if run is not None and not run.is_restored():
            run.release()
        return run

    def make_test_function(self, force: bool = False) -> Any:
        """Makes the function of `evaluate`, after a release of tables."""
        self._before_use()
        return super().make_test_function(force)

    def make_predict_function(self, force: bool = False) -> Any:
        """Makes the function of `predict`, after a release of tables."""
        self._before_use()
        return super().make_predict_function(force)

    def evaluate_privately(
        self,
        x: Any,
        y: Any = None,
        *,
        metrics: Any = "accuracy",
        users: Any = None,
        batch_size: int = 256,
    ) -> NoisyMetrics:
        """Noisy metrics of private data; each call is one of the plan's evaluations.

            plan = tf_bandmf.plan(...).reserve(metrics=0.1, evaluations=10)
            ...
            model.evaluate_privately(x_held_out, y_held_out)

        The metrics are part of the run's release and covered by its statement: you may
        show them, stop training by them, or choose a checkpoint by them. The data may be
        held out or trained on. WARNING: each row is one unit; a duplicated record counts
        twice.

        Args:
          x: inputs, arrays [N, ...]; or a `tf.data.Dataset` of batches `(x, y)`. N is
            public.
          y: targets, arrays [N, ...].
          metrics: "accuracy", or `PrivateAccuracy`, `PrivateLoss`, `PrivateAUC`,
            `PrivateMean`, or a list of them, which share the noise budget: each of q
            metrics has sqrt(q) times the noise of a single metric.
          users: the user of each record, [N], if the plan hides users: the metric is
            the mean over users of the mean over a user's records.
          batch_size: batch size of the pass over arrays.

        Returns:
          The metrics by name, with `noise`: the standard deviations of their noise.

        Raises:
          ValueError: if the plan has reserved no evaluations, none is left, the run has
            not taken a step, or the data do not fit.
          UnsupportedModelError: if the model cannot be run on each record by itself.
          InvalidArgumentError: if something else changed the weights since the last step.
          RuntimeError: within a graph.
        """
        return evaluate_privately(self, x, y, metrics, users, batch_size)

    def private_counts(self) -> PrivateCounts | None:
        """Noisy shares of clipped, zero and bad examples of the steps so far.

        Returns:
          The shares. None before the first step, or if the plan has no counts: see
          `plan.reserve(counts=0.01)`.
        """
        optimizer = self._private_optimizer()
        return optimizer.run.counts.value(optimizer.steps_taken)

    def privacy_statement(self) -> PrivacyStatement:
        """The statement of the run, including remarks on the layers of this model.

        Returns:
          `optimizer.statement()`; its remarks also name layers that were adapted to data,
          and the classes that the user vouched for with `register_per_example_layer`.

        Raises:
          TypeError: if the model is not compiled with a PrivateOptimizer.
          ValueError: see `optimizer.statement`.
        """
        optimizer = self._private_optimizer()
        remarks, classes = of_adapted([self]), vouched_classes(self)
        if classes:
            remarks += (
                f"The user vouches that layers of the classes {', '.join(classes)} act on "
                f"each example alone; that was not shown.",
            )
        remarks = (*optimizer.clipping.remarks(), *remarks)
        return optimizer.run.statement(None, remarks, self.weights)

    def load_weights(self, *args: Any, **kwargs: Any) -> Any:
        """Loads weights as Keras does; the run's statement then mentions it."""
        super().load_weights(*args, **kwargs)
        self._training.were_loaded = True

    def load_own_variables(self, store: Any) -> None:
        """Loads weights as Keras does; Keras calls this for models that it loads."""
        super().load_own_variables(store)
        self._training.were_loaded = True

    def set_weights(self, weights: Any) -> None:
        """Sets weights as Keras does; the run's statement then mentions it."""
        super().set_weights(weights)
        self._training.were_loaded = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the model; raises RuntimeError if a plain model is training it."""
        preparation.refuse_plain_outer_training(
            self, PrivateTraining, kwargs.get("training")
        )
        return super().__call__(*args, **kwargs)

    def save(self, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        """Saves as Keras does; a run with a private state file can be resumed from it.

        In such a run, the file is replaced as a whole: an interruption leaves the
        previous file.
        """
        with self._recorded(filepath, args, kwargs) as path:
            return super().save(path, *args, **kwargs)

    def save_weights(self, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        """Saves the weights as Keras does; see `save`."""
        with self._recorded(filepath, args, kwargs) as path:
            return super().save_weights(path, *args, **kwargs)

    def export(self, *args: Any, **kwargs: Any) -> Any:
        """Exports the model as Keras does, after a release of tables."""
        self._before_use()
        return super().export(*args, **kwargs)

    @contextlib.contextmanager
    def _recorded(self, filepath: Any, args: Any, kwargs: Any) -> Iterator[Any]:
        """Announces a checkpoint to the run; yields the path to write it to."""
        run, kept = self._before_use(), self._training.run_file
        if run is not None:
            run.note_weights(self.weights)
        if kept is None or kept.run is not run:
            yield filepath
            return
        kept.record()
        replaces = not args and kwargs.get("overwrite", True)
        is_usual = kwargs.keys() <= {"overwrite", "include_optimizer"}
        name = str(filepath)
        is_file = name.endswith((".keras", ".h5")) and "://" not in name
        if replaces and is_usual and is_file:
            with private_files.replaced(filepath) as path:
                yield path
        else:
            yield filepath

    def _prepare(self, data: Any) -> None:
        """Builds model and optimizer."""
        preparation.build(self, None if self.built else next(iter(data)))

    def train_on_batch(self, x: Any, y: Any = None, **kwargs: Any) -> Any:
        """Trains as Keras does on one batch; `x` is a batch of `plan.batches`.

        Under `MinSep`, `x` and `y` are inputs and targets, and the caller enforces their
        separation.
        """
        optimizer = self._private_optimizer()
        optimizer.run.weighs_classes |= kwargs.get("class_weight") is not None
        if preparation.num_replicas(self) > 1:
            raise NotImplementedError(
                "Keras gives the whole batch of train_on_batch to every replica: each "
                "example would count several times. Use model.fit."
            )
        preparation.refuse_preprocessor(self)
        if is_distributed(self):
            self._prepare([(x, y, kwargs.get("sample_weight"))])
        try:
            return super().train_on_batch(x, y, **kwargs)
        finally:
            optimizer.run.close_seal(self.weights)

    def get_compile_config(self) -> dict[str, Any]:
        """A copy of the config, because Keras' .h5 writer removes its optimizer.

        Without the copy, a reloaded model would train with RMSprop and without privacy.
        The settings of the private step are stored with the optimizer's own, where plain
        models ignore them: `keras.models.clone_model` compiles a plain one by this config.
        """
        config = copy.deepcopy(super().get_compile_config())
        optimizer = getattr(self, "optimizer", None)
        if config and optimizer is not None:
            config["optimizer"] = {
                **keras.saving.serialize_keras_object(optimizer),
                _STEP: dataclasses.asdict(self._settings),
            }
        return config

    def _resolve_auto_jit_compile(self) -> bool:
        """Resolves `jit_compile="auto"` as Keras does, except to False for lazy tables.

        In Keras, "auto" means True on a GPU. XLA cannot handle a number of rows that is
        not known in advance.
        """
        return self._settings.tables == DENSE and super()._resolve_auto_jit_compile()

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compiles as Keras does, and with the settings of the saved model's step.

        Models that override `compile`, such as those of KerasHub, keep the optimizer
        that they are created with. If their `compile` accepts the saved arguments, it is
        called with them.
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
