"""Judges how a model keeps examples apart, and which layers need single examples."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tf_bandmf.keras.clipping.forward.tapped_layers import find_units
from tf_bandmf.keras.clipping.independence.places import ROWS, CallShape, Mixes
from tf_bandmf.keras.clipping.independence.walk import Walk
from tf_bandmf.keras.clipping.tensors import batches
from tf_bandmf.keras.clipping.tensors.errors import UnsupportedModelError
from tf_bandmf.keras.compat.keras_objects import all_layers

# Layers that turn raw data into numbers: preprocessing, which belongs before the step.
PREPROCESSING = (
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
CUT_ADVICE = (
    "It is preprocessing, whose place is before the step: encode, core = "
    "tf_bandmf.keras.split_preprocessing(model), before make_private; make core private, "
    "compile and train it, on plan.batches(x, y, map=encode); model has the trained "
    "weights then."
)
# Packages whose classes do not behave differently after earlier calls.
_OURS = frozenset({"builtins", "keras", "keras_hub", "tensorflow", "tf_bandmf"})
# Candidate batch sizes for walks; such a size must occur nowhere else in the model.
_SIZES = (101, 103, 107, 109, 113, 127, 131, 137, 139, 149, 151, 157, 163, 167, 173)
_OF_SHAPES = (ValueError, tf.errors.OpError)
_JUDGED: weakref.WeakKeyDictionary[Any, dict[Any, Structure]] = (
    weakref.WeakKeyDictionary()
)
ADVICE = (
    "Keep the batch as the first axis and let no operation cross it; normalize along "
    "other axes (`LayerNormalization`, `GroupNormalization`). If each row of a layer "
    "depends on one example all the same, vouch for the layer's class with "
    "`tf_bandmf.keras.extending.register_per_example_layer`."
)


class Structure(NamedTuple):
    """How a model keeps the examples of a batch apart.

    Attributes:
      alone: layers that must run on each example alone: they cannot be opened, or
        examples meet in them.
      calls: for each call of a tapped layer, in order, which arguments are batched.
      log: the log of the walks.
    """

    alone: tuple[Any, ...]
    calls: tuple[CallShape, ...] = ()
    log: Sequence[Any] = ()


def structure_of(
    model: keras.Model,
    x: Any,
    variables: Sequence[Any] = (),
    training: bool = True,
) -> Structure:
    """Finds layers that must run on each example alone, and calls of tapped layers.

    Args:
      model: a built model.
      x: its inputs, nested tensors [B, ...]; only their shapes and dtypes matter.
      variables: the trainable variables, for a model in training.
      training: True if the model is trained, False if it is evaluated.

    Raises:
      UnsupportedModelError: if examples of a batch meet outside of a layer, or a layer's
        gradients of single examples cannot be told apart.
    """
    # A layer without weights may have been added since.
    ids = tuple(map(id, (*variables, *all_layers(model))))
    key = (ids, batches.specs_of(x), training)
    structures = _JUDGED.setdefault(model, {})
    # With custom code in the model, the result is not reused, since its log may
    # contain weight values.
    if key not in structures or _has_code_of_the_user(model):
        structures[key] = _judged(model, x, variables, training)
    return structures[key]


def refuse_another(
    model: keras.Model, x: Any, variables: Sequence[Any], structure: Structure
) -> None:
    """Refuses a model that behaves differently than when `structure_of` judged it.

    This is called after the step is traced, because custom Python code may behave
    differently in each call, for example if it counts calls.

    Raises:
      UnsupportedModelError: if another judgement differs from the first.
    """
    if structure_of(model, x, variables) != structure:
        raise UnsupportedModelError(
            f"Model {model.name!r} does not do the same each time it is called on tensors "
            f"of the same shapes, so an analysis of one call does not hold for the next. "
            f"Let no Python code of its layers depend on earlier calls."
        )


def _has_code_of_the_user(model: keras.Model) -> bool:
    """Returns whether a model has code from outside of Keras and this package."""
    kinds = {kind for layer in all_layers(model) for kind in type(layer).__mro__}
    modules = {kind.__module__.partition(".")[0] for kind in kinds}
    return keras.layers.Lambda in kinds or bool(modules - _OURS)


def layers_executed_alone(model: keras.Model) -> tuple[Any, ...]:
    """Returns the distinct layers that a model executes on each example alone."""
    structures = _JUDGED.get(model, {}).values()
    layers = {id(layer): layer for each in structures for layer in each.alone}
    return tuple(layers.values())


def _judged(
    model: keras.Model, x: Any, variables: Sequence[Any], training: bool
) -> Structure:
    sizes = _unused_sizes(model, x)
    with contextlib.suppress(Mixes):
        return _tried(model, x, variables, training, sizes[:2])
    # A batch size may occur in the model by chance, so other sizes are tried before the
    # model is refused.
    try:
        return _tried(model, x, variables, training, sizes[2:4])
    except Mixes as error:
        raise _refusal(model, error) from error


def _tried(
    model: keras.Model,
    x: Any,
    variables: Sequence[Any],
    training: bool,
    sizes: Sequence[int],
) -> Structure:
    """Finds the structure of a model by walks with two batch sizes.

    Raises:
      Mixes: if examples meet outside of a layer.
    """
    alone: list[Any] = []
    while all(layer is not model for layer in alone):
        units = find_units(model, variables, alone) if variables else []
        first = second = _walk(model, x, alone, sizes[0], training, units)
        if len(first.alone) == len(alone):
            second = _walk(model, x, alone, sizes[1], training, units, first.log)
        if len(second.alone) == len(alone):
            if second.log != first.log:  # Custom code caught the error.
                raise Mixes("computes with the number of examples in the batch")
            return Structure(tuple(alone), tuple(second.calls), second.log)
        alone = second.alone
    of_inputs = tuple(map(tf.is_tensor, keras.tree.flatten(x)))
    return Structure(tuple(alone), (CallShape(model, of_inputs),))


def _walk(
    model: keras.Model,
    x: Any,
    alone: Sequence[Any],
    size: int,
    training: bool,
    units: Sequence[Any],
    like: Sequence[Any] | None = None,
) -> Walk:
    walk = Walk(size, alone, units, like)

    def symbolic(leaf: Any) -> Any:
        if leaf is None:
            return None
        return walk.tensor(leaf.shape, keras.backend.standardize_dtype(leaf.dtype))

    try:
        outputs = walk.run(model, keras.tree.map_structure(symbolic, x), training)
        places = [walk.place(leaf) for leaf in keras.tree.flatten(outputs)]
    except Mixes:
        raise
    except Exception as error:
        # Cut off Keras' list of arguments, whose shapes contain the batch size.
        said = str(error).partition("Arguments received by")[0]
        if str(size) in said and isinstance(error, _OF_SHAPES):
            raise Mixes(
                f"does not run on a batch of {size} examples, on which it is tried "
                f"({type(error).__name__}: {error})",
                "A model must accept any batch size: do not write one into a reshape or a "
                "layer; in a reshape use ops.shape(x)[0].",
            ) from error
        # If the model cannot run at all, tracing it in TensorFlow raises the reason.
        walk.alone = [*alone, model]
    if any(layer is model for layer in walk.alone):
        return walk
    if any(place != ROWS for place in places):
        raise Mixes(
            "returns a tensor whose first axis is not that of the examples",
            ADVICE + advice_on_preprocessing(model),
        )
    return walk


def _unused_sizes(model: keras.Model, x: Any) -> list[int]:
    taken = {n for variable in model.variables for n in variable.shape}
    for leaf in keras.tree.flatten(x):
        taken.update(n for n in getattr(leaf, "shape", ())[1:] if n)
    return [size for size in _SIZES if all(n % size for n in taken)]


def _refusal(model: keras.Model, error: Mixes) -> UnsupportedModelError:
    layer = error.layer
    where = ""
    if layer is not None and layer is not model:
        where = f", in layer {layer.name!r} ({type(layer).__name__})"
    elif layer is model:
        where = ", in its own `call` or a `keras.ops` node"
    if error.advice is not None:
        return UnsupportedModelError(
            f"Model {model.name!r}{where}: {error}. {error.advice}"
        )
    return UnsupportedModelError(
        f"Model {model.name!r}{where}: {error}. It mixes examples of the batch. "
        f"{ADVICE}"
    )


def advice_on_preprocessing(model: keras.Model) -> str:
    """Returns advice if a preprocessing layer may have dropped the batch axis; else ""."""
    for layer in all_layers(model):
        if isinstance(layer, PREPROCESSING):
            return f" Layer {layer.name!r} may have lost it. {CUT_ADVICE}"
    return ""
