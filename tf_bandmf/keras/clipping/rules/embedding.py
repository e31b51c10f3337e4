"""Norm rule of `Embedding` and `ReversibleEmbedding`."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_bandmf.keras.clipping.factors.base import Factor, Layout, Product
from tf_bandmf.keras.clipping.factors.tables import Rows
from tf_bandmf.keras.clipping.rules.base import (
    LayerCall,
    LayerRule,
    is_plain,
    kernel_shape,
    overridden,
)
from tf_bandmf.keras.clipping.rules.products import (
    Adapter,
    adapter_of,
    of_kernel,
    parsed,
)
from tf_bandmf.keras.clipping.tensors.batches import elements, reshape_examples
from tf_bandmf.keras.clipping.tensors.table_readers import reader_of
from tf_bandmf.keras.compat.keras_objects import MASK, embeddings_of


class EmbeddingRule(LayerRule):
    """The rule of lookups and projections with one table, with adapters or without.

    A lookup's gradients go to the rows that were looked up, and add up where a row was
    looked up several times. Position embeddings are looked up once, and the result is
    repeated for each example. A call with `reverse=True` multiplies with the transposed
    table: one outer product per position.
    """

    spreads = True

    def fits(self, layer: Any) -> bool:
        """See the base class; subclasses of `ReversibleEmbedding` may override nothing."""
        kind: type = keras.layers.ReversibleEmbedding
        is_reversible = isinstance(layer, kind) and not overridden(layer, kind)
        kind = type(layer) if is_reversible else keras.layers.Embedding
        return is_plain(layer, kind, adapted=True)

    def weights(self, layer: Any) -> Sequence[Any]:
        adapter = _adapter_of(layer)
        tables = embeddings_of(layer), getattr(layer, "reverse_embeddings", None)
        return (*tables, *(adapter[:2] if adapter else ()))

    def forward(self, call: LayerCall) -> Any:
        layer = call.layer
        if not is_reverse(call.args, call.kwargs):
            reader = reader_of(embeddings_of(layer))
            if reader is None:
                outputs = call.run()
            else:
                rows = reader(rows_of_ids(layer, call.inputs))
                outputs = tf.cast(rows, layer.compute_dtype)
            tapped = call.tap(outputs)
            mask = getattr(outputs, MASK, None)
            if mask is not None:
                setattr(tapped, MASK, mask)
            return tapped
        outputs = call.tap(call.run_with(logit_soft_cap=None))
        soft_cap = layer.logit_soft_cap
        if soft_cap is None:
            return outputs
        return soft_cap * keras.ops.tanh(outputs / soft_cap)

    def factors_of(self, call: LayerCall, gradient: tf.Tensor) -> Mapping[int, Factor]:
        layer, inputs = call.layer, call.inputs
        if not is_reverse(call.args, call.kwargs):
            return _of_lookup(layer, call.spread(inputs), gradient)
        if layer.tie_weights:
            # The transposed table: inputs and output gradients change places.
            equation, pair = "...o,oi->...i", (gradient, inputs)
            kernel, adapter = embeddings_of(layer), _adapter_of(layer)
        else:
            equation, pair = "...i,io->...o", (inputs, gradient)
            kernel, adapter = layer.reverse_embeddings, None
        letters = parsed(equation, inputs.shape.rank)
        assert letters is not None
        return of_kernel(letters, *pair, kernel, adapter)


def _adapter_of(layer: Any) -> Adapter | None:
    return adapter_of(layer, "lora_embeddings")


def is_lookup_table(layer: Any, variables: Sequence[Any]) -> bool:
    """Says if a layer's only variable is used only for lookups and projections.

    Args:
      layer: a built layer.
      variables: its trainable variables.
    """
    is_table = isinstance(layer, keras.layers.Embedding) and _adapter_of(layer) is None
    return (
        is_table and len(variables) == 1 and EmbeddingRule().supports(layer, variables)
    )


def is_reverse(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Says if a call with these arguments multiplies with the table."""
    return bool(args[1] if len(args) > 1 else kwargs.get("reverse", False))


def rows_of_ids(layer: Any, ids: tf.Tensor) -> tf.Tensor:
    """Returns the rows that an `Embedding` looks up for ids; -1 where there is none."""
    num_rows, _ = kernel_shape(embeddings_of(layer))
    if ids.dtype not in (tf.int32, tf.int64):
        ids = tf.cast(ids, tf.int32)
    # Keras counts negative ids from the end; rows that do not exist get nothing.
    ids = tf.where(ids < 0, ids + num_rows, ids)
    exists = (ids >= 0) & (ids < num_rows)
    return tf.where(exists, ids, -1)


def _of_lookup(layer: Any, ids: tf.Tensor, gradient: tf.Tensor) -> dict[int, Factor]:
    table = embeddings_of(layer)
    num_rows, width = kernel_shape(table)
    # All positions in one dimension.
    terms = elements(ids.shape[1:])
    ids = reshape_examples(rows_of_ids(layer, ids), terms)
    values = reshape_examples(gradient, terms, width)
    factors: dict[int, Factor] = {
        id(table): Rows(ids, values, num_rows, reader_of(table) is not None)
    }
    adapter = _adapter_of(layer)
    if adapter is not None:
        down, up = adapter.values()
        values = tf.cast(values, tf.float32)
        projected = tf.matmul(values, up, transpose_b=True)
        factors[id(adapter.down)] = Rows(ids, projected, num_rows)
        entries = tf.gather(down, tf.maximum(ids, 0), axis=0)
        entries = tf.where((ids >= 0)[..., None], entries, 0.0)
        layout = Layout.plain(kernel_shape(adapter.up))
        factors[id(adapter.up)] = Product(entries, values, layout)
    return factors
