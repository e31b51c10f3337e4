"""The Keras functions that are intercepted when a model is called on symbolic tensors.

Such a call shows whether the examples of a batch stay independent of each other.

Tests that fail if this breaks: `tests/keras/clipping/independence/test_table.py`.
"""

import functools
import inspect
from typing import Any

from keras.src import backend as backend
from keras.src import ops as ops
from keras.src.activations import activations
from keras.src.backend import KerasTensor as KerasTensor
from keras.src.backend import tensorflow
from keras.src.layers import layer as layer
from keras.src.ops import core, image, linalg, math, nn, numpy
from keras.src.ops import operation as operation
from tensorflow.python.ops import cond, control_flow_switch_case, while_loop

# Since Keras 3.16, the backend has its operations in the module `ops`, and its
# recurrent loops in the module `rnn`.
_BACKEND = getattr(backend, "ops", backend)
RECURRENT = backend.rnn if inspect.ismodule(backend.rnn) else backend
# The modules that define Keras' operations and activation functions.
MODULES = (numpy, nn, core, math, linalg, image, activations)
# The functions for branches and loops. They run eagerly if their condition is known.
BRANCHES = (
    (cond, "cond"),
    (while_loop, "while_loop"),
    (control_flow_switch_case, "_indexed_case_helper"),
    (_BACKEND.core, "cond"),
    (_BACKEND.core, "switch"),
)


def names_in(code: Any) -> set[str]:
    """Returns the names of the globals and attributes that a code object uses.

    The result includes the names in nested functions.
    """
    names = set(getattr(code, "co_names", ()))
    return names.union(*map(names_in, getattr(code, "co_consts", ())))


@functools.cache
def of_the_backend() -> list[tuple[Any, str, Any]]:
    """Lists the functions of Keras' backend that also exist as Keras operations.

    Layers may call these functions of the backend directly.

    Returns:
      Tuples of a backend module, a function's name in it, and the operation.
    """
    b = _BACKEND
    return [
        (module, name, getattr(ops, name))
        for module in (b.numpy, b.nn, b.math, b.core, b, tensorflow)
        for name, function in vars(module).items()
        if callable(function)
        and getattr(function, "__module__", "").startswith("keras.src.backend")
        and "any_symbolic_tensors"
        in names_in(getattr(getattr(ops, name, None), "__code__", None))
    ]
