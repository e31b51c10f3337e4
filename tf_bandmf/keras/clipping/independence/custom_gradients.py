"""Operations whose gradient was replaced.

That the forward pass keeps examples apart says nothing about a backward pass that was
written by hand. Only gradients that TensorFlow defines itself are known.
"""

from __future__ import annotations

from typing import Any

from tf_bandmf.keras.clipping.independence.domain import NotIndependent
from tf_bandmf.keras.compat.graphs import nn_impl, ops

_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
# Modules of TensorFlow whose custom gradients act on each element alone.
_KNOWN_FILES = frozenset({nn_impl.__file__})
_ATTRIBUTE = "_gradient_op_type"


def refuse_unknown(op: Any) -> None:
    """Refuses an operation with a gradient that is not TensorFlow's own.

    Raises:
      NotIndependent: if its gradient is replaced by one that is not known here.
    """
    try:
        name = op.get_attr(_ATTRIBUTE)
    except ValueError:
        return
    name = name.decode() if isinstance(name, bytes) else str(name)
    if op.type in _CALLS and name.startswith(_CALLS):
        return
    if _is_known(name):
        return
    raise NotIndependent(
        "has a custom gradient, which may combine examples whatever the forward pass "
        "does"
    )


def _is_known(name: str) -> bool:
    try:
        function = ops.gradient_registry.lookup(name)
    except LookupError:
        return False
    written = _innermost(function)
    return written is not None and written.__code__.co_filename in _KNOWN_FILES


def _innermost(function: Any) -> Any:
    """The function that the author of a `tf.custom_gradient` wrote for its gradient."""
    for name in ("tape_grad_fn", "grad_fn"):
        cells = dict(
            zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        )
        if name not in cells:
            return None
        function = cells[name].cell_contents
        if not hasattr(function, "__code__"):
            return None
    return function
