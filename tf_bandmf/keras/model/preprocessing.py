"""Uses Keras' preprocessing layers as `map` functions, and splits them from models.

Preprocessing layers (vocabularies, encodings, a `FeatureSpace`) have no trained
weights. Their output depends on one example at a time, so they can be applied where the
batches are made: `plan.batches(..., map=encode)`. If a layer in `map` raises an error
for an example, the example contributes nothing, and training goes on.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import keras
import tensorflow as tf

from tf_bandmf.keras.compat.keras_objects import (
    adapted_layers,
    calls_of,
    takes_training,
)
from tf_bandmf.keras.compat.seeds import seeds_from
from tf_bandmf.sampling.mapped import register_dialect

# Layers that turn raw data into numbers.
_PREPROCESSING = (
    keras.layers.CategoryEncoding,
    keras.layers.Discretization,
    keras.layers.HashedCrossing,
    keras.layers.Hashing,
    keras.layers.IntegerLookup,
    keras.layers.Normalization,
    keras.layers.Rescaling,
    keras.layers.StringLookup,
    keras.layers.TextVectorization,
)
# Layers that join encoded features, example by example.
_JOINING = (keras.layers.Concatenate, keras.layers.Flatten, keras.layers.Reshape)


def of_adapted(used: Iterable[Any]) -> tuple[str, ...]:
    """Returns the statement's remark on layers that were adapted to data.

    Returns an empty tuple if there are none.
    """
    layers = [one for one in used if isinstance(one, keras.layers.Layer)]
    adapted = [inner for layer in layers for inner in adapted_layers(layer)]
    if not adapted:
        return ()
    names = sorted({f"{type(layer).__name__} {layer.name!r}" for layer in adapted})
    return (
        f"Statistics or vocabularies of {', '.join(names)} were computed before the run: "
        f"if that used private data, the guarantee does not cover it.",
    )


class KerasDialect:
    """Calls Keras layers on one example, with seeds that follow from the example's seed."""

    def adapt(self, function: Any) -> Callable[..., Any] | None:
        """Returns a layer as a function of one example; None for any other object."""
        if not isinstance(function, keras.layers.Layer):
            return None

        def call(x: Any) -> Any:
            one = tf.nest.map_structure(lambda t: t[None], x)
            training = {"training": True} if takes_training(function) else {}
            result = function(one, **training)
            return tf.nest.map_structure(lambda t: tf.convert_to_tensor(t)[0], result)

        return call

    def remarks(self, function: Any) -> tuple[str, ...]:
        """Returns the statement's remark on layers that were adapted to data.

        Returns an empty tuple if `function` neither is nor uses such a layer.
        """
        used = [function]
        if inspect.isfunction(function):
            try:
                names = inspect.getclosurevars(function)
            except ValueError:
                # A name that the function uses has no value yet.
                return ()
            used = [*names.nonlocals.values(), *names.globals.values()]
        return of_adapted(used)

    def seeded(self, seed: tf.Tensor) -> contextlib.AbstractContextManager[None]:
        """Returns a context in which layers get their seeds from the example's seed."""
        numbers = itertools.count()
        return seeds_from(
            lambda: tf.random.experimental.stateless_fold_in(seed, next(numbers))
        )


def split_preprocessing(model: keras.Model) -> tuple[keras.Model, keras.Model]:
    """Splits a model into its preprocessing layers and the layers after them.

        encode, core = tf_bandmf.keras.split_preprocessing(model)
        tf_bandmf.keras.make_private(core)
        core.compile(tf_bandmf.keras.PrivateOptimizer(optimizer, plan), loss=loss)
        core.fit(plan.batches(x, y, map=encode), epochs=epochs)
        model.predict(raw)  # model has the trained weights: release it

    Args:
      model: a Sequential or functional model that is built, is not private, and begins
        with preprocessing layers of Keras: `StringLookup`, `IntegerLookup`, `Hashing`,
        `HashedCrossing`, `CategoryEncoding`, `Discretization`, `TextVectorization`,
        `Normalization`, `Rescaling`, or the layers of a `FeatureSpace`.

    Returns:
      Two models that share their layers with `model`: `encode`, to pass as `map`, has
      the preprocessing layers; `core` has the other layers.

    Raises:
      TypeError: if the model is neither Sequential nor functional.
      ValueError: if it is not built, or does not begin with such layers.
    """
    if isinstance(model, keras.Sequential):
        if not model.built:
            raise ValueError("The model must be built: begin it with keras.Input(...).")
        model = keras.Model(model.inputs, model.outputs)
    if not hasattr(model, "operations"):
        raise TypeError(
            f"model must be a Sequential or functional model, found "
            f"{type(model).__name__}. Instead, pass a function that applies the model's "
            f"preprocessing layers: plan.batches(..., map=function)."
        )
    encoded = {id(tensor) for tensor in keras.tree.flatten(model.inputs)}
    frontier: dict[int, Any] = {}
    last = {id(tensor) for tensor in keras.tree.flatten(model.outputs)}
    has_preprocessing = False
    for operation, inputs, outputs in calls_of(model):
        before = all(id(tensor) in encoded for tensor in inputs)
        if before and isinstance(operation, (*_PREPROCESSING, *_JOINING)):
            has_preprocessing |= isinstance(operation, _PREPROCESSING)
            encoded |= {id(tensor) for tensor in outputs}
            continue
        frontier |= {id(tensor): tensor for tensor in inputs if id(tensor) in encoded}
    if not has_preprocessing:
        raise ValueError(
            f"Model {model.name!r} does not begin with preprocessing layers, so there is "
            f"nothing to split. Use the model as it is."
        )
    if not frontier or last & encoded:
        raise ValueError(
            f"Model {model.name!r} outputs preprocessed inputs. Remove those outputs."
        )
    tensors: Any = tuple(frontier.values())
    if len(frontier) == 1:
        (tensors,) = tensors
    encode = keras.Model(model.input, tensors, name=f"{model.name}_preprocessing")
    core = keras.Model(tensors, model.output, name=f"{model.name}_core")
    return encode, core


register_dialect(KerasDialect())
