"""`tf.vectorized_map` in graphs that XLA compiles.

In such graphs, TensorFlow's own `vectorized_map` puts the vectorized loop into a separate
function. The gradient of the loop then reads the shapes of this function's tensors. XLA
must know shapes at compile time, so it would treat all inputs of the function as
constants, and recompile for each batch. Here, the loop is built in the graph itself.

Tests that fail if this breaks: `tests/keras/clipping/test_options.py` and the XLA cases in
`tests/keras/model/test_training.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import gen_math_ops
from tensorflow.python.ops.parallel_for import control_flow_ops, pfor

from tf_bandmf.keras.compat.patching import all_patched


def vectorized_map(function: Callable[[Any], Any], elements: Any) -> Any:
    """Does what `tf.vectorized_map` does, but in a graph that XLA can compile.

    Args:
      function: function of one example's tensors, without a batch axis.
      elements: nested tensors, whose first axis is the batch axis.
    """
    flat = [tf.convert_to_tensor(t) for t in tf.nest.flatten(elements)]
    count = flat[0].shape[0]

    def of_one(place: tf.Tensor) -> Any:
        rows = [tf.raw_ops.GatherV2(params=t, indices=place, axis=0) for t in flat]
        return function(tf.nest.pack_sequence_as(elements, rows))

    products = ("batch_mat_mul", "batch_mat_mul_v2", "batch_mat_mul_v3")
    replacements: list[Any] = [
        (pfor._pfor_converter_registry, "Squeeze", _squeeze),
        *((gen_math_ops, name, _repeated) for name in products),
        # TensorFlow warns about operations that it runs in a loop; this is harmless.
        *((pfor.logging, name, lambda *_, **__: None) for name in ("error", "warning")),
    ]
    with all_patched(replacements):
        return control_flow_ops._pfor_impl(
            of_one,
            tf.shape(flat[0])[0] if count is None else count,
            fallback_to_while_loop=True,
        )


def _squeeze(original: Callable[[Any], Any], pfor_input: Any) -> Any:
    """Applies `tf.squeeze` to each example of a batch; the batch axis always stays.

    TensorFlow's own conversion may squeeze a batch axis of length 1.
    """
    shape = pfor_input.op.inputs[0].shape
    if pfor_input.get_attr("squeeze_dims") or not shape.is_fully_defined():
        return original(pfor_input)
    axes = [axis + 1 for axis, size in enumerate(shape) if size == 1]
    given = pfor_input.stacked_input(0)
    return pfor.wrap(tf.squeeze(given, axes) if axes else given, True)


def _repeated(
    product: Callable[..., tf.Tensor],
    x: tf.Tensor,
    y: tf.Tensor,
    *args: Any,
    **kwargs: Any,
) -> tf.Tensor:
    """Returns `product(x, y)`, after repeating operands that it would broadcast.

    On CPUs, TensorFlow 2.21 (oneDNN) writes out of bounds in the product of [B, 1, M,
    K] with a broadcast [1, 1, K, N]: it crashes or returns wrong numbers. Such products
    arise when the product of one example's activations and a kernel is vectorized.
    """
    first, second = x.shape[:-2], y.shape[:-2]
    if not (first.is_fully_defined() and first == second):
        batch = tf.broadcast_dynamic_shape(tf.shape(x)[:-2], tf.shape(y)[:-2])
        x, y = (
            tf.broadcast_to(t, tf.concat([batch, tf.shape(t)[-2:]], axis=0))
            for t in (x, y)
        )
    return product(x, y, *args, **kwargs)
