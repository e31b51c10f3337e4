"""Refuses models whose per-example gradients are not defined or not exact."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import keras

from tf_bandmf.keras.clipping.forward.tapped_layers import find_units
from tf_bandmf.keras.clipping.tensors.errors import UnsupportedModelError
from tf_bandmf.keras.compat.keras_objects import all_layers, remat_mode

# Model methods that private training replaces. If a model class overrides one of them,
# the override would be ignored, or would break privacy.
STEP_METHODS = ("train_step", "compute_loss", "make_train_function")
_MODULES = ("keras.", "tf_bandmf.")


# For each kind of unsupported layer, a function that recognizes it, and the text that
# follows the layer's name in the error message.
_PROBLEMS: tuple[tuple[Callable[[Any], bool], str], ...] = (
    (
        lambda layer: (
            isinstance(layer, keras.layers.BatchNormalization) and layer.trainable
        ),
        "makes each example's output depend on the whole batch, so there are no "
        "per-example gradients. Use `LayerNormalization`, `GroupNormalization` or "
        "`RMSNormalization`: `model = tf_bandmf.keras.replace_batch_norm(model)` makes a "
        "model with group normalization; a pretrained one can be frozen with "
        "`layer.trainable = False`.",
    ),
    (
        lambda layer: isinstance(layer, (keras.layers.MixUp, keras.layers.CutMix)),
        "combines several examples of a batch into one, so that there are no "
        "per-example gradients. Remove it or augment examples one by one.",
    ),
    (
        lambda layer: layer.quantization_mode is not None,
        "is quantized: it has a custom gradient, and nothing proves that this does "
        "not mix examples. Train the model before it is quantized, with LoRA "
        "(`enable_lora`) if it is large, and quantize the trained model.",
    ),
    (
        lambda layer: remat_mode(layer) is not None,
        "is in a `RematScope`: activations that are not stored cannot be used "
        "for per-example gradients. Build the model outside of the scope and "
        "bound memory with `microbatch_size`.",
    ),
)


def check_supported(model: keras.Model) -> None:
    """Refuses a model that cannot be trained with exact per-example clipping.

    Some problems are found only later, when the training step is traced: weights that
    are read outside their layer, layers that are called in loops, and added losses.

    Args:
      model: a built model.

    Raises:
      UnsupportedModelError: if the model is refused; the message names the layer, the
        reason and what to change.
    """
    if not model.built:
        raise UnsupportedModelError(
            f"Model {model.name!r} is not built, so its weights are not known. Give it a "
            "`keras.Input`, call `model.build(...)`, or call the model once on data."
        )
    refuse_own_step(type(model), vars(model))
    for layer in all_layers(model):
        for has_it, problem in _PROBLEMS:
            if has_it(layer):
                kind = type(layer).__name__
                raise UnsupportedModelError(f"Layer {layer.name!r} ({kind}) {problem}")
    variables = model.trainable_variables
    if not variables:
        raise UnsupportedModelError(
            f"Model {model.name!r} has no trainable weights. Set `layer.trainable = "
            "True` for the layers to train."
        )
    for variable in variables:
        if variable.dtype not in ("float32", "float64", "bfloat16"):
            raise UnsupportedModelError(
                f"Weight {variable.path!r} has dtype {variable.dtype}; trainable "
                "weights must be float32, float64 or bfloat16."
            )
    find_units(model, variables)


def refuse_own_step(kind: type, others: Iterable[str] = ()) -> None:
    """Refuses a model class that overrides a method of Keras' training step.

    Args:
      kind: the class.
      others: names of the model instance's own attributes, which may replace methods.

    Raises:
      UnsupportedModelError: if the class, or one of its bases, is not Keras' own, and has
        such a method.
    """
    for name in STEP_METHODS:
        makers = [base.__module__ for base in kind.__mro__ if name in vars(base)]
        if name in others or not all(one.startswith(_MODULES) for one in makers):
            raise UnsupportedModelError(
                f"{kind.__name__} overrides `{name}`, which private training replaces, "
                "because your own code there would not be private. Remove the override: "
                "pass losses to `compile(loss=...)`, augment with `plan.batches(..., "
                "map=function)`, and write loops with `private_gradients`."
            )
