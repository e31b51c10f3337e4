"""The wrapper that turns any Keras optimizer into the consumer of noisy gradients."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_bandmf import noise
from tf_bandmf.files import configs as storage
from tf_bandmf.files import machine
from tf_bandmf.keras.clipping import (
    SUM_MARGIN,
    ClippedGradients,
    check_groups,
    grouping,
    update_runs_no_host_code,
)
from tf_bandmf.keras.optimizer import inner_optimizers
from tf_bandmf.keras.optimizer.noisy_gradients import NoisySteps
from tf_bandmf.keras.optimizer.scaling import (
    UNSOUND,
    check_scaling,
    moments_are_sound,
    second_moment_scales,
)
from tf_bandmf.keras.optimizer.workload_match import warn_of_mismatch
from tf_bandmf.keras.optimizer.wrapper import HOW_TO_TRAIN, WrappedOptimizer
from tf_bandmf.keras.run.membership import RESTORED, RunMembership
from tf_bandmf.keras.run.replicas import NoisyMean, shared_key
from tf_bandmf.keras.run.secrets import SecretState
from tf_bandmf.keras.run.weights_seal import STATE_CHANGED, WeightsSeal
from tf_bandmf.noise.keys import NoiseKey
from tf_bandmf.planning.memory import refuse_too_large
from tf_bandmf.planning.plan import Plan

# Of automatic clipping: the value of Bu et al., which they find good everywhere.
_GAMMA = 0.01


@keras.saving.register_keras_serializable(package="tf_bandmf")
class PrivateOptimizer(NoisySteps, RunMembership, WrappedOptimizer):
    """Adds a plan's correlated noise to the sum of clipped gradients.

        noisy = (clipped_sum + noise_stddev * (C^-1 Z)[step]) / expected_batch_size
        inner_optimizer.apply(noisy)

    What the inner optimizer does with the noisy gradients is post-processing: any Keras
    optimizer, schedule, weight decay or EMA keeps the guarantee. The error is smallest if
    the plan's workload is what the optimizer does: for SGD a mismatch is warned about;
    for others (Adam) every workload is a heuristic.

    Formal guarantee: all noisy gradients of steps 0, ..., num_steps - 1 together are
    (epsilon, delta)-DP as the plan's statement says, if they come from the private
    training step of this library on batches that respect the plan's participation.

    Each `PrivateOptimizer` is a run of its own with a fresh key. A second run on the same
    weights or examples in a process is refused at its first step, unless it is announced
    by `additional_run=True`: both together spend more than either, which
    `tf_bandmf.compose` computes. WARNING: runs in other processes are not seen.

    Weights that something else than the private step changed are noticed at the next one
    and refused; `vouch_for_weights` allows a change in which private data had no part.
    Threads that train with one optimizer take turns.

    It refuses every path by which unclipped gradients could reach it: `apply`,
    `apply_gradients` and `scale_loss` raise. `inner_optimizer` is an ordinary optimizer:
    whoever applies gradients with it directly trains without privacy. Its counter of
    steps then differs from the noise's, and the next private step raises.

    Args:
      inner_optimizer: a Keras optimizer (instance, name or config).
      plan: the `tf_bandmf.Plan` of the run.
      name: optional.
      keep_normals: a strategy with a banded inverse keeps its last normals instead of
        drawing them again: the same noise, more memory, less time (`plan.memory` says
        how much memory).
      loss_scale_factor: a power of two, such as 1024, for layers that compute in float16
        (mixed_float16): losses are multiplied by it before the backward pass, gradients
        divided by it before they are clipped. It is static: Keras' LossScaleOptimizer
        changes its scale, and skips steps, depending on the data. An example whose
        scaled gradient overflows contributes zero; the step goes on.
      additional_run: another run of this process may have trained the same model, or on
        the same examples; `statement` says so then.
      clipping: "flat": a gradient g longer than the plan's clip norm C is shortened to
        it. "automatic": each is multiplied by C / (|g| + 0.01), AUTO-S of Bu et al.
        (2022, arXiv:2206.07136): C and the learning rate are then one parameter, and
        there is no clip norm to tune. Whatever is chosen, a contribution's norm is at
        most C, so that the guarantee is the same with every mechanism.
      clip_groups: None: a gradient is clipped as a whole. "layers": the weights of each
        layer apart, each to C / sqrt(number of layers). Or shares of C by regular
        expressions that are searched in the paths of weights, such as
        `{"embedding": 1, ".*": 2}`: the first one found is a weight's group, and the
        squares of the groups' clip norms add up to C^2 (group-wise clipping, He et al.,
        2022, arXiv:2212.01539). The guarantee is the same. Choose them without the data.
      scaling: None; or "second_moment" with Adam, AdamW, Nadam or RMSprop: gradients are
        clipped and noised in the coordinates in which that optimizer takes its steps
        (scale-then-privatize, Ganesh et al., 2025, arXiv:2507.01129; see
        `tf_bandmf.keras.optimizer.scaling`). Scales come from the noisy gradients of
        earlier steps: the guarantee is the same. Each example's gradient is held in
        memory, as large as the weights: see `microbatch_size` of `make_private`. One
        replica only.

    Raises:
      TypeError: if plan is not a Plan.
      NotImplementedError: if gradients are to be scaled on several replicas.
      ValueError: if clipping, clip_groups or scaling is not known or cannot be done,
        loss_scale_factor is not a power of two >= 1, the inner optimizer scales losses or
        accumulates gradients itself, or the plan has no expected batch size.
    """

    def __init__(
        self,
        inner_optimizer: Any,
        plan: Plan,
        name: str | None = None,
        *,
        keep_normals: bool = False,
        loss_scale_factor: float | None = None,
        additional_run: bool = False,
        clipping: str = "flat",
        clip_groups: str | Mapping[str, float] | None = None,
        scaling: str | None = None,
        **kwargs: Any,
    ) -> None:
        if kwargs:
            raise ValueError(
                f"PrivateOptimizer does not take {', '.join(sorted(kwargs))}: set it on "
                f"the inner_optimizer."
            )
        if not isinstance(plan, Plan):
            raise TypeError(f"plan must be a tf_bandmf.Plan, found {plan!r}.")
        if plan.expected_batch_size is None:
            raise ValueError(
                "The plan has no batch size. Give batch_size to tf_bandmf.plan: the "
                "noisy sum is divided by that public constant."
            )
        inner = inner_optimizers.checked(inner_optimizer)
        inner_optimizers.check_loss_scale(loss_scale_factor)
        if not isinstance(clipping, str) or clipping not in ("flat", "automatic"):
            raise ValueError(
                f"clipping must be 'flat' or 'automatic', found {clipping!r}."
            )
        scaling = check_scaling(scaling, inner)
        super().__init__(learning_rate=0.0, name=name or "private")
        # Attributes that Keras must not track, see SecretState.
        object.__setattr__(self, "_loss_scale_factor", loss_scale_factor)
        object.__setattr__(self, "_plan", plan)
        object.__setattr__(self, "_secret_state", None)
        object.__setattr__(self, "_generator", None)
        object.__setattr__(self, "_keep_normals", bool(keep_normals))
        object.__setattr__(self, "_seal", None)
        object.__setattr__(self, "_additional_run", bool(additional_run))
        object.__setattr__(self, "_clipping", clipping)
        object.__setattr__(self, "_clip_groups", check_groups(clip_groups))
        object.__setattr__(self, "_scaling", scaling)
        object.__setattr__(self, "vouched", ())
        object.__setattr__(self, "resumed_elsewhere", ())
        object.__setattr__(self, "loaded_without_weights", False)
        object.__setattr__(self, "turn", threading.RLock())
        self.inner_optimizer = inner
        warn_of_mismatch(inner, plan)

    @property
    def plan(self) -> Plan:
        """The plan of the run."""
        return self._plan

    @property
    def automatic(self) -> float | None:
        """Gamma of automatic clipping, or None if gradients are clipped."""
        return _GAMMA if self._clipping == "automatic" else None

    @property
    def clip_groups(self) -> str | dict[str, float] | None:
        """Groups of weights that are clipped apart, or None."""
        groups = self._clip_groups
        return dict(groups) if isinstance(groups, dict) else groups

    @property
    def scaling(self) -> str | None:
        """Where the scales of coordinates come from, or None."""
        return self._scaling

    def scales(self) -> list[tf.Tensor] | None:
        """What gradients of the coming step are multiplied by before they are clipped.

        Returns:
          Float32 tensors in the shapes of the weights; None if by nothing, and before the
          optimizer is built, when all are 1.
        """
        if self._scaling is None or not self.built:
            return None
        return second_moment_scales(self.inner_optimizer)

    @property
    def steps_taken(self) -> int:
        """Noisy steps so far; the plan allows `plan.num_steps`."""
        if self._secret_state is not None:
            return int(self._secret_state.step)
        return int(self.iterations.numpy()) if self.built else 0

    def build(self, variables: Sequence[Any]) -> None:
        """Creates the inner optimizer's variables, and a fresh noise key.

        Raises:
          RuntimeError: within a step of several replicas.
          ValueError: if a variable is in no group of `clip_groups`.
          InvalidArgumentError: if the optimizer was loaded from an .h5 file.
          MemoryError: if the noise needs more memory than there is.
        """
        if self.built:
            return
        variables = list(variables)
        if not variables:
            # That is how Keras builds what it loads from .h5 files: for no weights.
            object.__setattr__(self, "loaded_without_weights", True)
            return
        self.refuse_restored()
        grouping(self._clip_groups, variables, self._plan.l2_norm_clip)
        strategy = self._distribution_strategy
        replicas = strategy.num_replicas_in_sync
        if replicas > 1 and self._scaling is not None:
            raise NotImplementedError(
                "scaling works on one replica. Train on one, or without it."
            )
        if not tf.distribute.has_strategy():
            if strategy is not tf.distribute.get_strategy():
                # Slots of an inner optimizer need its scope, with one replica, too.
                with strategy.scope():
                    return self.build(variables)
        elif replicas > 1 and not tf.distribute.in_cross_replica_context():
            raise RuntimeError(
                "Build the optimizer before a step of several replicas: model.fit "
                "does; otherwise optimizer.build(model.trainable_variables)."
            )
        self.inner_optimizer.build(variables)
        super().build(variables)
        num_parameters = sum(math.prod(variable.shape) for variable in variables)
        needed = self._plan.memory(num_parameters, replicas, self._keep_normals)
        if not tf.config.get_visible_devices("GPU"):
            here = 1 if replicas == 1 else len(strategy.extended.worker_devices)
            refuse_too_large(needed, machine.memory_bytes(), here)
        generator = noise.NoiseGenerator(
            self._plan.strategy,
            num_parameters,
            num_shards=replicas,
            keep_normals=self._keep_normals,
            generator=self._plan.generator,
        )
        object.__setattr__(self, "_generator", generator)
        object.__setattr__(self, "_noisy_mean", NoisyMean(generator))
        seed = self._plan.test_seed
        key = (
            shared_key(strategy, NoiseKey.from_operating_system())
            if seed is None
            else NoiseKey.for_testing(seed)
        )
        try:
            self.adopt(
                SecretState(
                    generator, key, self._plan.fingerprint, is_bound=seed is None
                )
            )
        except tf.errors.ResourceExhaustedError as error:
            raise MemoryError(f"{needed} The device has less.") from error
        if replicas > 1:
            # Every replica gives it the same noisy gradients: Keras shall not add them up.
            object.__setattr__(self.inner_optimizer, "_all_reduce_sum_gradients", list)

    @property
    def strategy(self) -> tf.distribute.Strategy:
        """The distribution strategy under which the optimizer was made."""
        return self._distribution_strategy

    @property
    def generator(self) -> noise.NoiseGenerator:
        """The noise generator of the built optimizer."""
        return self._generator

    def adopt(self, state: SecretState) -> None:
        """Goes on with a secret state: that of a new or of a resumed run."""
        object.__setattr__(self, "_secret_state", state)
        object.__setattr__(self, "_seal", WeightsSeal(self._state_of_steps))

    def _state_of_steps(self) -> list[Any]:
        """Variables of the inner optimizer that its steps alone change."""
        inner = self.inner_optimizer
        state = [*inner.variables, *(inner._velocities if self._scaling else ())]
        others = (inner.iterations, getattr(inner, "_learning_rate", None))
        return [v for v in state if not any(v is other for other in others)]

    @property
    def secret_state(self) -> SecretState:
        """For the private state file alone."""
        return self._secret_state

    def checked_step(
        self, conditions: Sequence[tuple[tf.Tensor, str]] = ()
    ) -> tf.Tensor:
        """The number of the coming step, after all checks that it may be taken.

        Should a tool strip the assertions from the graph, a step that is not allowed
        becomes one past the horizon, for which there is no noise but NaN.

        Args:
          conditions: further booleans that must hold, with their messages.

        Raises:
          InvalidArgumentError: in graphs too, if the budget is spent, a condition does
            not hold, the optimizer was restored from a file without its private noise
            state, something else changed the inner optimizer's state, or there are no
            scales for `scaling`.
        """
        noise.refuse_xla()
        step = self._secret_state.step
        iterations = tf.cast(self.inner_optimizer.iterations.value, tf.int64)
        conditions = [(tf.equal(iterations, step), RESTORED), *conditions]
        sound = tf.constant(True)
        if self._scaling is not None:
            sound = moments_are_sound(self.inner_optimizer)
            conditions.append((sound, UNSOUND))
        # Moments that are not sound have a message of their own.
        conditions.append((self._seal.holds_state() | ~sound, STATE_CHANGED))
        checks = [tf.debugging.Assert(holds, [text]) for holds, text in conditions]
        allowed = tf.reduce_all(tf.stack([holds for holds, _ in conditions]))
        with tf.control_dependencies([check for check in checks if check is not None]):
            step = self._generator.checked_step(tf.identity(step))
        horizon = tf.constant(self._plan.num_steps, tf.int64)
        return tf.where(allowed, step, horizon)

    def pin_schedule(self, schedule_id: tf.Tensor, step: tf.Tensor) -> tf.Operation:
        """Binds the run to a schedule: data and placement may not change any more."""
        with tf.control_dependencies([step]):
            return self._secret_state.pin_schedule(schedule_id)

    @property
    def schedule_id(self) -> tf.Tensor:
        """Of the schedule that the run uses; -1 before its first step."""
        return self._secret_state.schedule_id

    def apply_private(
        self,
        clipped: ClippedGradients,
        trainable_variables: list[Any],
        step: tf.Tensor,
        penalty_gradients: list[tf.Tensor] | None = None,
    ) -> None:
        """Adds noise to the clipped sum and lets the inner optimizer apply it.

        Args, Raises: as for `private_mean`.
        """
        gradients = self.private_mean(
            clipped, trainable_variables, step, penalty_gradients
        )
        with tf.control_dependencies(gradients):
            with update_runs_no_host_code():
                self.inner_optimizer.apply(gradients, trainable_variables)

    def private_mean(
        self,
        clipped: ClippedGradients,
        trainable_variables: list[Any],
        step: tf.Tensor,
        penalty_gradients: list[tf.Tensor] | None = None,
    ) -> list[tf.Tensor]:
        """Adds noise to the clipped sum and divides it by the expected batch size.

        Args:
          clipped: what the private training step computed.
          trainable_variables: the variables, in the order of `clipped.sums`.
          step: what `checked_step` returned.
          penalty_gradients: of weight regularizers, which depend on no data; added to
            the noisy gradients.

        Returns:
          Noisy gradients, in the variables' shapes and dtypes.

        Raises:
          TypeError: if `clipped` did not come from the clipping of this library.
          ValueError: if the variables are not those that the run began with, or `clipped`
            is not scaled as this optimizer does.
          InvalidArgumentError: if the sum is not finite or larger than clipped
            gradients can add up to. `clipped_gradient_sums` returns no such sum for any
            data: only a programming error can.
        """
        if not isinstance(clipped, ClippedGradients):
            raise TypeError(
                f"Gradients must be clipped by this library. {HOW_TO_TRAIN}"
            )
        if bool(clipped.scales) != (self._scaling is not None):
            raise ValueError(
                f"Gradients must be clipped in the coordinates of this optimizer, of "
                f"scaling={self._scaling!r}. {HOW_TO_TRAIN}"
            )
        self._check_variables(trainable_variables)
        plan = self._plan
        flat = tf.concat([_reshaped(total, [-1]) for total in clipped.sums], axis=0)
        norm = tf.sqrt(2.0 * tf.cast(tf.nn.l2_loss(flat), tf.float64))
        examples = tf.cast(tf.shape(clipped.norms)[0], tf.float64)
        # NaN fails this comparison too.
        is_clipped = norm <= SUM_MARGIN * plan.l2_norm_clip * examples
        message = "The sum of gradients is not clipped, or not finite."
        with tf.control_dependencies([tf.debugging.Assert(is_clipped, [message])]):
            correlated = self._secret_state.next_noise(tf.identity(step), flat)
        noisy = self._noisy_mean(
            flat, correlated, plan.noise_stddev, plan.expected_batch_size
        )
        sizes = [math.prod(variable.shape) for variable in trainable_variables]
        gradients = [
            _reshaped(part, variable.shape)
            for part, variable in zip(tf.split(noisy, sizes), trainable_variables)
        ]
        if clipped.scales:
            gradients = [g / s for g, s in zip(gradients, clipped.scales, strict=True)]
        if penalty_gradients is not None:
            gradients = [a + b for a, b in zip(gradients, penalty_gradients)]
        return [
            tf.cast(gradient, variable.dtype)
            for gradient, variable in zip(gradients, trainable_variables)
        ]

    def _check_variables(self, variables: Sequence[Any]) -> None:
        """Correlated noise cancels within a variable: each keeps its place in it."""
        if [id(v) for v in variables] != [id(v) for v in self._trainable_variables]:
            raise ValueError(
                "The model's trainable weights are not those that the run began with "
                "(trainable was changed, or layers were added or removed). The noise is "
                "correlated over the steps of each weight: a run keeps its weights. "
                "Change them back, or start a new run with a new PrivateOptimizer and "
                "its own budget."
            )

    def get_config(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "inner_optimizer": keras.optimizers.serialize(self.inner_optimizer),
            "plan": storage.dumps(self._plan.to_config()),
            "keep_normals": self._keep_normals,
            "loss_scale_factor": self.loss_scale_factor,
            "clipping": self._clipping,
            "clip_groups": _pairs(self._clip_groups),
            "scaling": self._scaling,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        inner = keras.optimizers.deserialize(
            config["inner_optimizer"], custom_objects=custom_objects
        )
        plan = Plan.from_config(storage.loads(config["plan"]))
        groups = config.get("clip_groups")
        return cls(
            inner,
            plan,
            name=config.get("name"),
            keep_normals=config.get("keep_normals", False),
            loss_scale_factor=config.get("loss_scale_factor"),
            clipping=config.get("clipping", "flat"),
            clip_groups=dict(groups) if isinstance(groups, (list, tuple)) else groups,
            scaling=config.get("scaling"),
        )


def _reshaped(tensor: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
    """As `tf.reshape`, without an operation for a vector that stays one."""
    if tensor.shape.rank == len(shape) == 1:
        return tensor
    return tf.reshape(tensor, shape)


def _pairs(groups: Any) -> Any:
    """Groups for a file, where mappings have no order."""
    return [[*pair] for pair in groups.items()] if isinstance(groups, dict) else groups
