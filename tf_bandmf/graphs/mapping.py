"""A function of one example, for each example by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def map_each(
    function: Callable[[Any], Any],
    elements: Any,
    signature: Any,
    parallel_iterations: int | None = None,
) -> Any:
    """`tf.map_fn`, after which TensorFlow is as it was, also if the function raises.

    Where that happens in a graph, `tf.map_fn` leaves a caching device in the variable
    scope, which graphs share with the program around them: no distribution strategy could
    be entered any more in this process.

    Args:
      function: of the elements of one example.
      elements: structure of tensors [N, ...].
      signature: structure of specs of what it returns.
      parallel_iterations: as for `tf.map_fn`.

    Returns:
      Structure of tensors [N, ...].
    """
    scope = tf.compat.v1.get_variable_scope()
    before = scope.caching_device
    try:
        return tf.map_fn(
            function,
            elements,
            fn_output_signature=signature,
            parallel_iterations=parallel_iterations,
        )
    finally:
        if not tf.executing_eagerly():
            scope.set_caching_device(before)
