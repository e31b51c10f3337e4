"""The training step of private models, for `fit` and for custom loops.

The content of a step is in the module `programs`; `docs/inside.md` explains it.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import tensorflow as tf

from tf_bandmf.keras.clipping import (
    Same,
    UnsupportedModelError,
    check_process,
)
from tf_bandmf.keras.compat.keras_objects import (
    all_layers,
    compile_loss,
)
from tf_bandmf.keras.compat.optimizing import optimized_once
from tf_bandmf.keras.model import preparation
from tf_bandmf.keras.model.preparation import given
from tf_bandmf.keras.model.programs import Programs
from tf_bandmf.keras.model.tables import DENSE, StepSettings
from tf_bandmf.keras.optimizer.private import (
    NoisyGradients,
    PrivateOptimizer,
    check_accumulation,
    private_optimizer_of,
)

if TYPE_CHECKING:
    from tf_bandmf.keras.resume.private_file import PrivateRun

    # The mixin uses attributes of `keras.Model`, which has few type annotations.
    _Model: TypeAlias = Any
else:
    _Model = object

_STATE = "_tf_bandmf_training"
_STEP_METHODS = ("make_train_function", "train_step")
_OTHER_LOOP = (
    "Class {name!r} overrides `{method}`: what it does with the data would not be private. "
    "Remove it. For a training loop of your own use `private_gradients` and `apply_noisy`."
)


@dataclasses.dataclass
class TrainingState:
    """State that belongs to a private model, but that Keras neither tracks nor saves.

    Attributes:
      is_quiet: True if nothing is printed: `fit(verbose=0)`.
      run_file: private state file of `begin_run`; checkpoints are announced to it.
      programs: the programs of the steps, with a cache key of all that they depend on.
      ready: the programs that the current `fit` uses, from its first step on.
      evaluation: the graph of the last private evaluation, with its cache key.
      plain_steps: steps of the plain optimizer that the model had before it was private.
      were_loaded: True if the model's weights were loaded or set.
      looked_up: a `LookedUp`, which finds the rows that a batch reads in lazy tables.
    """

    is_quiet: bool = False
    run_file: PrivateRun | None = None
    programs: tuple[Any, Any] | None = None
    ready: Any = None
    evaluation: tuple[Any, Any] | None = None
    plain_steps: int = 0
    were_loaded: bool = False
    looked_up: Any = None


class PrivateStep(_Model):
    """Mixin with the training step of `PrivateTraining`; see there."""

    # Set by Keras.
    jit_compile: Any
    train_function: Any

    _settings = StepSettings()

    def train_step(self, data: Any) -> NoReturn:
        """Raises RuntimeError: a private step is several programs that Python calls."""
        raise RuntimeError(
            "A private model has no train_step: train it by model.fit or "
            "model.train_on_batch, or in a loop of your own by model.private_gradients."
        )

    def _ready_for(self, batch: Any) -> None:
        """Builds model and optimizer, if they are not built, from the shapes of a batch."""
        run = self._private_optimizer().run
        preparation.build(self, batch)
        run.refuse_trained(self._training.plain_steps)
        if run.tables is None and self._settings.tables != DENSE:
            raise RuntimeError(
                "The optimizer was built before the model's tables were chosen, so its run "
                "cannot have tables='lazy'. Compile the model with a new PrivateOptimizer, "
                "and let model.fit or model.train_on_batch build it."
            )

    def _programs(self) -> Programs:
        """The programs of the run's steps, cached until one of their settings changes."""
        parts = [self.optimizer, self.optimizer.run.secrets, compile_loss(self)]
        parts += [*self.trainable_variables, *all_layers(self)]
        key = (
            bool(self.jit_compile),
            self._settings,
            [Same(part) for part in parts],
        )
        traced = self._training.programs
        if traced is None or traced[0] != key:
            self._training.programs = traced = (key, Programs(self))
        return traced[1]

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
          The gradients. There are no metrics: these would be exact functions of the data.

        Raises:
          TypeError: if the model is not compiled with a PrivateOptimizer, or the batch is
            not one of the plan's.
          InvalidArgumentError: if a step of `fit` would raise it.
          NotImplementedError: on several replicas.
        """
        optimizer = self._private_optimizer()
        if preparation.num_replicas(self) > 1:
            raise NotImplementedError(
                "private_gradients works on one replica. Use model.fit."
            )
        if optimizer.run.tables is not None or self._settings.tables != DENSE:
            raise NotImplementedError(
                "private_gradients makes gradients of whole tables: give make_private "
                "tables='dense', or use model.fit or model.train_on_batch."
            )
        preparation.refuse_preprocessor(self)
        if not tf.executing_eagerly():
            raise RuntimeError(
                "private_gradients must be called from Python, found a tf.function around "
                "it, where a record that makes the model raise would stop training. Remove "
                "the tf.function; private_gradients compiles its parts."
            )
        batch = given(batch)
        with optimizer.run.turn:
            self._ready_for(batch)
            optimizer.run.start(self.weights)
            try:
                noisy, step = self._programs().noisy_gradients(batch)
            finally:
                optimizer.run.close_seal(self.weights)
        return NoisyGradients(noisy, step, optimizer, self.weights)

    def _private_optimizer(self) -> PrivateOptimizer:
        """The private optimizer that the model is compiled with, ready for a step.

        Raises:
          TypeError: if the model is compiled with an optimizer that is not private.
          ValueError: if the optimizer belongs to another distribution strategy, or its
            inner optimizer accumulates gradients.
          RuntimeError: if the process rounds float32 products, or runs functions or the
            model's steps eagerly.
        """
        optimizer = private_optimizer_of(self)
        check_process()
        if self.run_eagerly:
            raise RuntimeError(
                "A private step runs as a graph: debug the plain model, before "
                "make_private, and train the private one by fit, train_on_batch or "
                "private_gradients, compiled without run_eagerly=True."
            )
        check_accumulation(optimizer.inner_optimizer)
        is_other = optimizer.run.strategy is not self.distribute_strategy
        if is_other and preparation.num_replicas(self) > 1:
            raise ValueError(
                "Model and PrivateOptimizer belong to different distribution strategies: "
                "make both within strategy.scope()."
            )
        if not optimizer.steps_taken:
            optimizer.run.were_loaded |= self._training.were_loaded
        return optimizer

    @property
    def _training(self) -> TrainingState:
        """The state of this model's training, which no file contains."""
        state: TrainingState = self.__dict__.setdefault(_STATE, TrainingState())
        return state

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # `getattr` also finds overrides by mixins that come first among the bases.
        for method in _STEP_METHODS:
            if getattr(cls, method) is not getattr(PrivateStep, method):
                raise UnsupportedModelError(
                    _OTHER_LOOP.format(name=cls.__name__, method=method)
                )

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _STEP_METHODS:
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
        """Sets Keras' train function to one that calls the programs of each step."""
        self._training.ready = None
        # Any other function that was set here would take steps that are not private.
        self.train_function = self._in_turn
        return self.train_function

    def _in_turn(self, iterator: Any) -> dict[str, Any]:
        """Takes the steps of one execution of Keras' loop; threads take turns.

        Two threads that took one step at the same time would both use its noise. The second
        thread finds that the step was taken, and is refused if its batch belongs to that
        step.
        """
        run = self._private_optimizer().run
        logs, spec = None, getattr(iterator, "element_spec", None)
        with run.turn, optimized_once():
            for _, batch in zip(range(self.steps_per_execution), iterator):
                batch = given(batch)
                if self._training.ready is None:
                    self._ready_for(batch)
                    run.start(self.weights)
                    self._training.ready = self._programs()
                tables, every = run.tables, self._settings.release_every
                if tables is not None:
                    tables.begin()
                logs = self._training.ready.step(batch, spec)
                if every and tables is not None and tables.steps_behind >= every:
                    run.release()
        if logs is None:
            raise StopIteration
        return logs
