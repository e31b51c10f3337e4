"""Noisy gradients for custom training loops; only the private step makes them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


class NoisyGradients:
    """The noisy mean gradient of one step; `private_gradients` makes it.

    Everything that is computed from it is post-processing and costs no privacy.

    Attributes:
      gradients: float tensors, aligned with the model's trainable variables.
      step: the plan's step that they belong to, int64 scalar.
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
          function: function of each gradient. It must see nothing private but the
            gradient.

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
        """Hands the gradients out once, to the optimizer of their run.

        Returns:
          The model's weights.

        Raises:
          ValueError: if they belong to another run, or were used.
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
