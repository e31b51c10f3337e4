"""Gradients on public or made-up data, for `tf_bandmf.advise`."""

from __future__ import annotations

import math
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_bandmf.accounting.checks import whole_number
from tf_bandmf.keras.clipping import (
    ClippedGradients,
    Clipping,
    clipped_gradient_sums,
    to_tensors,
)
from tf_bandmf.keras.compat.keras_objects import all_layers, kernel_of
from tf_bandmf.planning.gradient_sample import GradientSample

# Divides gradients by their norm.
_NORMALIZED = Clipping("automatic", gamma=1e-12)
_EMBEDDINGS = "embeddings"
# Their depthwise kernels [..., channels, multiplier] see one channel each.
_DEPTHWISE = (keras.layers.DepthwiseConv1D, keras.layers.DepthwiseConv2D)
_SEPARABLE = (keras.layers.SeparableConv1D, keras.layers.SeparableConv2D)


def sample_gradients(
    model: keras.Model,
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    batch_size: int = 64,
) -> GradientSample:
    """Summary of a model's per-example gradients at its weights: norms and alignment.

    WARNING: use it only for data that need no protection, public or made up. Norms of
    private examples' gradients release something about them, and no plan covers it.

    It uses the loss and the clipping of private training, makes one pass over the data,
    and changes nothing. The number of examples matters little: a few hundred are
    enough.

    Args:
      model: a model that is built and compiled with its loss; private or not.
      x: inputs, arrays or a nested structure of them, [m, ...].
      y: targets, likewise, or None.
      sample_weight: shape [m], or None.
      batch_size: examples at a time.

    Returns:
      The norms [m], the alignment of gradients, the number of trainable parameters, and
      the summed fan-in of the kernels (without embeddings; None without kernels).

    Raises:
      TypeError: if the model is not a Keras model.
      UnsupportedModelError: if per-example gradients of the model are not defined.
      ValueError: if the model is not built or not compiled, or fewer than two gradients
        are finite and not zero.
    """
    if not isinstance(model, keras.Model):
        raise TypeError(f"model must be a keras.Model, found {model!r}.")
    if not model.compiled:
        raise ValueError(
            "The model has no loss: compile it as for training, with any optimizer."
        )
    batch_size = whole_number("batch_size", batch_size)
    data = tf.nest.map_structure(_array, (x, y, sample_weight))
    if not model.built:
        model(tf.nest.map_structure(lambda part: part[:1], data[0]), training=False)
    count = len(tf.nest.flatten(data)[0])

    # Traced for two batches, the second of any size, and not for each one.
    @tf.function(autograph=False, reduce_retracing=True)
    def clipped(part: Any) -> ClippedGradients:
        return clipped_gradient_sums(
            model, *part, l2_norm_clip=1.0, clipping=_NORMALIZED
        )

    norms, total = [], None
    for start in range(0, count, batch_size):
        rows = slice(start, start + batch_size)
        part = tf.nest.map_structure(
            lambda values, rows=rows: None if values is None else values[rows], data
        )
        found = clipped(to_tensors(part))
        norms.append(np.asarray(found.norms, np.float64))
        sums = [np.asarray(one, np.float64) for one in found.sums]
        total = sums if total is None else [a + b for a, b in zip(total, sums)]
    measured = np.concatenate(norms) if norms else np.zeros(0)
    finite = measured[np.isfinite(measured)]
    length = math.sqrt(sum(float(np.sum(np.square(one))) for one in total or []))
    variables = model.trainable_variables
    size = sum(math.prod(variable.shape) for variable in variables)
    return GradientSample.of_sum(finite, length, size, fan_in(model))


def _array(values: Any) -> np.ndarray | None:
    return None if values is None else np.asarray(values)


def fan_in(model: keras.Model) -> float | None:
    """Inputs of a unit, added up over the trainable kernels."""
    special = {}
    for layer in all_layers(model):
        if isinstance(layer, keras.layers.EinsumDense):
            special[id(kernel_of(layer))] = _summed_axes(layer)
        elif isinstance(layer, _DEPTHWISE):
            special[id(layer.kernel)] = math.prod(layer.kernel_size)
        elif isinstance(layer, _SEPARABLE):
            special[id(layer.depthwise_kernel)] = math.prod(layer.kernel_size)
    found = [
        special.get(id(variable), math.prod(variable.shape[:-1]))
        for variable in model.trainable_variables
        if len(variable.shape) >= 2 and variable.name != _EMBEDDINGS
    ]
    return float(sum(found)) or None


def _summed_axes(layer: keras.layers.EinsumDense) -> int:
    """The product of the kernel's axes that are not axes of the outputs."""
    operands, outputs = layer.equation.split("->")
    names = operands.split(",")[1]
    shape = zip(names, kernel_of(layer).shape, strict=True)
    return math.prod(size for name, size in shape if name not in outputs)
