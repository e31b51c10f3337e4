"""The private training step, from top to bottom.

    1. The run admits the batch.
    2. Each example's gradient is formed and clipped; the clipped ones are summed.
    3. The run adds the noise of the step.
    4. The inner optimizer applies what is released.

`docs/inside.md` walks through it with the files' names.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Callable, TypeAlias

import tensorflow as tf

from tf_bandmf.keras.clipping import (
    ClippedGradients,
    Same,
    bad_values_become_nan,
    clipped_gradient_sums,
    metrics_change_no_weights,
    present_rows,
    regularization_gradients,
    update_reads_no_metrics,
    update_runs_no_host_code,
)
from tf_bandmf.keras.compat.keras_objects import (
    all_layers,
    compile_loss,
    is_distributed,
    loss_tracker,
)
from tf_bandmf.keras.model import preparation
from tf_bandmf.keras.model.batch_contents import as_drawn, shares, unwrap_single
from tf_bandmf.keras.model.guards import announced, in_turn, refuse_other_loops, refused
from tf_bandmf.keras.model.metric_errors import metrics_of
from tf_bandmf.keras.model.preprocessing import refuse_preprocessor
from tf_bandmf.keras.model.training_state import TrainingState, state_of
from tf_bandmf.keras.model.variable_making import build_metrics
from tf_bandmf.keras.optimizer.noisy_gradients import NoisyGradients
from tf_bandmf.keras.optimizer.private import PrivateOptimizer
from tf_bandmf.keras.resume.identity import random_states
from tf_bandmf.keras.run.run import Run
from tf_bandmf.keras.run.secrets import replica_id
from tf_bandmf.keras.run.tables import LookedUpRows
from tf_bandmf.sampling import batches as batches_lib

if TYPE_CHECKING:
    from tf_bandmf.keras.resume.private_file import PrivateRun

    # Its attributes are those of `keras.Model`, which has few types.
    _Model: TypeAlias = Any
else:
    _Model = object


class PrivateStep(_Model):
    """Mixin with the training step of `PrivateTraining`; see there."""

    # Set by Keras.
    jit_compile: Any
    train_function: Any

    # Examples whose gradients are held in memory together; None for the whole batch.
    _microbatch_size: int | None = None
    # Which tables get their noise when their rows are read, and when they are released.
    _tables: str | tuple[str, ...] = "dense"
    _release_every: int | None = None

    # In a custom loop, AutoGraph would convert all of this library, for seconds.
    @tf.autograph.experimental.do_not_convert
    def train_step(self, data: Any) -> dict[str, Any]:
        """One private step; see the class."""
        if tf.executing_eagerly():
            preparation.refuse_eager_steps()
        with announced("tracing the private training step.", self._training.is_quiet):
            return self._train_step(data)

    def _train_step(self, data: Any) -> dict[str, Any]:
        run = self._run_for(data)
        run.refuse_trained(self._training.plain_steps)
        data = unwrap_single(data)
        # 1. The run admits the batch: it is the plan's for this step, and nothing that
        #    should not have changed since the step before has.
        admitted = run.admit(data, self.weights, random_states(self))
        # 2. Each example's gradient is formed and clipped; the clipped ones are summed.
        looked_up = self._brought_up_to_date(data, admitted.step)
        clipped = self._clipped(data, admitted.step)
        x, y, sample_weight, rows = as_drawn(data)
        seen = (x, y, clipped.outputs, sample_weight)
        if rows is not None:
            seen = present_rows(seen, rows)
        elif batches_lib.is_padded(data):
            # Padding comes last, and counts in no metric.
            count = batches_lib.count_examples(data, x)
            seen = tf.nest.map_structure(
                lambda leaf: leaf[:count] if tf.is_tensor(leaf) else leaf, seen
            )
        if not self._is_distributed:
            build_metrics(self, *seen)
        # The first replica alone: the others resume among each other's metrics.
        first = replica_id() == 0
        with update_reads_no_metrics(self) if first else contextlib.nullcontext():
            # 3. The run adds the noise of the step.
            variables = self.trainable_variables
            penalties = self._penalties()
            noisy = run.privatize(clipped, variables, admitted, penalties, looked_up)
            # 4. The inner optimizer applies what is released.
            run.apply(noisy, variables)
        run.renew_seal(self.weights)
        return self._logs(data, clipped, seen)

    def _run_for(self, data: Any) -> Run:
        """The run of a step, with model and optimizer built for such data.

        Raises:
          RuntimeError: if the model's gradients are still to be checked.
        """
        if preparation.self_check_is_due(self):
            raise RuntimeError(
                "The per-example gradients of this model were not checked yet: train with "
                "model.fit or model.train_on_batch, or give self_check=False to "
                "make_private if you have checked them."
            )
        optimizer = self._private_optimizer()
        preparation.build(self, optimizer, data)
        return optimizer.run

    def _brought_up_to_date(self, data: Any, step: tf.Tensor) -> list[LookedUpRows]:
        """The rows of lazy tables that a batch reads, with their noise up to a step."""
        tables = self._private_optimizer().run.tables
        if tables is None and self._tables not in ("dense", "auto"):
            raise RuntimeError(
                "The optimizer was built without the model, so that its run has no "
                "tables='lazy'. Compile the model with a new PrivateOptimizer, and let "
                "model.fit or model.train_on_batch build it."
            )
        if tables is None:
            return []
        x, _, _, rows = _admitted_contents(data, step)
        return tables.bring_up_to_date(self._training.looked_up(x, rows), step)

    def _clipped(self, data: Any, step: tf.Tensor) -> ClippedGradients:
        """The clipped gradients of a batch that was admitted to a step."""
        x, y, sample_weight, rows = _admitted_contents(data, step)
        clipped = self._compiled_clipping()(x, y, sample_weight, rows, shares(data))
        if not batches_lib.is_padded(data):
            return clipped
        # Padding comes last, and is nobody's.
        count = batches_lib.count_examples(data, x)
        is_there = tf.range(tf.size(clipped.outcomes)) < count
        return clipped._replace(outcomes=tf.where(is_there, clipped.outcomes, 0))

    def _compiled_clipping(self) -> Callable[..., ClippedGradients]:
        """The clipping, compiled by XLA if the model is.

        Only the clipping: assertions and noise stay outside, because XLA drops
        assertions.
        """
        optimizer = self._private_optimizer()

        def clipping(
            x: Any, y: Any, sample_weight: Any, rows: Any, shares: Any = None
        ) -> ClippedGradients:
            scales = None
            if optimizer.clipping.scaling is not None:
                with update_reads_no_metrics(self):
                    scales = optimizer.scales()
            return clipped_gradient_sums(
                self,
                x,
                y,
                sample_weight,
                l2_norm_clip=optimizer.plan.l2_norm_clip,
                microbatch_size=self._microbatch_size,
                loss_scale_factor=optimizer.loss_scale_factor,
                rows=rows,
                shares=shares,
                clipping=optimizer.clipping,
                scales=scales,
                readers=None
                if optimizer.run.tables is None
                else optimizer.run.tables.readers,
            )

        if self.jit_compile:
            return tf.function(clipping, jit_compile=True, autograph=False)
        return clipping

    def _penalties(self) -> list[tf.Tensor] | None:
        """Gradients of the weights' regularizers, if there are any."""
        regularizers = [variable.regularizer for variable in self.trainable_variables]
        if all(regularizer is None for regularizer in regularizers):
            return None

        with update_runs_no_host_code(), update_reads_no_metrics(self):
            return regularization_gradients(self)

    def _logs(
        self, data: Any, clipped: ClippedGradients, seen: tuple[Any, ...]
    ) -> dict[str, Any]:
        """Training metrics: exact functions of the data, outside of the guarantee."""
        batch_size = tf.cast(
            batches_lib.count_examples(data, clipped.losses), tf.float32
        )
        mean_loss = tf.math.divide_no_nan(tf.reduce_sum(clipped.losses), batch_size)
        loss_tracker(self).update_state(mean_loss, sample_weight=batch_size)
        with bad_values_become_nan(), metrics_change_no_weights(self):
            logs = metrics_of(self, seen, loss_tracker(self))
        strategy = self._private_optimizer().run.strategy
        if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
            # Keras takes the mean over workers along the first axis of whatever is here.
            logs = {name: tf.reshape(value, [1]) for name, value in logs.items()}
        return logs

    @tf.autograph.experimental.do_not_convert
    def private_gradients(self, batch: Any) -> NoisyGradients:
        """The noisy mean gradient of a batch, for custom training loops.

            for batch in plan.batches(x, y).dataset(model.optimizer.steps_taken):
                noisy = model.private_gradients(batch)
                model.optimizer.apply_noisy(noisy)

        This takes one step of the plan, with all that `fit` enforces. Post-processing
        the gradients costs no privacy: `noisy.map(function)` changes them, and
        `apply_noisy(noisy, update)` applies them by a custom rule. They must be applied
        before the next step.

        Args:
          batch: a batch of `plan.batches`; under `MinSep`, `(x, y)` or
            `(x, y, sample_weight)`.

        Returns:
          The gradients; no metrics, which are functions of the data.

        Raises:
          TypeError: if the model is not compiled with a PrivateOptimizer, or the batch is
            not one of the plan's.
          InvalidArgumentError: as a step of `fit`.
          NotImplementedError: on several replicas.
        """
        optimizer = self._private_optimizer()
        if preparation.num_replicas(self) > 1:
            raise NotImplementedError(
                "private_gradients works on one replica. Use model.fit."
            )
        if optimizer.run.tables is not None or self._tables != "dense":
            raise NotImplementedError(
                "private_gradients makes gradients of whole tables: give make_private "
                "tables='dense', or use model.fit or model.train_on_batch."
            )
        refuse_preprocessor(self)

        def gradients(batch: Any) -> tuple[list[tf.Tensor], tf.Tensor]:
            run, batch = self._run_for(batch), unwrap_single(batch)
            admitted = run.admit(batch, self.weights, random_states(self))
            clipped = self._clipped(batch, admitted.step)
            variables = self.trainable_variables
            with update_reads_no_metrics(self):
                noisy = run.privatize(clipped, variables, admitted, self._penalties())
            return noisy, admitted.step

        if not tf.executing_eagerly():
            found = gradients(batch)
        else:
            if preparation.check_is_due(self):
                preparation.check_gradients(self, optimizer, batch)
            preparation.build(self, optimizer, batch)
            with optimizer.run.turn:
                found = self._traced(gradients)(batch)
        return NoisyGradients(*found, optimizer, self.weights)

    def _traced(self, gradients: Callable[..., Any]) -> Callable[..., Any]:
        """A function of batches as one graph, kept until what it depends on changes."""
        # Graphs that were traced before a file was do not write their steps down.
        parts = [self._private_run, self.optimizer, compile_loss(self)]
        parts += [*self.trainable_variables, *all_layers(self)]
        key = (bool(self.jit_compile), [Same(part) for part in parts])
        traced = self._training.traced_gradients
        if traced is None or traced[0] != key:
            function = tf.function(gradients, autograph=False, reduce_retracing=True)
            self._training.traced_gradients = traced = (key, function)
        return traced[1]

    def _private_optimizer(self) -> PrivateOptimizer:
        refuse_other_loops(self, PrivateStep)
        return preparation.optimizer_of(self)

    @property
    def _is_distributed(self) -> bool:
        """Whether the model was made within the scope of a distribution strategy."""
        return is_distributed(self)

    @property
    def _private_run(self) -> PrivateRun | None:
        """The file that keeps the run's secrets, if there is one."""
        return self._training.run_file

    @property
    def _training(self) -> TrainingState:
        """What belongs to the training of this model, and to no file."""
        return state_of(self)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "train_step" in cls.__dict__:
            cls.train_step = refused(cls.train_step)  # type: ignore[method-assign]

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("train_step", "make_train_function"):
            raise AttributeError(
                "The training step of a private model cannot be replaced. For a training "
                "loop of your own use `private_gradients` and `apply_noisy`."
            )
        if name == "optimizer":
            value = preparation.without_dynamic_scale(
                value, getattr(self, "optimizer", None)
            )
        super().__setattr__(name, value)

    def make_train_function(self, force: bool = False) -> Any:
        """As Keras', but never compiles the whole step with XLA (see above)."""
        preparation.build_optimizer(self, self._private_optimizer())
        jit_compile = self.jit_compile
        self.jit_compile = False
        before = self.train_function
        # One that somebody else set would take steps of its own.
        force = force or before is not self._training.train_function
        try:
            super().make_train_function(force)
        finally:
            self.jit_compile = jit_compile
        if self.train_function is not before:
            self.train_function = in_turn(self, self.train_function)
            self._training.train_function = self.train_function
        return self.train_function


def _admitted_contents(data: Any, step: tf.Tensor) -> tuple[Any, Any, Any, Any]:
    """As `as_drawn`; inputs are there when the batch was admitted to the step."""
    x, y, sample_weight, rows = as_drawn(data)
    with tf.control_dependencies([step]):
        return tf.nest.map_structure(tf.identity, x), y, sample_weight, rows
