"""Converts a Keras model to a private one, in place, and back to a plain one."""

from __future__ import annotations

import dataclasses
import inspect
import tempfile
from collections.abc import Collection, Sequence
from typing import Any

import keras

from tf_bandmf.keras.clipping.forward.supported import check_supported
from tf_bandmf.keras.compat.keras_objects import (
    Functional,
    all_layers,
    copy_config_mark,
)
from tf_bandmf.keras.model.cloning import cloned
from tf_bandmf.keras.model.settings import StepSettings
from tf_bandmf.keras.model.training import PrivateTraining
from tf_bandmf.keras.optimizer.private import PrivateOptimizer
from tf_bandmf.keras.tables.choice import DENSE


def make_private(
    model: keras.Model,
    *,
    microbatch_size: int | None = None,
    tables: str | Sequence[str] = DENSE,
    alone: Collection[str] = (),
) -> keras.Model:
    """Makes a Keras model train privately, in place.

    The model gets a private class, which is kept when the model is saved and loaded, so
    a reloaded model cannot train without privacy by accident. Compile the model with a
    `PrivateOptimizer`, before or after this call. `to_plain` returns the model to
    release.

    For a private Sequential model, `keras.models.clone_model` makes a plain model with
    new weights. If the clone is compiled like the original, it refuses to train until
    it is made private, too, with the same arguments.

    Files from `to_plain(model).save(...)` can be loaded without this library; files
    that the private model itself saved need `import tf_bandmf.keras` first. A
    private model that was saved in the legacy .h5 format cannot be loaded.

    Args:
      model: a Sequential, functional or subclassed model, or a KerasHub task; built or
        not. The preprocessor of a task must be taken out of it before training; the
        error that `fit` raises says how.
      microbatch_size: for large logical batches: the step processes its batch in groups
        of this many examples, one group after another, and needs only the memory of one
        group. Gradients are still clipped per example, and noise is still drawn once
        for the batch; the plan's budget counts batches, not groups.
      tables: "dense" or "lazy" noise for the rows of `Embedding` layers. "dense": all
        rows get noise in each step. "lazy": when a row is read, it gets the noise of
        all steps since its last read; when the model is released, all rows get their
        missing noise. So the cost of a step depends on the rows it reads, not on the
        size of the tables. Between releases, the layers' weights are those of the last
        release. Releases happen at the ends of epochs of `fit`, before `evaluate` and
        `predict`, and by `model.release()`. Lazy noise needs `keras.optimizers.SGD`. A
        list of layer names makes only these layers lazy.
      alone: names of layers that may run on batches of one example although they mix
        the examples of a batch. Layers that cannot be shown to keep examples apart
        always run on batches of one, and `fit` lists their names. If such a layer's
        result for an example depends on the other examples of the batch, the layer is
        refused unless it is named here.

    Returns:
      The same model.

    Raises:
      ValueError: if microbatch_size is not a positive integer, tables is none of the
        above, or `alone` names a layer that the model does not have.
      TypeError: if `model` is not a model.
      UnsupportedModelError: if the model's class has its own training step, a layer
        mixes examples (batch normalization), or per-example gradients are not
        available.
    """
    usual = StepSettings()
    given = StepSettings(microbatch_size, tables, alone)
    changes = {k: v for k, v in vars(given).items() if v != getattr(usual, k)}
    settings = dataclasses.replace(getattr(model, "_settings", usual), **changes)
    is_private = isinstance(model, PrivateTraining)
    chosen = type(model) if is_private else private_class(type(model))
    names = {layer.name for layer in all_layers(model)}
    unknown = sorted(set(settings.alone) - names)
    if unknown and model.built:
        raise ValueError(
            f"alone=[...] must name layers of the model, but found {', '.join(unknown)}."
        )
    if not is_private:
        if model.built:
            check_supported(model)
        model.__class__ = chosen
        optimizer = getattr(model, "optimizer", None)
        if optimizer is not None:
            # The private class takes a PrivateOptimizer out of a LossScaleOptimizer when
            # this attribute is set.
            model.optimizer = optimizer
            if not isinstance(model.optimizer, PrivateOptimizer):
                steps = keras.ops.convert_to_numpy(optimizer.iterations)
                model._training.plain_steps += int(steps)
    model._settings = settings
    model.train_function = None
    return model


