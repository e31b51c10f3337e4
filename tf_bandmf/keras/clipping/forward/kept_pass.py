"""Keeps one traced pass for both the self-check and the step.

Most of the time before a private run's first step goes into tracing the model's pass.
So the pass that `self_check` compares with gradients taken one by one is kept, and the
step runs it. The check cannot use random masks: it runs a copy of the traced function
in which constants replace what Keras' random functions draw, and draws the same
constants for the gradients that it compares with. Everything else is, node for node,
what the step runs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tf_bandmf.graphs.operations import LOOPS
from tf_bandmf.keras.clipping.tensors import batches
from tf_bandmf.keras.compat import fixed_draws
from tf_bandmf.keras.compat.keras_objects import all_layers, compile_loss

_STATE = threading.local()
# Attribute of a model: its checked pass that no step has taken yet.
_READY = "_checked_pass"
# Attributes that Keras' training itself changes.
_OF_TRAINING = {
    "history",
    "predict_function",
    "stop_training",
    "test_function",
    "train_function",
}


class Same:
    """Equal to another one of the same object, which it keeps: no id is used twice."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self._value is other._value

    __hash__ = None  # type: ignore[assignment]


@dataclasses.dataclass(frozen=True)
class CheckedPass:
    """A traced pass.

    Attributes:
      concrete: maps tensors [B, ...], clip norms [G] float64 and [B] bool to
        `ClippedGradients`.
      key: what it was traced for, see `key_of`.
      drawn: names of the operations by which Keras draws random numbers.
      repeatable: whether constants can be drawn instead.
    """

    concrete: Any
    key: Any
    drawn: tuple[str, ...]
    repeatable: bool

    @property
    def has_loops(self) -> bool:
        """Whether it has loops that are not unrolled."""
        operations = self.concrete.graph.get_operations()
        return any(op.type in LOOPS for op in operations)

    def run(self, constant_draws: bool) -> Callable[..., Any]:
        """The pass as a function of the arguments of `concrete`, to call eagerly.

        Args:
          constant_draws: replaces what is drawn, see `fixed_draws.constants_drawn`.
        """
        name = f"checked_pass_{uuid.uuid4().hex}"
        drawn = self.drawn if constant_draws else ()
        return fixed_draws.FixedCopy(self.concrete, name, drawn)


def trace(function: Callable[..., Any], signature: Sequence[Any], key: Any) -> Any:
    """Traces a pass, and notes what it draws.

    Args:
      function: of the arguments of `CheckedPass.concrete`.
      signature: specs of its arguments.
      key: of `key_of`.
    """
    with fixed_draws.noted_draws() as noted:
        traced = tf.function(function, autograph=False, input_signature=signature)
        concrete = traced.get_concrete_function()
    own = [op for op in noted if op.graph is concrete.graph]
    repeatable = fixed_draws.can_draw_constants(concrete, own)
    return CheckedPass(concrete, key, tuple(op.name for op in own), repeatable)


def key_of(model: Any, variables: Sequence[Any], data: Any, settings: Any) -> Any:
    """What a pass is traced for: a step with another key traces its own.

    Args:
      model: the model.
      variables: its trainable variables.
      data: structure of tensors [B, ...]; None stays None.
      settings: of the clipping, apart from clip norms.
    """
    return (
        tuple(Same(variable) for variable in variables),
        tuple(part is not None for part in data),
        batches.specs_of(data),
        Same(compile_loss(model)),
        settings,
        tuple((Same(layer), _settings(layer)) for layer in all_layers(model)),
    )


def _settings(layer: Any) -> tuple[Any, ...]:
    """A layer's public attributes: numbers such as a rate, functions, other objects."""
    return (
        layer.trainable,
        layer.dtype_policy.name,
        tuple(
            (name, _setting(value))
            for name, value in sorted(vars(layer).items())
            if not name.startswith("_") and name not in _OF_TRAINING
        ),
    )


def _setting(value: Any) -> Any:
    if isinstance(value, (bool, int, float, str, type(None))):
        return type(value), value
    if isinstance(value, (list, tuple)):
        return tuple(_setting(part) for part in value)
    if isinstance(value, dict):
        return tuple((key, _setting(part)) for key, part in value.items())
    return Same(value)


def keep(model: Any, checked: CheckedPass) -> None:
    """Lets the next step with its key run it."""
    # Not by `setattr`: Keras must not track it.
    vars(model)[_READY] = checked


def is_kept(model: Any) -> bool:
    """Whether a checked pass waits for a step."""
    return vars(model).get(_READY) is not None


def forget(model: Any) -> None:
    """Lets no later step run a checked pass that none has taken."""
    vars(model)[_READY] = None


def take(model: Any, key: Callable[[], Any]) -> Any | None:
    """The concrete function of the checked pass, once, if it is that of this key."""
    checking = getattr(_STATE, "checking", None)
    if checking is not None and checking[0] is model:
        return checking[1]
    checked = vars(model).get(_READY)
    if checked is None:
        return None
    forget(model)
    return checked.concrete if checked.key == key() else None


@contextlib.contextmanager
def checking(model: Any, run: Callable[..., Any]) -> Iterator[None]:
    """Runs a function wherever the model's pass would run, in this thread."""
    _STATE.checking = (model, run)
    try:
        yield
    finally:
        _STATE.checking = None
