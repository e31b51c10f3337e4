"""Makes the private counterpart of a model class; saves and loads models of that class."""

from __future__ import annotations

from typing import Any

import keras

from tf_bandmf.keras.compat.keras_objects import (
    Functional,
    copy_config_mark,
    register_class,
    registered_name,
)
from tf_bandmf.keras.model.training import PrivateTraining

# Methods that the private step replaces: an override would be ignored, or break privacy.
_REPLACED = ("train_step", "compute_loss", "make_train_function")
_KNOWN_MODULES = ("keras.", "keras_hub.", "tf_bandmf.")
_PLAIN, _CONFIG = "plain_class", "config"


_PRIVATE_CLASSES: dict[type, type] = {}


class PrivateModel:
    """Loads saved models of private classes; all of these are registered under one name.

    The private class of a plain class is made on demand. When a file is loaded, it is
    made from the plain class that the file names. Keras must know that class: as one of
    its own or KerasHub's, by registration, or from `custom_objects`.
    """

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> keras.Model:
        """Makes a private model from the result of a private class' `get_config`."""
        plain = keras.saving.deserialize_keras_object(
            {**config[_PLAIN], _CONFIG: config[_CONFIG]}
        )
        plain.__class__ = private_class(type(plain))
        return plain


_REGISTERED_NAME = f"tf_bandmf>{PrivateModel.__name__}"
keras.saving.get_custom_objects()[_REGISTERED_NAME] = PrivateModel


def private_class(plain_class: type) -> type:
    """The private counterpart of a model class.

    Args:
      plain_class: `keras.Sequential`, `keras.Model` or a subclass.

    Returns:
      A subclass of `PrivateTraining` and of `plain_class`; the same one each time.

    Raises:
      TypeError: if `plain_class` is not a model class, or overrides the training step,
        which the private class replaces.
    """
    if plain_class in _PRIVATE_CLASSES:
        return _PRIVATE_CLASSES[plain_class]
    if not issubclass(plain_class, keras.Model):
        raise TypeError(
            f"model: make_private takes a keras.Model, found {plain_class.__name__}."
        )
    for name in _REPLACED:
        method = getattr(plain_class, name)
        if not method.__module__.startswith(_KNOWN_MODULES):
            raise TypeError(
                f"{plain_class.__name__} overrides {name}, which private training "
                f"replaces. Remove it: give the loss to compile(loss=...), and augment "
                f"data in the layers of the model."
            )
    made = type(
        f"Private{plain_class.__name__}",
        (PrivateTraining, plain_class),
        {
            "__module__": __name__,
            "__doc__": f"A `{plain_class.__name__}` that trains privately.",
            "get_config": _get_config(plain_class),
            "from_config": PrivateModel.from_config,
        },
    )
    register_class(made, _REGISTERED_NAME)
    _PRIVATE_CLASSES[plain_class] = made
    return made


def plain_class_of(model: keras.Model) -> type | None:
    """The class that a model had before it was made private; None if it never had one."""
    kind = type(model)
    return kind.__bases__[1] if kind in _PRIVATE_CLASSES.values() else None


def plain_config(model: keras.Model) -> dict[str, Any]:
    """The config from which the plain class' `from_config` makes the model.

    Raises:
      NotImplementedError: by Keras, if the class has no config.
    """
    return dict(model.get_config()[_CONFIG])


def _get_config(plain_class: type) -> Any:
    def get_config(self: Any) -> dict[str, Any]:
        """The config of the plain class, and the name of that class."""
        return {
            _PLAIN: {
                "module": plain_class.__module__,
                "class_name": plain_class.__name__,
                "registered_name": registered_name(plain_class),
            },
            _CONFIG: plain_class.get_config(self),  # type: ignore[attr-defined]
        }

    # This mark tells Keras to derive the config of a class that has no `get_config`
    # from the arguments of `__init__`.
    copy_config_mark(plain_class.get_config, get_config)  # type: ignore[attr-defined]
    return get_config


# Pickled models name these classes.
PrivateSequential = private_class(keras.Sequential)
PrivateFunctional = private_class(Functional)
