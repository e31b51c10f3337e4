"""Training loops of one's own: noisy gradients that come from the private step alone."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_bandmf.keras.clipping import update_runs_no_host_code
from tf_bandmf.keras.run.membership import RESTORED
from tf_bandmf.keras.run.weights_seal import CHANGED, STATE_CHANGED, WeightsSeal


class NoisyGradients:
    """The noisy mean gradient of one step; `private_gradients` makes it.

    Everything that is computed from it is post-processing and costs no privacy.

    Attributes:
      gradients: float tensors, aligned with the model's trainable variables.
      step: which step of the plan they are of, int64 scalar.
    """

    __slots__ = ("_owner", "_used", "_weights", "gradients", "step")

    def __init__(
        self,
        gradients: Sequence[tf.Tensor],
        step: tf.Tensor,
        owner: Any,
        weights: Sequence[Any],
    ) -> None:
        self.gradients, self.step = tuple(gradients), step
        self._owner, self._weights, self._used = weakref.ref(owner), weights, False

    def map(self, function: Callable[[tf.Tensor], tf.Tensor]) -> NoisyGradients:
        """The same step with other gradients: scaled, clipped again, masked.

        Args:
          function: of each gradient. It must see nothing private but the gradient.

        Raises:
          ValueError: if a result has another shape.
        """
        changed = [tf.convert_to_tensor(function(g)) for g in self.gradients]
        for new, old in zip(changed, self.gradients):
            if new.shape != old.shape:
                raise ValueError(
                    f"A gradient must keep its shape {old.shape}, found {new.shape}."
                )
        owner = self._owner()
        self.take(owner)
        return NoisyGradients(changed, self.step, owner, self._weights)

    def take(self, owner: Any) -> Sequence[Any]:
        """Hands them out once, to the optimizer of their run.

        Returns:
          The model's weights.

        Raises:
          ValueError: if they are another's, or were used.
        """
        if owner is None or self._owner() is not owner:
            raise ValueError(
                "These gradients are of another run. Apply them with the optimizer of the "
                "model whose private_gradients made them."
            )
        if self._used:
            raise ValueError(
                "These gradients were used before: a step is applied once. Take those of "
                "the next batch with model.private_gradients(batch)."
            )
        self._used = True
        return self._weights


class NoisySteps:
    """Mixin of `PrivateOptimizer`: applies noisy gradients."""

    # Of the optimizer.
    _trainable_variables: list[Any]
    inner_optimizer: Any
    seal: WeightsSeal

    def apply_noisy(
        self,
        noisy: NoisyGradients,
        update: Callable[[Sequence[tf.Tensor], Sequence[Any]], Any] | None = None,
    ) -> None:
        """Applies what `model.private_gradients` returned, once.

        Args:
          noisy: of this run's last step.
          update: None for the inner optimizer; or a function of gradients and variables
            that changes the variables by itself. It must use nothing private but the
            gradients: what it does is taken for post-processing.

        Raises:
          TypeError: if they are no gradients of `private_gradients`.
          ValueError: if they are another run's, or were applied before.
          InvalidArgumentError: if they are not of the last step, or something else
            changed the weights meanwhile.
        """
        if not isinstance(noisy, NoisyGradients):
            raise TypeError(
                f"apply_noisy takes what model.private_gradients(batch) returned, found "
                f"{type(noisy).__name__}: other gradients were not clipped and noised. "
                f"To change them, use noisy.map(function)."
            )
        weights = noisy.take(self)
        variables = self._trainable_variables
        iterations = self.inner_optimizer.iterations
        conditions = [
            (tf.equal(tf.cast(iterations.value, tf.int64), noisy.step), RESTORED),
            (self.seal.holds(weights), CHANGED),
            (self.seal.holds_state(), STATE_CHANGED),
        ]
        checks = [tf.debugging.Assert(holds, [text]) for holds, text in conditions]
        with tf.control_dependencies([check for check in checks if check is not None]):
            gradients = [tf.identity(gradient) for gradient in noisy.gradients]
        with tf.control_dependencies(gradients):
            if update is None:
                with update_runs_no_host_code():
                    self.inner_optimizer.apply(gradients, variables)
            else:
                update(gradients, variables)
                iterations.assign(tf.cast(noisy.step + 1, iterations.dtype))
        self.seal.renew(weights)


def traced_once(model: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` as one graph, until model, optimizer or trainable weights are others."""
    now = (
        bool(model.jit_compile),
        [
            model.optimizer,
            model._compile_loss,
            *model.trainable_variables,
            *model._flatten_layers(),
        ],
    )
    known = getattr(model, "_gradient_function", None)
    if known is None or not _are_same(known[0], now):
        graph = tf.function(function, autograph=False, reduce_retracing=True)
        # A tuple of its own, which Keras must not track.
        known = (now, graph)
        object.__setattr__(model, "_gradient_function", known)
    return known[1]


def _are_same(old: tuple[bool, list[Any]], new: tuple[bool, list[Any]]) -> bool:
    same = len(old[1]) == len(new[1]) and all(a is b for a, b in zip(old[1], new[1]))
    return same and old[0] == new[0]
