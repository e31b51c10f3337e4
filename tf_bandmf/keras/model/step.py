"""The private training step: what it takes, checks, computes and changes."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Callable

import keras
import tensorflow as tf

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
    update_reads_no_metrics,
    update_runs_no_host_code,
)
from tf_bandmf.keras.model.batch_contents import (
    as_drawn,
    contents,
    shares,
    unwrap_single,
)
from tf_bandmf.keras.model.guards import announced, in_turn, refuse_other_loops, refused
from tf_bandmf.keras.model.preprocessing import preprocess_of, preprocessed_batch
from tf_bandmf.keras.model.variable_making import build_metrics
from tf_bandmf.keras.optimizer.noisy_gradients import NoisyGradients, traced_once
from tf_bandmf.keras.optimizer.private import PrivateOptimizer
from tf_bandmf.keras.run import known_runs
from tf_bandmf.keras.run.secrets import replica_id
from tf_bandmf.keras.run.weights_seal import CHANGED
from tf_bandmf.sampling import batches as batches_lib
from tf_bandmf.sampling.fingerprints import is_as_drawn

# Of made-up data: three fill a group and begin another one.
_CHECKED_EXAMPLES = 3


class PrivateStep:
    """Mixin with the training step of `PrivateTraining`; see there."""

    # Of Keras.
    built: bool
    train_function: Any

    # In a loop of one's own AutoGraph would convert all of this library: seconds.
    @tf.autograph.experimental.do_not_convert
    def train_step(self, data: Any) -> dict[str, Any]:
        """One private step; see the class."""
        if tf.executing_eagerly() and not tf.distribute.has_strategy():
            with self._private_optimizer().turn:
                return self._train_step(data)
        with announced("tracing the private training step.", self._quiet):
            return self._train_step(data)

    # Whether nothing is printed: `fit(verbose=0)`.
    _quiet = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "train_step" in cls.__dict__:
            cls.train_step = refused(cls.train_step)  # type: ignore[method-assign]

    def _train_step(self, data: Any) -> dict[str, Any]:
        optimizer = self._private_optimizer()
        clipped, step, data = self._clipped(optimizer, data)
        x, y, sample_weight, rows = as_drawn(data)
        seen = (x, y, clipped.outputs, sample_weight)
        if rows is not None:
            seen = present_rows(seen, rows)
        if not (self._is_distributed or tf.executing_eagerly()):
            build_metrics(self, *seen)
        variables = self.trainable_variables  # type: ignore[attr-defined]
        # Of replicas the first one: the others resume among each other's metrics.
        first = replica_id() == 0
        with update_reads_no_metrics(self) if first else contextlib.nullcontext():
            optimizer.apply_private(clipped, variables, step, self._penalties())
        optimizer.seal.renew(self.weights)  # type: ignore[attr-defined]
        # Training metrics are exact functions of the data: outside of the guarantee.
        batch_size = tf.cast(batches_lib.count_examples(data, x), tf.float32)
        mean_loss = tf.math.divide_no_nan(tf.reduce_sum(clipped.losses), batch_size)
        self._loss_tracker.update_state(mean_loss, sample_weight=batch_size)  # type: ignore[attr-defined]
        with bad_values_become_nan(), metrics_change_no_weights(self):
            logs = self.compute_metrics(*seen)  # type: ignore[attr-defined]
        strategy = optimizer.strategy
        if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
            # Keras takes the mean over workers along the first axis of whatever is here.
            logs = {name: tf.reshape(value, [1]) for name, value in logs.items()}
        return logs

    @tf.autograph.experimental.do_not_convert
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

        preprocess = preprocess_of(self)
        if preprocess is not None and batches_lib.is_scheduled_batch(batch):
            batch = preprocessed_batch(batch, preprocess, self._private_run is not None)  # type: ignore[attr-defined]

        def gradients(batch: Any) -> tuple[list[tf.Tensor], tf.Tensor]:
            clipped, step, _ = self._clipped(optimizer, batch)
            variables = self.trainable_variables  # type: ignore[attr-defined]
            with update_reads_no_metrics(self):
                penalties = self._penalties()
                noisy = optimizer.private_mean(clipped, variables, step, penalties)
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
            with update_runs_no_host_code():
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
        data = unwrap_single(data)
        weights = self.weights  # type: ignore[attr-defined]
        schedule_id = tf.constant(known_runs.NO_SCHEDULE, tf.int64)
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
        x, y, sample_weight, rows = as_drawn(data)
        checks = [step]
        if batches_lib.is_scheduled_batch(data):
            pin = optimizer.pin_schedule(data[batches_lib.SCHEDULE_ID], step)
            checks.extend([pin] if pin is not None else [])
        with tf.control_dependencies(checks):
            x = tf.nest.map_structure(tf.identity, x)
        clipped = self._compiled_clipping()(x, y, sample_weight, rows, shares(data))
        return clipped, step, data

    def _build_for_training(self, data: Any) -> None:
        if not self.built:  # type: ignore[attr-defined]
            self(contents(data)[0], training=False)  # type: ignore[operator]
        check_supported(self)

    def _build_optimizer(self) -> None:
        """Builds it before the step is traced: variables made in a trace cost another."""
        optimizer = self._private_optimizer()
        layers = self._flatten_layers()  # type: ignore[attr-defined]
        if optimizer.built or self._is_distributed:
            return
        if self.built and all(layer.built for layer in layers):  # type: ignore[attr-defined]
            check_supported(self)
            optimizer.build(self.trainable_variables)  # type: ignore[attr-defined]

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
        refuse_other_loops(self, PrivateStep)
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

        def clipping(
            x: Any, y: Any, sample_weight: Any, rows: Any, shares: Any = None
        ) -> ClippedGradients:
            scales = None
            if optimizer.scaling is not None:
                with update_reads_no_metrics(self):
                    scales = optimizer.scales()
            return clipped_gradient_sums(
                self,
                x,
                y,
                sample_weight,
                l2_norm_clip=plan.l2_norm_clip,
                microbatch_size=self._microbatch_size,
                loss_scale_factor=optimizer.loss_scale_factor,
                rows=rows,
                shares=shares,
                automatic=optimizer.automatic,
                groups=optimizer.clip_groups,
                scales=scales,
            )

        if self.jit_compile and not self.run_eagerly:  # type: ignore[attr-defined]
            return tf.function(clipping, jit_compile=True, autograph=False)
        return clipping

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("train_step", "make_train_function"):
            raise AttributeError(
                "The training step of a private model cannot be replaced. For a training "
                "loop of your own use `private_gradients` and `apply_noisy`."
            )
        if name == "optimizer":
            value = without_dynamic_scale(value, getattr(self, "optimizer", None))
        super().__setattr__(name, value)

    def make_train_function(self, force: bool = False) -> Any:
        """As Keras', but never compiles the whole step with XLA (see above)."""
        self._build_optimizer()
        jit_compile = self.jit_compile  # type: ignore[has-type]
        self.jit_compile = False
        before = self.train_function
        # One that somebody else set would take steps of its own.
        force = force or before is not self._own_function
        try:
            super().make_train_function(force)  # type: ignore[misc]
        finally:
            self.jit_compile = jit_compile
        if self.train_function is not before:
            self.train_function = in_turn(self, self.train_function)
            object.__setattr__(self, "_own_function", self.train_function)
        return self.train_function

    # What `make_train_function` made; Keras must not track it.
    _own_function: Any = None

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

    def _run_self_check(self, data: Any) -> None:
        x, y, weight = contents(data)
        if int(tf.shape(tf.nest.flatten(x)[0])[0]) == 0:
            return  # Nothing to compare yet.
        self._build_for_training(data)
        layers = _CheckedLayers(self._flatten_layers())  # type: ignore[attr-defined]
        with announced(
            "comparing the gradients of made-up examples with those that each has by "
            "itself (once; make_private(..., self_check=False) leaves it out).",
            self._quiet,
        ):
            optimizer = self._private_optimizer()
            self_check(
                self,
                *made_up((x, y, weight), _CHECKED_EXAMPLES),
                microbatch_size=self._microbatch_size,
                loss_scale_factor=optimizer.loss_scale_factor,
                automatic=optimizer.automatic,
                groups=optimizer.clip_groups,
                scaled=optimizer.scaling is not None,
            )
        object.__setattr__(self, "_checked", layers)

    @property
    def _is_distributed(self) -> bool:
        """Whether the model was made within the scope of a distribution strategy."""
        return self._distribute_strategy is not None  # type: ignore[attr-defined]

    @property
    def _num_replicas(self) -> int:
        strategy = self.distribute_strategy  # type: ignore[attr-defined]
        return 1 if strategy is None else strategy.num_replicas_in_sync

    # Examples whose gradients are held in memory together; None for the whole batch.
    _microbatch_size: int | None = None


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
