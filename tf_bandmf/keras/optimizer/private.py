"""Wraps a Keras optimizer, so that it receives only noisy gradients."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import keras
import tensorflow as tf

from tf_bandmf.files import configs as storage
from tf_bandmf.keras.clipping.sums.settings import Clipping, check_loss_scale
from tf_bandmf.keras.compat.keras_objects import given_learning_rate
from tf_bandmf.keras.compat.replicas import keep_gradients_apart
from tf_bandmf.keras.optimizer.scaling import check_scaling, scales_of
from tf_bandmf.keras.run.programs import Update
from tf_bandmf.keras.run.run import Run
from tf_bandmf.planning.plan import Plan
from tf_bandmf.planning.statement import PrivacyStatement


@dataclasses.dataclass(frozen=True, eq=False)
class NoisyGradients:
    """The noisy mean gradient of one step, from `model.private_gradients`.

    Everything that is computed from this gradient is post-processing, and costs no
    privacy.

    Attributes:
      gradients: float tensors, aligned with the model's trainable variables.
      step: the plan's step to which the gradients belong.
      optimizer: the optimizer that applies them.
    """

    gradients: Sequence[tf.Tensor]
    step: int
    optimizer: PrivateOptimizer

    def map(self, function: Callable[[tf.Tensor], tf.Tensor]) -> NoisyGradients:
        """Returns a copy with changed gradients: scaled, clipped again or masked.

        Args:
          function: maps each noisy gradient to a tensor of the same shape. Apart from
            its argument, it must not depend on private data.
        """
        changed = [tf.convert_to_tensor(function(g)) for g in self.gradients]
        return dataclasses.replace(self, gradients=changed)


@keras.saving.register_keras_serializable(package="tf_bandmf")
class PrivateOptimizer(keras.optimizers.Optimizer):
    """Adds a plan's correlated noise to the sum of clipped gradients.

        noisy = (clipped_sum + noise_stddev * (C^-1 Z)[step]) / expected_batch_size
        inner_optimizer.apply(noisy)

    C is the matrix of the plan's strategy; Z consists of independent standard normals.

    The inner optimizer only post-processes the noisy gradients: any Keras optimizer,
    schedule, weight decay or EMA keeps the guarantee. The error is smallest if the
    plan's workload matches the optimizer. For SGD, a mismatch gives a warning. For
    other optimizers, such as Adam, no workload matches exactly.

    Formal guarantee: the sequence of noisy gradients of steps 0, ..., num_steps - 1 is
    (epsilon, delta)-DP as the plan's statement says, if they come from this library's
    private training step on batches that respect the plan's participation.

    Each `PrivateOptimizer` is a separate run with a fresh key. A second run in the same
    process that trains the same weights or uses the same examples is refused at its
    first step, unless `additional_run=True` is set: two runs spend more than one.
    `tf_bandmf.compose` computes their joint cost. WARNING: runs in other processes are
    not detected.

    If anything but the private step changes the weights, the next step is refused;
    `vouch_for_weights` allows a change that used no private data. Threads that share an
    optimizer take turns.

    Unclipped gradients cannot reach the optimizer: `apply`, `apply_gradients` and
    `scale_loss` raise. `inner_optimizer` is an ordinary optimizer: whoever applies
    gradients with it directly trains without privacy. Its step counter then differs
    from the step of the noise, and the next private step raises.

    Args:
      inner_optimizer: a Keras optimizer (instance, name or config).
      plan: the `tf_bandmf.Plan` of the run.
      name: optional name.
      keep_normals: True to store the standard normals of the last steps instead of
        generating them again in each step, if the strategy has a banded inverse. The
        noise is the same, but it takes less time and more memory (see `plan.memory`).
      loss_scale_factor: a power of two, such as 1024, for layers that compute in float16
        (mixed_float16): losses are multiplied by it before the backward pass, and
        gradients are divided by it before they are clipped. It is constant, unlike the
        scale of Keras' LossScaleOptimizer, which depends on the data. An example whose
        scaled gradient overflows contributes zero to the step.
      additional_run: True if another run of this process may have trained the same
        model or used the same examples; `statement` then gives the joint guarantee of
        these runs.
      clipping: how to clip each example's gradient: "flat", "automatic", or a
        `Clipping`, which has more options. The guarantee does not depend on it.

    Attributes:
      inner_optimizer: the Keras optimizer that applies the noisy gradients.
      run: the `Run`: noise key, step counter, and digests of the weights.
      clipping: the `Clipping` that clips each example's gradient.

    Raises:
      TypeError: if plan is not a Plan.
      ValueError: if clipping is unknown or impossible, loss_scale_factor is not a power
        of two >= 1, the inner optimizer scales losses or accumulates gradients itself,
        or the plan has no expected batch size.
    """

    # Keras' base class reads this attribute before `__init__` has set it.
    _loss_scale_factor: float | None = None

    def __init__(
        self,
        inner_optimizer: Any,
        plan: Plan,
        name: str | None = None,
        *,
        keep_normals: bool = False,
        loss_scale_factor: float | None = None,
        additional_run: bool = False,
        clipping: str | Clipping = "flat",
    ) -> None:
        if not isinstance(plan, Plan):
            raise TypeError(f"plan must be a tf_bandmf.Plan, found {plan!r}.")
        if plan.expected_batch_size is None:
            raise ValueError(
                "The plan has no batch size, by which PrivateOptimizer must divide noisy "
                "sums. Make a plan with one: tf_bandmf.plan(..., batch_size=...)."
            )
        if not isinstance(clipping, Clipping):
            clipping = Clipping(clipping)
        try:
            inner = keras.optimizers.get(inner_optimizer)
            check_inner(inner)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(
                f"inner_optimizer must be a Keras optimizer, or the name or config of "
                f"one, but found {inner_optimizer!r}: {error}"
            ) from error
        check_loss_scale(loss_scale_factor)
        run = Run(plan, inner, keep_normals=keep_normals, is_additional=additional_run)
        super().__init__(learning_rate=0.0, name=name or "private")
        self.inner_optimizer, self.run, self.clipping = inner, run, clipping
        self._loss_scale_factor = loss_scale_factor
        if clipping.scaling:
            check_scaling(inner)
        self._update: Callable[[], tuple[Any, Update]] | None = None

    @property
    def plan(self) -> Plan:
        """The plan of the run."""
        return self.run.plan

    def scales(self) -> list[tf.Tensor] | None:
        """Returns the factors that scale the next step's gradients before clipping.

        Returns:
          Float32 tensors in the shapes of the weights. None, which means factors of 1,
          if the clipping does not scale gradients, or the optimizer is not built.
        """
        if not (self.clipping.scaling and self.built):
            return None
        return scales_of(self.inner_optimizer)

    @property
    def steps_taken(self) -> int:
        """The number of noisy steps so far; the plan allows `plan.num_steps`."""
        return self.run.step

    def statement(self, unit: str | None = None) -> PrivacyStatement:
        """Returns the privacy statement of this run.

        If other runs of this process trained the same weights or used the same
        examples, the statement gives the joint guarantee of all these runs. It also
        says whether weights were loaded, whether the run has taken no step yet, and for
        which changes of the weights the caller vouched.
        `model.privacy_statement()` adds remarks on the model's layers.

        Args:
          unit: the privacy unit, such as "one device"; by default, the plan's unit.
            `Plan.statement` says what the caller asserts by naming a unit.

        Raises:
          ValueError: if the runs protect different privacy units and `unit` is None, or
            no meaningful joint epsilon is known.
        """
        return self.run.statement(unit, self.clipping.remarks())

    def vouch_for_weights(self, reason: str) -> None:
        """Lets the next step start from weights that were changed between steps.

        The caller asserts that the change used no private data except gradients that
        already have noise. For example, the weights may come from an earlier step of
        the run or from public data, or they may have been rounded or pruned by a rule.
        If called before the first step, the assertion is that the initial weights do
        not depend on any of the run's records.

        Args:
          reason: one line that says what changed the weights; `statement` publishes it.

        Raises:
          ValueError: if the reason is not a text of one line.
        """
        self.run.vouch(reason)

    def end_run(self, reason: str, steps: int | None = None) -> None:
        """Ends the run early, and returns the rest of its budget to the ledger.

        The run still costs `plan.epsilon_after(steps)`. No further step is allowed.

        WARNING: call this only if the time at which the run ended did not depend on
        private data, as with a crash or a deadline. A run that was stopped because of how
        its model performed has spent the budget of its whole plan.

        Args:
          reason: one line that says why the run ended; the ledger records it as the
            caller's claim.
          steps: number of steps that the run took; by default, the number that this
            process has recorded. Give a larger number if a process was killed after its
            last checkpoint, and somebody may have seen models or metrics of the lost
            steps.

        Raises:
          ValueError: if the plan is not bound to a ledger, the run has not begun or
            took more than `steps` steps, or the reason is not a text of one line.
          LedgerError: if the ledger cannot be written.
        """
        self.run.end(reason, steps)

    def build(self, variables: Sequence[Any]) -> None:
        """Creates the inner optimizer's variables and a new noise key.

        Raises:
          NotImplementedError: if `clipping` scales coordinates of gradients, and there
            are several replicas.
          ValueError: if `clipping` divides the variables into groups, and a variable
            belongs to none of them.
          MemoryError: if the noise needs more memory than the machine has.
        """
        if self.built:
            return
        variables = list(variables)
        self.clipping.grouping(variables, self.plan.l2_norm_clip)
        replicas = self.run.strategy.num_replicas_in_sync
        if replicas > 1 and self.clipping.scaling is not None:
            raise NotImplementedError(
                "Clipping(scaling=...) supports one replica. Use only one, or omit scaling."
            )
        with self.run.strategy.scope():
            self.inner_optimizer.build(self.run.eager(variables))
            super().build(variables)
            self.run.counts.keep_in(self)
            self.run.begin(variables)
        # Every replica applies the same noisy gradients, so Keras must not sum them
        # over replicas.
        keep_gradients_apart(self.inner_optimizer)

    def apply_noisy(
        self,
        noisy: NoisyGradients,
        update: Callable[[Sequence[tf.Tensor], Sequence[Any]], Any] | None = None,
    ) -> None:
        """Applies the result of `model.private_gradients`; possible only once.

        Args:
          noisy: noisy gradients of this run's last step.
          update: None to use the inner optimizer; or a function of gradients and
            variables that updates the variables. It is treated as post-processing, so
            it must use no private data except the gradients.

        Raises:
          TypeError: if `noisy` is not from `private_gradients` of this run.
          InvalidArgumentError: if the gradients are not from the last step or were
            already applied, or if the weights were changed in the meantime.
        """
        if not isinstance(noisy, NoisyGradients) or noisy.optimizer is not self:
            raise TypeError(
                f"apply_noisy needs the result of private_gradients(batch) from the "
                f"optimizer's own model, not a {type(noisy).__name__} from elsewhere. "
                f"Only that result is clipped and has the noise of this run. To change "
                f"its gradients, call noisy.map(function)."
            )
        run, gradients, inner = self.run, list(noisy.gradients), self.inner_optimizer
        # If the learning rate object is replaced, the program must be traced again. The
        # rate is kept in a function, because Keras would save a variable in an attribute.
        rate = given_learning_rate(inner)
        if self._update is None or self._update()[0] is not rate:
            made = rate, Update(lambda gradients: run.apply(gradients))
            self._update = lambda: made
        with run.turn:
            run.refuse_late(noisy.step)
            try:
                if update is None:
                    self._update()[1](gradients)
                else:
                    update(gradients, run.variables)
                    inner.iterations.assign(noisy.step + 1)
            finally:
                run.close_seal()

    # The interface of a Keras optimizer. Methods that would accept unclipped gradients
    # raise; everything else is delegated to the inner optimizer.

    def apply(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raises RuntimeError, because these gradients were not clipped per example."""
        raise RuntimeError(
            "PrivateOptimizer got gradients that were not clipped per example: noise "
            "would not protect anybody. Make the model private with "
            "tf_bandmf.keras.make_private(model), compile it with this optimizer and train "
            "with model.fit(plan.batches(x, y))."
        )

    # `scale_loss` raises, too: only an ordinary, non-private training step calls it.
    apply_gradients = stateless_apply = scale_loss = apply

    @property
    def loss_scale_factor(self) -> float | None:
        """The constant factor by which losses are multiplied in the backward pass."""
        return self._loss_scale_factor

    @loss_scale_factor.setter
    def loss_scale_factor(self, value: float | None) -> None:
        # None is accepted, because Keras' base class and LossScaleOptimizer set it.
        if value is not None:
            raise AttributeError(
                "loss_scale_factor cannot be set later: pass it to PrivateOptimizer(...)."
            )

    @property
    def variables(self) -> list[Any]:
        return self._variables + self.inner_optimizer.variables

    @property
    def iterations(self) -> Any:
        return self.inner_optimizer.iterations

    @property
    def learning_rate(self) -> Any:
        return self.inner_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate: Any) -> None:
        self.inner_optimizer.learning_rate = learning_rate

    def load_own_variables(self, store: Any) -> None:
        # If the numbers of variables differ, Keras only warns, and training would go on
        # at step 0. Files without an optimizer contain no such variables, and are
        # accepted.
        if store.keys() and len(store.keys()) != len(self.variables):
            raise ValueError(
                f"The saved optimizer has {len(store.keys())} variables, but this one has "
                f"{len(self.variables)}: their inner optimizers or models differ. Use "
                f"the same ones; or load public weights before make_private(model)."
            )
        super().load_own_variables(store)

    def finalize_variable_values(self, trainable_variables: Any) -> None:
        self.inner_optimizer.finalize_variable_values(trainable_variables)

    def get_config(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "inner_optimizer": keras.optimizers.serialize(self.inner_optimizer),
            "plan": storage.dumps(self.plan.to_config()),
            "keep_normals": self.run.keep_normals,
            "loss_scale_factor": self.loss_scale_factor,
            "clipping": dataclasses.asdict(self.clipping),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        inner = keras.optimizers.deserialize(
            config["inner_optimizer"], custom_objects=custom_objects
        )
        parts = {
            "inner_optimizer": inner,
            "plan": Plan.from_config(storage.loads(config["plan"])),
            "clipping": Clipping(**config["clipping"]),
        }
        return cls(**{**config, **parts})

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "A PrivateOptimizer cannot be copied or pickled: its noise key is secret, and "
            "a copy would add the same noise to different gradients. For a separate run, "
            "make a new PrivateOptimizer(..., additional_run=True). To continue this run, "
            "resume it: model.fit(batches, private_state=path)."
        )


