"""Objectives in TensorFlow as functions of NumPy arrays: value and gradient."""

from __future__ import annotations

from typing import Callable

import numpy as np
import tensorflow as tf

from tf_bandmf.optimize.lbfgs import Function


def value_and_gradient(
    loss: Callable[[tf.Tensor], tf.Tensor], size: int, by_xla: bool = False
) -> Function:
    """A function of a position [size] that gives `loss` and its gradient, traced once.

    Args:
      loss: maps variables, shape [size], float64, to a scalar; it may read variables that
        change between calls.
      size: number of variables.
      by_xla: compile for the processor, which takes a second or two: for hundreds of
        evaluations of milliseconds each.
    """

    def evaluate(position: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(position)
            value = loss(position)
        gradient = tape.gradient(
            value, position, unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        return value, gradient

    # Concrete: TensorFlow would warn of retracing when several problems are solved.
    concrete = tf.function(
        evaluate, autograph=False, jit_compile=by_xla or None
    ).get_concrete_function(tf.TensorSpec([size], tf.float64))

    def function(position: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = concrete(tf.constant(position))
        return float(value), gradient.numpy()

    return function