def to_plain(model: keras.Model, into: keras.Model | None = None) -> keras.Model:
    """Returns the trained model as a plain Keras model, to release, serve or share.

    Args:
      model: a model from `make_private`, or of a class derived from
        `PrivateTraining`; trained or not.
      into: a built plain model of the same architecture that receives the weights;
        needed only for classes that Keras cannot recreate from `get_config()`. If the
        two models have different preprocessing layers, `into` keeps its vocabularies.

    Returns:
      A new model of the original class, with the same weights and vocabularies, not
      compiled; or `into`. Adapters (LoRA) of KerasHub's backbones are merged into the
      weights that they adapt, as Keras does when it saves.

    Raises:
      TypeError: if the model is not private, `into` is private, or the model's class
        cannot be recreated.
      ValueError: if `into` has another architecture.
    """
    if not isinstance(model, PrivateTraining):
        raise TypeError(
            f"to_plain needs a private model (as returned by make_private), but found "
            f"an object of class {type(model).__name__}."
        )
    if isinstance(into, PrivateTraining):
        raise TypeError(f"into=... must be a plain model, not a {type(into).__name__}.")
    model._before_use()
    plain = into if into is not None else _again(model)
    if model.built:
        _copy_state(model, plain)
    return plain


def _again(model: keras.Model) -> keras.Model:
    """Returns a new model of the class from which the private class was made.

    It has new weights. If `model` is built, the new model is built, too.
    """
    is_made = type(model) in _PRIVATE_CLASSES.values()
    plain_class = type(model).__bases__[1] if is_made else None
    advice = (
        f"to_plain cannot recreate a {type(model).__name__}. Make a plain model, call it "
        f"on data once, and then call to_plain(model, into=plain). The cause:"
    )
    if plain_class is None:
        raise TypeError(f"{advice} the class derives from PrivateTraining itself.")
    if model.built and plain_class in (keras.Sequential, Functional):
        return cloned(model)
    try:
        plain = plain_class.from_config(model.get_config()[_CONFIG])  # type: ignore[attr-defined]
    except (NotImplementedError, TypeError) as error:
        made_by = plain_class.__init__  # type: ignore[misc]
        if len(inspect.signature(made_by).parameters) > 1:
            raise TypeError(
                f"{advice} the class lacks a complete get_config. Or add that method."
            ) from error
        plain = plain_class()
    if model.built and not plain.built:
        config = model.get_build_config()
        if config is not None:
            plain.build_from_config(config)
        # Keras may mark a model as built although its layers are not, so the weights
        # are counted.
    # With adapters, the numbers of weights cannot be compared: the plain model has no
    # adapters, since their weights are merged into other weights.
    adapts = any(getattr(layer, "lora_enabled", False) for layer in all_layers(model))
    if len(plain.weights) < len(model.weights) and not adapts:
        raise TypeError(
            f"{advice} the weights cannot be created from the input shapes alone."
        )
    return plain


