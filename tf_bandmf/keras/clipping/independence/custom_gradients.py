"""Operations whose gradient was replaced.

That the forward pass keeps examples apart says nothing about a backward pass that was
written by hand. Only gradients that TensorFlow defines itself are known.
"""

from __future__ import annotations

from typing import Any

from tf_bandmf.keras.clipping.independence.domain import NotIndependent
from tf_bandmf.keras.compat.graphs import custom_gradient, nn_impl, ops
from tf_bandmf.keras.compat.own_gradients import is_call, is_of_the_step

# Modules of TensorFlow whose custom gradients act on each element alone.
_KNOWN = (nn_impl,)
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
    if is_call(op.type) and is_call(name):
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
    return acts_on_elements(function)


def acts_on_elements(function: Any) -> bool:
    """Whether a custom gradient is one of TensorFlow's that act on each element alone."""
    written = _innermost(function)
    return any(_is_code_of(written, module) for module in _KNOWN)


def is_trusted(function: Any) -> bool:
    """Whether a custom gradient is TensorFlow's, or what the step itself made."""
    return acts_on_elements(function) or is_of_the_step(_innermost(function))


def _innermost(function: Any) -> Any:
    """The function that the author of a `tf.custom_gradient` wrote for its gradient.

    Args:
      function: what TensorFlow made of it for a graph or a tape.
    """
    for name in ("tape_grad_fn", "grad_fn"):
        if getattr(function, "__code__", None) is None:
            return None
        cells = dict(
            zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        )
        if name in cells and _is_code_of(function, custom_gradient):
            function = cells[name].cell_contents
    return function if hasattr(function, "__code__") else None


def _is_code_of(function: Any, module: Any) -> bool:
    """Whether a function was made in a module, at any depth."""
    return getattr(function, "__globals__", None) is vars(module)
