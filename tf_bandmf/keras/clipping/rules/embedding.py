"""Norm rule of `Embedding` and `ReversibleEmbedding`."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_bandmf.keras.clipping.factors.base import Factor, Layout, Product
from tf_bandmf.keras.clipping.factors.tables import Rows
from tf_bandmf.keras.clipping.rules.adapters import adapter_of
from tf_bandmf.keras.clipping.rules.base import (
    LayerCall,
    OneTapRule,
    inherits_unchanged,
    is_plain,
    kernel_shape,
    owns_only,
)
from tf_bandmf.keras.clipping.tensors.batches import elements, reshape_examples
from tf_bandmf.keras.clipping.tensors.table_readers import TableReader, reader_of
from tf_bandmf.keras.compat.keras_objects import MASK, embeddings_of

_PREFIX = "lora_embeddings"


class EmbeddingRule(OneTapRule):
    """Lookups and projections with the same table, with adapters or without.

    A lookup's gradients go to the rows that were looked up, repeats added. Position
    embeddings are looked up once for all examples; the lookup is repeated. A call with
    `reverse=True` multiplies with the transposed table: one outer product per position.
    """

    spreads = True

    def supports(self, layer: Any, variables: Sequence[Any]) -> bool:
        if not is_plain(layer, keras.layers.Embedding, adapted=True):
            if not inherits_unchanged(layer, keras.layers.ReversibleEmbedding):
                return False
            if layer.quantization_mode is not None:
                return False
        adapter = adapter_of(layer, _PREFIX)
        return owns_only(
            variables,
            embeddings_of(layer),
            getattr(layer, "reverse_embeddings", None),
            *(adapter[:2] if adapter else ()),
        )

    def forward(self, call: LayerCall) -> Any:
        if not _is_reverse(call):
            reader = reader_of(embeddings_of(call.layer))
            if reader is None:
                outputs = call.run()
            else:
                outputs = _read(call.layer, call.inputs, reader)
            tapped = call.tap(outputs)
            mask = getattr(outputs, MASK, None)
            if mask is not None:
                setattr(tapped, MASK, mask)
            return tapped
        outputs = call.tap(call.run_with(logit_soft_cap=None))
        soft_cap = call.layer.logit_soft_cap
        if soft_cap is None:
            return outputs
        return soft_cap * keras.ops.tanh(outputs / soft_cap)

    def factors_of(self, call: LayerCall, gradient: tf.Tensor) -> Mapping[int, Factor]:
        layer = call.layer
        if _is_reverse(call):
            found = _of_projection(layer, call.inputs, gradient)
        else:
            found = _of_lookup(layer, call.spread(call.inputs), gradient)
        wanted = {id(variable) for variable in call.variables}
        return {key: factor for key, factor in found.items() if key in wanted}


def is_lookup_table(layer: Any, variables: Sequence[Any]) -> bool:
    """Whether all that a layer's one variable is for is to be looked up, or projected with.

    Args:
      layer: a built layer.
      variables: its trainable variables.
    """
    if adapter_of(layer, _PREFIX) is not None or len(variables) != 1:
        return False
    is_table = isinstance(layer, keras.layers.Embedding)
    return is_table and EmbeddingRule().supports(layer, variables)


def is_reverse(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call with these arguments multiplies with the table."""
    if len(args) > 1:
        return bool(args[1])
    return bool(kwargs.get("reverse", False))


def _is_reverse(call: LayerCall) -> bool:
    return is_reverse(call.args, call.kwargs)


def rows_of_ids(layer: Any, ids: tf.Tensor) -> tf.Tensor:
    """The rows that an `Embedding` looks up, of the ids' shape; -1 where there is none."""
    num_rows, _ = kernel_shape(embeddings_of(layer))
    if ids.dtype not in (tf.int32, tf.int64):
        ids = tf.cast(ids, tf.int32)
    # Keras counts negative ids from the end; rows that do not exist get nothing.
    ids = tf.where(ids < 0, ids + num_rows, ids)
    exists = (ids >= 0) & (ids < num_rows)
    return tf.where(exists, ids, -1)


def _read(layer: Any, ids: tf.Tensor, reader: TableReader) -> tf.Tensor:
    """As the call of an `Embedding`, by a reader."""
    return tf.cast(reader(rows_of_ids(layer, ids)), layer.compute_dtype)


def _of_lookup(layer: Any, ids: tf.Tensor, gradient: tf.Tensor) -> dict[int, Factor]:
    num_rows, width = kernel_shape(embeddings_of(layer))
    ids = _flat(rows_of_ids(layer, ids), 0)
    values = _flat(gradient, width)
    stays_sparse = reader_of(embeddings_of(layer)) is not None
    result: dict[int, Factor] = {
        id(embeddings_of(layer)): Rows(ids, values, num_rows, stays_sparse)
    }
    adapter = adapter_of(layer, _PREFIX)
    if adapter is not None:
        down, up = adapter.values()
        values = tf.cast(values, tf.float32)
        projected = tf.matmul(values, up, transpose_b=True)
        result[id(adapter.down)] = Rows(ids, projected, num_rows)
        entries = tf.gather(down, tf.maximum(ids, 0), axis=0)
        entries = tf.where((ids >= 0)[..., None], entries, 0.0)
        layout = Layout.plain(kernel_shape(adapter.up))
        result[id(adapter.up)] = Product(entries, values, layout)
    return result


def _of_projection(
    layer: Any, inputs: tf.Tensor, gradient: tf.Tensor
) -> dict[int, Factor]:
    num_rows, width = kernel_shape(embeddings_of(layer))
    inputs, gradient = _flat(inputs, width), _flat(gradient, num_rows)
    if not layer.tie_weights:
        layout = Layout.plain((width, num_rows))
        return {id(layer.reverse_embeddings): Product(inputs, gradient, layout)}
    result: dict[int, Factor] = {
        id(embeddings_of(layer)): Product(
            gradient, inputs, Layout.plain((num_rows, width))
        )
    }
    adapter = adapter_of(layer, _PREFIX)
    if adapter is not None:
        down, up = adapter.values()
        inputs, gradient = tf.cast(inputs, tf.float32), tf.cast(gradient, tf.float32)
        result[id(adapter.down)] = Product(
            gradient,
            tf.matmul(inputs, up, transpose_b=True),
            Layout.plain(kernel_shape(adapter.down)),
        )
        result[id(adapter.up)] = Product(
            tf.matmul(gradient, down), inputs, Layout.plain(kernel_shape(adapter.up))
        )
    return result


def _flat(tensor: tf.Tensor, width: int) -> tf.Tensor:
    """Positions side by side: [B, ..., width] as [B, T, width]; no last axis if 0."""
    last = [width] if width else []
    middle = tensor.shape[1:-1] if width else tensor.shape[1:]
    return reshape_examples(tensor, elements(middle), *last)