def _copy_state(model: keras.Model, plain: keras.Model) -> None:
    """Copies weights and vocabularies by the layers' methods that save and load them.

    These methods merge adapters, and recompute values that depend on weights (as in
    `Normalization`).

    Raises:
      ValueError: if the plain model has different layers.
    """
    layers, others = (
        [each for each in (one, *_layers(one)) if _stored(each)]
        for one in (model, plain)
    )
    if len(layers) != len(others):
        raise ValueError(
            f"The plain model must have the same layers as the private model, but has "
            f"{len(others)} layers with weights instead of {len(layers)}."
        )
    for layer, other in zip(layers, others):
        other.load_own_variables(_stored(layer))
    layers, others = (
        [each for each in _layers(one) if hasattr(each, "save_assets")]
        for one in (model, plain)
    )
    # If the two models have different preprocessing layers, the plain model keeps its
    # own vocabularies.
    if [type(layer) for layer in layers] == [type(other) for other in others]:
        for layer, other in zip(layers, others):
            with tempfile.TemporaryDirectory() as folder:
                layer.save_assets(folder)
                other.load_assets(folder)


def _stored(layer: Any) -> dict[str, Any]:
    """Returns the variables that a layer saves, without those of layers inside it."""
    store: dict[str, Any] = {}
    if layer.built:
        layer.save_own_variables(store)
    return store


def _layers(model: keras.Model) -> list[Any]:
    """Returns all layers, including a preprocessor's layers, which Keras 3.12 omits."""
    layers = list(all_layers(model, include_self=False))
    preprocessor = getattr(model, "preprocessor", None)
    if isinstance(preprocessor, keras.layers.Layer):
        layers.extend(all_layers(preprocessor))
    return list({id(layer): layer for layer in layers}.values())


_PLAIN, _CONFIG = "plain_class", "config"


_PRIVATE_CLASSES: dict[type, type] = {}


# All private classes are registered under one name. When a file is loaded, the private
# class is made from the plain class that the file names. That plain class must belong
# to Keras or KerasHub, be registered, or be in `custom_objects`.
_registered = keras.saving.register_keras_serializable("tf_bandmf", "PrivateModel")


@classmethod  # type: ignore[misc]
def _from_config(cls: type, config: dict[str, Any]) -> keras.Model:
    """Makes a private model from a private class' config."""
    plain = keras.saving.deserialize_keras_object(
        {**config[_PLAIN], _CONFIG: config[_CONFIG]}
    )
    plain.__class__ = private_class(type(plain))
    return plain


def private_class(plain_class: type) -> type:
    """Returns the private counterpart of a model class.

    Args:
      plain_class: `keras.Sequential`, `keras.Model` or a subclass.

    Returns:
      A subclass of `PrivateTraining` and of `plain_class`. The same `plain_class`
      always gives the same subclass.

    Raises:
      TypeError: if `plain_class` is not a model class.
      UnsupportedModelError: if it overrides the training step, which the private class
        replaces.
    """
    if plain_class in _PRIVATE_CLASSES:
        return _PRIVATE_CLASSES[plain_class]
    if not issubclass(plain_class, keras.Model):
        raise TypeError(
            f"model must be a keras.Model, found an object of class {plain_class.__name__}."
        )
    made = type(
        f"Private{plain_class.__name__}",
        (PrivateTraining, plain_class),
        {
            "__module__": __name__,
            "__doc__": f"A `{plain_class.__name__}` that trains privately.",
            "get_config": _get_config(plain_class),
            "from_config": _from_config,
        },
    )
    _PRIVATE_CLASSES[plain_class] = _registered(made)
    return made


def _get_config(plain_class: type) -> Any:
    def get_config(self: Any) -> dict[str, Any]:
        """Returns the config, name and module of the plain class."""
        return {
            _PLAIN: {
                "module": plain_class.__module__,
                "class_name": plain_class.__name__,
                "registered_name": keras.saving.get_registered_name(plain_class),
            },
            _CONFIG: plain_class.get_config(self),  # type: ignore[attr-defined]
        }

    # If the plain class has no `get_config`, Keras derives the config from the
    # arguments of `__init__`. It recognizes such classes by a mark on `get_config`.
    copy_config_mark(plain_class.get_config, get_config)  # type: ignore[attr-defined]
    return get_config


# Pickle looks these classes up by name.
PrivateSequential = private_class(keras.Sequential)
PrivateFunctional = private_class(Functional)
