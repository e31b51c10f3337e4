"""Minimization of the maximum per-step error by weighted p-norms, with a lower bound.

The maximum of the errors `e_i` is the limit of `(sum_i w_i e_i^p / n)^(1/p)` for p to
infinity, with any weights w > 0. The orders p are increased in stages. The optimum of a
stage shows which steps matter. With `w_i e_i^p` as the weights of the next stage, a
moderate order comes as close to the maximum as a much larger order without weights, and
is better conditioned. This is the exponential method of multipliers (Bertsekas,
Constrained Optimization and Lagrange Multiplier Methods, 1982, section 5.1), with
increasing orders.

For any weights, no strategy's maximum error is below the minimum of the weighted mean
error over all strategies. To obtain this lower bound, a final stage of order 1
minimizes the weighted mean. Its weights come from the optimum of the previous stage.
"""

from __future__ import annotations

import dataclasses
from typing import Callable

import numpy as np
import tensorflow as tf

from tf_bandmf.optimize.options import Options
from tf_bandmf.optimize.result import OptimizationResult

# The order of the norm in each stage. A stage starts at the optimum of the previous
# stage.
_ORDERS = (8.0, 64.0, 512.0, 4096.0)
# The minimum weight of a step, relative to the mean weight. If a step had weight 0, its
# error could grow.
_LEAST_WEIGHT = 1e-2
# In the final stage, each step gets at least this weight, relative to the mean weight. If
# some weights were 0, the errors of these steps would be unconstrained, and the
# certificate could not invert the weights.
_ALIKE = 3e-4
# The weighted mean is flat near its optimum. Therefore the final stage multiplies the
# maximum number of iterations by _MORE_ITERATIONS, and the decrease tolerance by
# _LESS_DECREASE. However, the stage may end once its gap is at most _BOUND_GAP.
_MORE_ITERATIONS, _LESS_DECREASE, _BOUND_GAP = 4, 1e-4, 1e-4

# A function that minimizes `SmoothMaximum`. Its arguments are the initial variables, the
# options, and optionally a function that returns the certified gap at given variables.
Minimize = Callable[..., OptimizationResult]
# A function of a strategy's variables and of the steps' weights. It returns a lower
# bound on the weighted mean error that holds for all strategies, and the errors of the
# given strategy.
Bound = Callable[[np.ndarray, np.ndarray], "tuple[float, np.ndarray]"]


class SmoothMaximum:
    """The function `(sum_i w_i e_i^p / n)^(1/p)` of n positive errors `e_i`.

    `assign` sets the weights `w_i` and the order `p`.
    """

    def __init__(self, num_steps: int) -> None:
        self.num_steps = num_steps
        self._order = tf.Variable(1.0, dtype=tf.float64, trainable=False)
        self._logs = tf.Variable(tf.zeros([num_steps], tf.float64), trainable=False)

    def __call__(self, errors: tf.Tensor) -> tf.Tensor:
        mean_power = tf.reduce_logsumexp(self._order * tf.math.log(errors) + self._logs)
        mean_power -= tf.math.log(tf.cast(self.num_steps, errors.dtype))
        return tf.exp(mean_power / self._order)

    def assign(self, order: float, weights: np.ndarray) -> None:
        """Sets the order p and the weights w, shape [n], which must have mean 1."""
        self._order.assign(order)
        self._logs.assign(np.log(weights))


def minimize(
    smooth: SmoothMaximum,
    minimize_smooth: Minimize,
    errors: Callable[[np.ndarray], np.ndarray],
    bound: Bound | None,
    start: np.ndarray,
    options: Options,
) -> OptimizationResult:
    """Minimizes the maximum of the per-step errors, in stages.

    Args:
      smooth: the smooth approximation of the maximum that each stage minimizes.
      minimize_smooth: function that minimizes `smooth`; its first argument is the
        initial variables.
      errors: function that maps variables to the errors, shape [n].
      bound: function of a strategy's variables and of the steps' weights. It returns a
        lower bound on the weighted mean error that holds for all strategies. It also
        returns the errors of the given strategy. The bound is good if the given
        strategy is near the optimum. `bound` is None if no certificate is wanted.
      start: initial variables.
      options: stopping rules of each stage.

    Returns:
      The result of the stage with the largest order. Its value is the maximum error;
      its iterations and seconds are the sums over all stages.
    """
    position, weights = start, np.ones(smooth.num_steps)
    results = []
    for order in _ORDERS:
        smooth.assign(order, weights)
        result = minimize_smooth(position, options=options)
        results.append(result)
        position = result.position
        reached = errors(position)
        logs = np.log(weights) + order * np.log(reached)
        exact = np.exp(logs - logs.max())
        weights = np.maximum(exact / exact.mean(), _LEAST_WEIGHT)
        weights /= weights.mean()
    value, message = float(reached.max()), result.message
    converged, gap = result.converged, None
    if bound is not None:
        multipliers = exact / reached
        multipliers /= multipliers.mean()
        multipliers = (1.0 - _ALIKE) * multipliers + _ALIKE
        smooth.assign(1.0, multipliers)
        shares, least = multipliers / multipliers.size, 0.0

        def gap_of_mean(position: np.ndarray) -> float:
            nonlocal least
            below, errors = bound(position, shares)
            least = max(least, below)
            return max(0.0, 1.0 - least / float(shares @ errors))

        longer = dataclasses.replace(
            options,
            max_iterations=_MORE_ITERATIONS * options.max_iterations,
            decrease_tolerance=_LESS_DECREASE * options.decrease_tolerance,
            gap_tolerance=max(options.gap_tolerance, _BOUND_GAP),
        )
        results.append(minimize_smooth(position, options=longer, gap=gap_of_mean))
        gap = max(0.0, 1.0 - least / value)
        if gap <= options.gap_tolerance:
            converged, message = True, f"certified gap <= {options.gap_tolerance:g}"
    return dataclasses.replace(
        result,
        value=value,
        converged=converged,
        message=message,
        optimality_gap=gap,
        num_iterations=sum(each.num_iterations for each in results),
        seconds=sum(each.seconds for each in results),
    )
