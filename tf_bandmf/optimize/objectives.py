"""What is minimized: a reduction of the per-step squared errors to one number."""

from __future__ import annotations

import dataclasses
from typing import Callable, Union

import numpy as np
import tensorflow as tf

# Smoothing of the maximum: p-norms, each stage started at the optimum of the one before.
NORMS = (8.0, 64.0, 512.0, 4096.0)


@dataclasses.dataclass(frozen=True)
class Objective:
    """A differentiable function of the per-step squared errors.

    Attributes:
      name: for tables and diagnostics.
      reduction: maps the squared errors, shape [n], float64, to a positive scalar.
      stages: smooth substitutes for `reduction`, minimized one after the other, or
        empty if `reduction` is smooth itself.
      is_convex: whether `reduction` is convex and non-decreasing in every error. Only
        then is the problem convex in `C^T C` and an optimality gap can be certified;
        the claim is the caller's.
    """

    name: str
    reduction: Callable[[tf.Tensor], tf.Tensor]
    stages: tuple[Callable[[tf.Tensor], tf.Tensor], ...] = ()
    is_convex: bool = False

    @property
    def smooth_stages(self) -> tuple[Callable[[tf.Tensor], tf.Tensor], ...]:
        return self.stages or (self.reduction,)

    def supports(self, errors: np.ndarray) -> list[tuple[np.ndarray, float]]:
        """Weights `w` and offsets `c` with `reduction(v) >= w @ v + c` for all `v >= 0`.

        Equality holds at `errors` for a smooth reduction; for the maximum the weights
        are those of each of its smooth substitutes and the inequality is strict.
        """
        found = []
        for stage in self.smooth_stages:
            with tf.GradientTape() as tape:
                v = tf.constant(errors, tf.float64)
                tape.watch(v)
                value = stage(v)
            weights = tape.gradient(value, v).numpy()
            if self.stages:
                found.append((weights / np.sum(weights), 0.0))
            else:
                found.append((weights, float(value) - float(weights @ errors)))
        return found


def _last(errors: tf.Tensor) -> tf.Tensor:
    return errors[-1]


def weighted_norm(
    errors: tf.Tensor, order: float | tf.Tensor, log_weights: float | tf.Tensor
) -> tf.Tensor:
    """`(sum_i w_i e_i^p / n)^(1/p)` of errors [n] > 0; of one log weight or n."""
    mean_power = tf.reduce_logsumexp(order * tf.math.log(errors) + log_weights)
    mean_power -= tf.math.log(tf.cast(tf.shape(errors)[0], errors.dtype))
    return tf.exp(mean_power / order)


def _norm(order: float) -> Callable[[tf.Tensor], tf.Tensor]:
    return lambda errors: weighted_norm(errors, order, 0.0)


MEAN = Objective("mean", tf.reduce_mean, is_convex=True)
LAST = Objective("last", _last, is_convex=True)
MAX = Objective(
    "max", tf.reduce_max, stages=tuple(_norm(p) for p in NORMS), is_convex=True
)

ObjectiveLike = Union[str, Objective, Callable[[tf.Tensor], tf.Tensor]]


def resolve(objective: ObjectiveLike, errors_increase: bool = False) -> Objective:
    """The `Objective` that a user's argument means.

    Args:
      objective: "mean" (the square of the RMSE), "max" (of the MaxSE), "last" (of the
        final model's error), an `Objective`, or a differentiable function of the
        per-step squared errors.
      errors_increase: whether the errors never decrease from step to step, as those of
        Toeplitz strategies and workloads: their maximum is the last one.

    Raises:
      ValueError: for an unknown name.
      TypeError: if it is not one of the above.
    """
    if isinstance(objective, Objective):
        return objective
    if isinstance(objective, str):
        known = {"mean": MEAN, "last": LAST, "max": LAST if errors_increase else MAX}
        if objective not in known:
            raise ValueError(
                f'objective must be "mean", "max", "last" or a function, found '
                f"{objective!r}."
            )
        return known[objective]
    if callable(objective):
        return Objective(getattr(objective, "__name__", "custom"), objective)
    raise TypeError(f"objective must be a name or a function, found {objective!r}.")
