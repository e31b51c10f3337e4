"""Objectives of an optimization, which map the per-step squared errors to a number."""

from __future__ import annotations

import dataclasses
from typing import Callable, Union

import numpy as np
import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Objective:
    """A differentiable function of the per-step squared errors.

    Attributes:
      name: name in tables and diagnostics.
      reduction: function that maps squared errors, shape [n], float64, to a positive
        scalar.
      is_convex: True if `reduction` is convex and non-decreasing in every error. Only
        then is the problem convex in `C^T C`, which a certified optimality gap
        requires. Convexity is not checked.
    """

    name: str
    reduction: Callable[[tf.Tensor], tf.Tensor]
    is_convex: bool = False

    def support(self, errors: np.ndarray) -> tuple[np.ndarray, float]:
        """Returns `w` and `c` such that `reduction(v) = w @ v + c` at `v = errors`.

        If the reduction is convex, `reduction(v) >= w @ v + c` for every `v >= 0`.
        """
        with tf.GradientTape() as tape:
            v = tf.constant(errors, tf.float64)
            tape.watch(v)
            value = self.reduction(v)
        weights = tape.gradient(value, v).numpy()
        return weights, float(value) - float(weights @ errors)


def _last(errors: tf.Tensor) -> tf.Tensor:
    return errors[-1]


MEAN = Objective("mean", tf.reduce_mean, is_convex=True)
LAST = Objective("last", _last, is_convex=True)
# `optimize.maximum` minimizes smooth approximations of this objective.
MAX = Objective("max", tf.reduce_max, is_convex=True)

ObjectiveLike = Union[str, Objective, Callable[[tf.Tensor], tf.Tensor]]


def resolve(objective: ObjectiveLike, errors_increase: bool = False) -> Objective:
    """Converts an `objective` argument to an `Objective`.

    Args:
      objective: "mean" (the squared RMSE), "max" (the squared MaxSE), "last" (the final
        model's squared error), an `Objective`, or a differentiable function of the
        per-step squared errors.
      errors_increase: True if errors never decrease from step to step, as for Toeplitz
        strategies with Toeplitz workloads. The maximum error is then the last error.

    Raises:
      ValueError: if the name is unknown.
      TypeError: if `objective` is not one of the above.
    """
    if isinstance(objective, Objective):
        return objective
    if isinstance(objective, str):
        named = {"mean": MEAN, "last": LAST, "max": LAST if errors_increase else MAX}
        if objective not in named:
            raise ValueError(
                f'objective must be "mean", "max", "last" or a function, found '
                f"{objective!r}."
            )
        return named[objective]
    if callable(objective):
        return Objective(getattr(objective, "__name__", "custom"), objective)
    raise TypeError(f"objective must be a name or a function, found {objective!r}.")
