"""Compiles a step's programs; refuses updates and metrics that could pass on raw data.

Schedules, constraints, regularizers and inner optimizers are the user's code. They are
traced as a function of noisy gradients, so they cannot reach tensors that another
program has computed from data. Before their graph runs for the first time, it is
checked: it is refused if it reads a metric, reads an eager tensor from outside the
graph, or runs Python code. The program that computes metrics is refused if it writes
variables of anything but metrics.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, NoReturn

import optree
import tensorflow as tf

from tf_bandmf.keras.clipping.independence.state import may_write
from tf_bandmf.keras.clipping.tensors.errors import UnsupportedModelError
from tf_bandmf.keras.compat.graphs import call_flat, captured, kind_of, nodes_of
from tf_bandmf.keras.compat.keras_objects import handles, metric_handles
from tf_bandmf.keras.compat.optimizing import optimized

_OfReplicas = tf.distribute.DistributedValues
_HOST = ("PyFunc", "PyFuncStateless", "EagerPyFunc")


class Program:
    """A compiled function of nested tensors, traced again for other shapes and dtypes.

    In each call, `tf.function` searches all signatures for which it was traced, which
    takes as long as running a small program. Steps usually have arguments of the same
    nesting and shapes, so this class compares them only with those of the last call.

    Args:
      function: a function of nested tensors and None.
      jit_compile: True to compile the function with XLA.
      around: returns the context in which the compiled function runs. The function is
        traced outside of that context.
      rounds: how often TensorFlow optimizes the graph; see `optimized`.

    Attributes:
      function: the `tf.function`.
      jit_compile: True if XLA compiles it.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        jit_compile: bool = False,
        around: Callable[[], Any] = contextlib.nullcontext,
        rounds: int = 1,
    ) -> None:
        self._around, self._rounds = around, rounds
        self.function = tf.function(
            function, autograph=False, reduce_retracing=True, jit_compile=jit_compile
        )
        self.jit_compile = jit_compile
        # Nesting and specs of the last call; and its concrete function, or None if an
        # argument was distributed. They are one tuple, because threads may share a
        # program.
        self._last: Any = None, None

    def __call__(self, *args: Any) -> Any:
        """Runs the function; traces it first if nesting, shapes or dtypes have changed."""
        leaves = tf.nest.flatten(args, expand_composites=True)
        nesting = optree.tree_structure(args, none_is_leaf=True)  # type: ignore
        specs = [nesting, *map(kind_of, leaves)]
        last, concrete = self._last
        if specs != last:
            concrete = self.traced(*args)
            # Concrete functions do not accept distributed values that include replicas
            # of other processes.
            if any(isinstance(arg, _OfReplicas) for arg in tf.nest.flatten(args)):
                concrete = None
            self._last = specs, concrete
        with self._around(), optimized(self._rounds):
            return call_flat(concrete, leaves) if concrete else self.function(*args)

    def traced(self, *args: Any) -> Any:
        """Returns the concrete function for these arguments, or for their specs."""
        return self.function.get_concrete_function(*args)


class Update(Program):
    """A program that may use only its arguments, variables and constants.

    Its graph is checked when it is traced: UnsupportedModelError is raised if the graph
    reads a metric, reads an eager tensor from outside the graph, or runs Python code.
    If it reads a tensor of another graph, TensorFlow raises TypeError.

    Args:
      function: the program's function.
      model: the model whose metrics the program must not read; None if there is none.
      *options: the arguments `jit_compile` and `around` of `Program`.
    """

    _text = (
        "The update of the weights {what}: data could pass without noise. Compute "
        "learning rates, constraints, regularizers and inner optimizers by operations "
        "of Keras or TensorFlow, from gradients, their own variables and constants."
    )

    def __init__(
        self, function: Callable[..., Any], model: Any = None, *options: Any
    ) -> None:
        def checked(*args: Any) -> Any:
            result = function(*args)
            self._check(tf.compat.v1.get_default_graph())
            return result

        super().__init__(checked, *options)
        self._model = model

    def _refuse(self, what: str) -> NoReturn:
        raise UnsupportedModelError(self._text.format(what=what))

    def _check(self, graph: Any) -> None:
        metrics = metric_handles(self._model) if self._model is not None else set()
        for outside, inside in graph.captures:
            if id(outside) in metrics:
                self._refuse(
                    f"reads a metric ({inside.name!r}), an exact statistic of the training "
                    f"data"
                )
            if outside.dtype != tf.resource:
                self._refuse(f"reads a tensor, not a variable ({inside.name!r})")
        for operation in graph.get_operations():
            if any(node.op in _HOST for node in nodes_of(operation)):
                self._refuse(f"runs code outside of the graph ({operation.name!r})")


class Measure(Update):
    """A program that computes exact metrics of the data, and changes only metrics."""

    _text = (
        "A metric {what}: it would carry training data past clipping and noise. Keep the "
        "state of a metric in variables that `self.add_variable` makes."
    )

    def _check(self, graph: Any) -> None:
        metrics = metric_handles(self._model)
        of_weights = handles(self._model.weights)
        for operation in graph.get_operations():
            for tensor in operation.inputs:
                handle = captured(tensor) if tensor.dtype == tf.resource else None
                if handle is None or id(handle) in metrics:
                    continue
                writes = id(handle) in of_weights and may_write(operation)
                if writes or operation.type.startswith("Assign"):
                    self._refuse(f"writes another variable (in {operation.name!r})")
