"""A function of tensors that TensorFlow compiles, and Python calls in each step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf


class Program:
    """A compiled function of nested tensors, traced again for other shapes and dtypes.

    `tf.function` looks its arguments up among all that it was traced for, which takes as
    long as a small program does. Steps have arguments of the same shapes: these alone are
    compared here.

    Args:
      function: of nested tensors and None.
      jit_compile: whether XLA compiles it.

    Attributes:
      function: the `tf.function`.
      jit_compile: whether XLA compiles it.
    """

    def __init__(self, function: Callable[..., Any], jit_compile: bool = False) -> None:
        self.function = tf.function(
            function, autograph=False, reduce_retracing=True, jit_compile=jit_compile
        )
        self.jit_compile = jit_compile
        self._concrete: Any = None
        self._specs: list[Any] = []
        self._is_of_replicas = False

    def __call__(self, *args: Any) -> Any:
        """Runs it."""
        leaves = tf.nest.flatten(args, expand_composites=True)
        specs = [None if leaf is None else (leaf.dtype, leaf.shape) for leaf in leaves]
        if specs != self._specs or self._concrete is None:
            self._concrete = self.traced(*args)
            self._specs = specs
            kinds = map(type, tf.nest.flatten(args))
            self._is_of_replicas = any(
                issubclass(kind, tf.distribute.DistributedValues) for kind in kinds
            )
        # A concrete function does not take what replicas of other processes have.
        run = self.function if self._is_of_replicas else self._concrete
        return run(*args)

    def traced(self, *args: Any) -> Any:
        """The concrete function for such arguments, or for their specs."""
        return self.function.get_concrete_function(*args)
