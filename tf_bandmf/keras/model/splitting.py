"""Cuts a model in two where its weights begin: preprocessing, and the rest.

Preprocessing layers (vocabularies, encodings, a `FeatureSpace`) have no trained
weights. Their output for an example is a function of that example alone and belongs in
the data: `plan.batches(..., map=encode)`. There, a value that a layer refuses does not
stop training.
"""

from __future__ import annotations

from typing import Any

import keras

from tf_bandmf.keras.clipping import PREPROCESSING
from tf_bandmf.keras.compat.keras_objects import calls_of

# What puts encoded features together, example by example.
_JOINING = (keras.layers.Concatenate, keras.layers.Flatten, keras.layers.Reshape)


def split_preprocessing(model: keras.Model) -> tuple[keras.Model, keras.Model]:
    """Cuts a model where its weights begin.

        encode, core = tf_bandmf.keras.split_preprocessing(model)
        tf_bandmf.keras.make_private(core)
        core.compile(tf_bandmf.keras.PrivateOptimizer(optimizer, plan), loss=loss)
        core.fit(plan.batches(x, y, map=encode), epochs=epochs)
        model.predict(raw)  # model has the trained weights: release it

    Args:
      model: a model that is Sequential or functional, built, not private, and begins
        with preprocessing layers of Keras: `StringLookup`, `IntegerLookup`, `Hashing`,
        `HashedCrossing`, `CategoryEncoding`, `Discretization`, `TextVectorization`,
        `Normalization`, `Rescaling`, or what a `FeatureSpace` makes of them.

    Returns:
      `encode`, from the model's inputs to the numbers that its other layers take, to
      pass as `map`; and `core`, the rest, which shares its layers with the model.

    Raises:
      TypeError: if the model is neither Sequential nor functional.
      ValueError: if it is not built, or does not begin with such layers.
    """
    if isinstance(model, keras.Sequential):
        if not model.built:
            raise ValueError("The model must be built: begin it with keras.Input.")
        model = keras.Model(model.inputs, model.outputs)
    if not hasattr(model, "operations"):
        raise TypeError(
            f"Only Sequential and functional models can be cut, found "
            f"{type(model).__name__}. Apply its preprocessing layers before: give them to "
            f"plan.batches(..., map=function)."
        )
    encoded = {id(tensor) for tensor in keras.tree.flatten(model.inputs)}
    frontier: dict[int, Any] = {}
    last = {id(tensor) for tensor in keras.tree.flatten(model.outputs)}
    found = False
    for operation, inputs, outputs in calls_of(model):
        before = all(id(tensor) in encoded for tensor in inputs)
        if before and isinstance(operation, (*PREPROCESSING, *_JOINING)):
            found |= isinstance(operation, PREPROCESSING)
            encoded |= {id(tensor) for tensor in outputs}
            continue
        for tensor in inputs:
            if id(tensor) in encoded:
                frontier.setdefault(id(tensor), tensor)
    if not found:
        raise ValueError(
            f"Model {model.name!r} does not begin with preprocessing layers: there is "
            f"nothing to cut off."
        )
    if not frontier or last & encoded:
        raise ValueError(
            f"Model {model.name!r} has an output that is preprocessing alone."
        )
    tensors: Any = tuple(frontier.values())
    if len(frontier) == 1:
        (tensors,) = tensors
    encode = keras.Model(model.input, tensors, name=f"{model.name}_preprocessing")
    core = keras.Model(tensors, model.output, name=f"{model.name}_core")
    return encode, core
