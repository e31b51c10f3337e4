"""Keras variables and the TensorFlow variables behind them."""

from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf

from tf_bandmf.keras.compat.keras_objects import tensorflow_value


def tensorflow_variable(variable: Any) -> tf.Variable:
    """Returns the `tf.Variable` behind a Keras variable.

    `variable.value` is not it: under an autocast scope that is a cast tensor.

    Args:
      variable: a Keras variable.

    Returns:
      The (possibly distributed) TensorFlow variable.
    """
    return tensorflow_value(variable)


class VariableIndex:
    """Finds the Keras variable to which a TensorFlow variable or handle belongs.

    Args:
      variables: Keras variables; each must be built.
    """

    def __init__(self, variables: Iterable[Any]) -> None:
        self._owner: dict[int, Any] = {}
        # Handles are compared by id: keep them alive as long as the index.
        self._keep: list[Any] = []
        for variable in variables:
            raw = tensorflow_variable(variable)
            # A distributed variable is read through one of its components.
            for part in (raw, *getattr(raw, "values", ())):
                handle = getattr(part, "handle", None)
                for key in (part, handle):
                    if key is not None:
                        self._owner[id(key)] = variable
                        self._keep.append(key)

    def owner(self, key: Any) -> Any | None:
        """Returns the Keras variable of a TensorFlow variable or handle, or None."""
        return self._owner.get(id(key))


def trainable_variables(model: keras.Model) -> list[Any]:
    """Returns the variables that training changes, in Keras' order."""
    return list(model.trainable_variables)


class Same:
    """Equal to another one of the same object, which it keeps: no id is used twice."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self._value is other._value

    __hash__ = None  # type: ignore[assignment]
