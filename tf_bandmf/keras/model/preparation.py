"""Prepares the first step: builds weights and optimizer, and checks the model."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tf_bandmf.keras.clipping.forward.structure import Structure, structure_of
from tf_bandmf.keras.clipping.forward.supported import check_supported
from tf_bandmf.keras.clipping.sums.self_check import needs_self_check, self_check
from tf_bandmf.keras.clipping.tensors.errors import UnsupportedModelError
from tf_bandmf.keras.clipping.tensors.made_up import made_up
from tf_bandmf.keras.clipping.tensors.multi_row import present_rows
from tf_bandmf.keras.compat.keras_objects import (
    CALL_CONTEXT,
    global_state,
)
from tf_bandmf.keras.compat.optimizing import optimized
from tf_bandmf.keras.optimizer.private import PrivateOptimizer
from tf_bandmf.keras.tables.choice import DENSE
from tf_bandmf.keras.tables.lazy import choose_tables
from tf_bandmf.sampling import batches as batches_lib
from tf_bandmf.sampling.identity import CONTENT

# The number of made-up examples with which layers are checked.
EXAMPLES = 3
# Tolerances for rounding differences, including those of bfloat16.
_CLOSE = {"rtol": 3e-2, "atol": 1e-4}


class Contents(NamedTuple):
    """The parts of a batch that clipping uses: tensors, batch axis first; or None.

    Attributes:
      x: inputs.
      y: targets.
      sample_weight: weights.
      rows: bool [B, K], True where a privacy unit has a row; None if each example is a
        unit. With `rows`, inputs and targets have the shape [B, K, ...].
      shares: the share of the clip norm that each example, or each row, may contribute.
      count: the number of examples without padding, int32 scalar; None if the batch is
        not padded.
    """

    x: Any
    y: Any = None
    sample_weight: Any = None
    rows: Any = None
    shares: Any = None
    count: Any = None

    @classmethod
    def of(cls, batch: Any) -> Contents:
        """Returns the parts of a batch.

        Args:
          batch: a batch as the caller passed it to Keras, or its specs; for other forms,
            call `given` first.
        """
        if not batches_lib.is_scheduled_batch(batch):
            return cls(*keras.utils.unpack_x_y_sample_weight(batch))
        x, y, weight, rows, shares = (batch.get(key) for key in CONTENT)
        return cls(x, y, weight, rows, shares, batch.get(batches_lib.NUM_EXAMPLES))

    def by_row(self) -> tuple[Any, Any, Any]:
        """Returns inputs, targets and sample weights, with one entry for each row."""
        content = self[:3]
        return content if self.rows is None else present_rows(content, self.rows)


def given(data: Any) -> Any:
    """Restores a batch, or its specs, to the form that the caller passed to Keras.

    The batch may come from an iterator or from `train_on_batch`. If a part was None,
    Keras passes an empty `tf.experimental.Optional`, which is replaced by None.
    """

    def value(leaf: Any) -> Any:
        none = (tf.experimental.Optional, tf.OptionalSpec)
        return None if isinstance(leaf, none) else leaf

    data = keras.tree.map_structure(value, data)
    if isinstance(data, tuple) and batches_lib.is_scheduled_batch(data[0]):
        if any(item is not None for item in data[1:]):
            raise ValueError(
                "Give y and class weights to plan.batches(x, y).with_class_weight(...)."
            )
        return data[0]
    return data


def build(model: Any, batches: Iterable[Any] = ()) -> None:
    """Builds the model and its optimizer if needed.

    Building the optimizer begins the run.

    Args:
      model: private and compiled.
      batches: only the shapes and dtypes of the first batch matter. If the model is
        built, no batch is read.
    """
    optimizer = model.optimizer
    if not optimizer.built:
        batch = None if model.built else given(next(iter(batches)))
        build_model(model, batch)
        choose_tables(model)
    optimizer.build(model.trainable_variables)
    optimizer.run.weights = model.weights
    if optimizer.run.tables is None and model._settings.tables != DENSE:
        raise RuntimeError(
            "The optimizer was built too early to use tables='lazy'. Compile the model "
            "with a new PrivateOptimizer, and do not call optimizer.build(...) yourself: "
            "model.fit(...) or model.train_on_batch(...) will do that."
        )


def build_model(model: Any, data: Any = None) -> None:
    """Creates the weights; refuses models without exact per-example gradients."""
    if not model.built and data is not None:
        # The model is called on made-up rows, because its `call` is the user's code,
        # which could store its inputs.
        rows = made_up(Contents.of(data).by_row(), EXAMPLES)
        model(rows[0], training=False)
    check_supported(model)


def check_examples(model: Any, contents: Any) -> Structure:
    """Refuses models that mix examples, and checks gradients that rely on user code.

    If the user vouches for a layer, or wrote a clipping rule, the gradients of made-up
    examples in a batch are compared with those of each example by itself. Before that,
    layers that mix examples are refused, because they may turn a single example into
    outputs that the loss does not accept.

    Args:
      model: private, compiled and built.
      contents: inputs, targets and sample weights of made-up examples.

    Returns:
      The layers that mix examples, and the calls from which gradients are computed.
    """
    optimizer, inputs = model.optimizer, contents[0]
    if optimizer.run.tables is not None:
        optimizer.run.tables.looked_up(inputs, None)
    structure = structure_of(model, inputs, model.trainable_variables)
    check_layers_alone(model, structure.alone, inputs)
    if needs_self_check(model):
        with optimized():
            self_check(model, *contents, loss_scale_factor=optimizer.loss_scale_factor)
    return structure


def refuse_preprocessor(model: Any) -> None:
    """Raises ValueError if a model would preprocess whole batches in its step.

    Args:
      model: a private model of any class; a task of KerasHub may have a preprocessor.
    """
    is_none = getattr(model, "preprocessor", None) is None
    if is_none or not hasattr(model, "preprocess_samples"):
        return
    raise ValueError(
        f"Model {model.name!r} has a preprocessor, which would process whole batches. "
        f"Remove it, and let plan.batches call it for each example: preprocess = "
        f"model.preprocessor; model.preprocessor = None; plan.batches(x, y, "
        f"map=preprocess). If the preprocessor keeps a cache of tokens, or makes targets, "
        f"apply it beforehand: x, y, sample_weight = preprocess(texts). To predict from "
        f"raw data, set model.preprocessor = preprocess after training."
    )


def without_dynamic_scale(optimizer: Any) -> Any:
    """Takes a private optimizer out of the LossScaleOptimizer around it, if there is one.

    Under mixed_float16, Keras' `compile` adds this wrapper, whose scale depends on data.
    """
    is_scaled = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    if is_scaled and isinstance(optimizer.inner_optimizer, PrivateOptimizer):
        return optimizer.inner_optimizer
    return optimizer


def refuse_plain_outer_training(
    model: keras.Model, private_class: type, training: Any
) -> None:
    """Raises RuntimeError if a plain model would train a private one inside it.

    Args:
      model: the private model that is about to be called.
      private_class: the base class of private models.
      training: the argument `training` of the call, or None.
    """
    context = global_state.get_global_attribute(CALL_CONTEXT)
    outer = getattr(context, "entry_layer", None)
    if outer is None or outer is model or isinstance(outer, private_class):
        return
    if training is None:
        training = context.get_value("training")
    if training and model.trainable_variables:
        raise RuntimeError(
            f"Model {outer.name!r} contains the private model {model.name!r} as a layer, "
            f"and would train it without privacy. Use to_plain({model.name}) as the layer; "
            f"if the data are private, also call make_private({outer.name}). Or set "
            f"{model.name}.trainable = False."
        )


def check_layers_alone(model: Any, layers: Collection[Any], inputs: Any) -> None:
    """Warns about layers that run on single examples; refuses models that mix examples.

    Args:
      model: private and built.
      layers: layers that must run on one example at a time.
      inputs: made-up inputs of several examples.

    Raises:
      UnsupportedModelError: if an example's outputs depend on the rest of its batch,
        and one of `layers` is not named in `make_private(alone=...)`.
    """
    accepted = model._settings.alone
    names = [each.name for each in layers if each.name not in accepted]
    if names and _mixes(model, inputs):
        raise UnsupportedModelError(
            f"The output for an example depends on the rest of its batch: at least one of "
            f"the layers {', '.join(map(repr, names))} mixes the examples of a batch. "
            f"Private training runs these layers on one example at a time, so the model "
            f"would not learn what you intend. Compute statistics within each example, "
            f"or use constants from public data; put records that are compared into "
            f"one example (a pair, a row with its negatives). If you do want one example "
            f"at a time for these layers, call make_private(model, alone={names})."
        )
    if layers:
        named = ", ".join(f"{each.name} ({type(each).__name__})" for each in layers)
        warnings.warn(
            f"These layers run on each example by itself, because they could not be shown "
            f"to keep examples apart: {named}. That takes longer. Write them with "
            f"keras.ops instead of tf functions; or, if a class keeps examples apart, pass "
            f"the class to tf_bandmf.keras.extending.register_per_example_layer.",
            stacklevel=2,
        )


def _mixes(model: keras.Model, inputs: Any) -> bool:
    """Returns True if an example's outputs depend on the rest of its batch.

    Returns False if the model draws random numbers, because outputs differ then anyway.
    """
    together = tf.nest.flatten(model(inputs, training=False))

    def differ(place: int) -> bool:
        here = slice(place, place + 1)
        one = tf.nest.map_structure(lambda leaf: leaf[here], inputs)
        alone = tf.nest.flatten(model(one, training=False))
        return not all(_close(a[here], b) for a, b in zip(together, alone))

    again = tf.nest.flatten(model(inputs, training=False))
    draws_random_numbers = not all(map(_close, together, again))
    # Comparing only the first example would not suffice: in a cumulative sum over the
    # batch, or in copies of the first example, the first output does not depend on the
    # other examples.
    return not draws_random_numbers and (differ(0) or differ(EXAMPLES - 1))


def _close(a: tf.Tensor, b: tf.Tensor) -> bool:
    a, b = (keras.ops.convert_to_numpy(keras.ops.cast(t, "float64")) for t in (a, b))
    return a.shape == b.shape and np.allclose(a, b, equal_nan=True, **_CLOSE)