def check_inner(inner: keras.optimizers.Optimizer) -> None:
    """Checks an inner optimizer, whose settings may have changed since the last check.

    Raises:
      TypeError: if it is not a Keras optimizer.
      ValueError: if the optimizer is private, scales losses or accumulates gradients.
    """
    if not isinstance(inner, keras.optimizers.Optimizer):
        raise TypeError(f"Pass a Keras optimizer, not a {type(inner).__name__}.")
    if isinstance(inner, (PrivateOptimizer, keras.optimizers.LossScaleOptimizer)):
        raise ValueError(
            f"inner_optimizer cannot be a {type(inner).__name__}. Pass the optimizer that "
            f"it contains: its attribute inner_optimizer."
        )
    names = "gradient_accumulation_steps", "loss_scale_factor"
    if any(getattr(inner, name, None) for name in names):
        raise ValueError(
            "inner_optimizer must not set gradient_accumulation_steps or "
            "loss_scale_factor. To save memory, call make_private(model, "
            "microbatch_size=...). To scale losses, call PrivateOptimizer(..., "
            "loss_scale_factor=...), which unscales gradients before they are clipped."
        )


def private_optimizer_of(model: Any) -> PrivateOptimizer:
    """Returns the private optimizer with which a model is compiled.

    Raises:
      TypeError: if the optimizer is not private.
    """
    optimizer = getattr(model, "optimizer", None)
    if not isinstance(optimizer, PrivateOptimizer):
        raise TypeError(
            f"A private model trains only with a PrivateOptimizer, but found "
            f"{type(optimizer).__name__}. Compile the model with optimizer="
            f"tf_bandmf.keras.PrivateOptimizer(your_optimizer, plan), or train "
            f"tf_bandmf.keras.to_plain(model) without privacy. (For mixed_float16, pass "
            f"loss_scale_factor=...; a LossScaleOptimizer's scale depends on data.)"
        )
    return optimizer
