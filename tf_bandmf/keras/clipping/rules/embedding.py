"""Norm rule of `Embedding` and `ReversibleEmbedding`."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_bandmf.keras.clipping.factors.base import Factor, Product
from tf_bandmf.keras.clipping.factors.tables import Rows
from tf_bandmf.keras.clipping.rules.base import (
    LayerCall,
    LayerRule,
    is_plain,
    overridden,
)
from tf_bandmf.keras.clipping.tensors.batches import flattened, terms_of
from tf_bandmf.keras.clipping.tensors.table_readers import reader_of
from tf_bandmf.keras.compat.keras_objects import embeddings_of


class EmbeddingRule(LayerRule):
    """The rule for lookups in a table, and for projections with the same table.

    The gradients of a lookup belong to the rows that were looked up, and are summed if
    a row was looked up several times. A call with `reverse=True` multiplies by the
    transposed table, so its gradient has one outer product per position.
    """

    def fits(self, layer: Any) -> bool:
        """Returns whether this is a plain `Embedding` or `ReversibleEmbedding`.

        Subclasses of `ReversibleEmbedding` that override nothing are included.
        """
        kind: type = keras.layers.ReversibleEmbedding
        is_reversible = isinstance(layer, kind) and not overridden(layer, kind)
        return is_plain(layer, type(layer) if is_reversible else keras.layers.Embedding)

    def weights(self, layer: Any) -> Sequence[Any]:
        return embeddings_of(layer), getattr(layer, "reverse_embeddings", None)

    def forward(self, call: LayerCall) -> Any:
        layer = call.layer
        if not is_reverse(call.args, call.kwargs):
            reader = reader_of(embeddings_of(layer))
            if reader is None:
                outputs = call.run()
            else:
                rows = reader(rows_of_ids(layer, call.inputs))
                outputs = tf.cast(rows, layer.compute_dtype)
            return call.tap(outputs)
        outputs = call.tap(call.run_with(logit_soft_cap=None))
        soft_cap = layer.logit_soft_cap
        if soft_cap is None:
            return outputs
        return soft_cap * keras.ops.tanh(outputs / soft_cap)

    def factors(self, call: LayerCall, gradient: tf.Tensor) -> Mapping[int, Factor]:
        layer, inputs = call.layer, call.inputs
        if not is_reverse(call.args, call.kwargs):
            table, ids = embeddings_of(layer), rows_of_ids(layer, inputs)
            rows = Rows(flattened(ids), terms_of(gradient), table.shape[0])
            return {id(table): rows}
        if layer.tie_weights:
            # For the transposed table, inputs and output gradients are swapped.
            left, right, kernel = gradient, inputs, embeddings_of(layer)
        else:
            left, right, kernel = inputs, gradient, layer.reverse_embeddings
        shape = tuple(kernel.shape)
        return {id(kernel): Product(terms_of(left), terms_of(right), shape)}


def is_lookup_table(layer: Any, variables: Sequence[Any]) -> bool:
    """Returns whether a layer is a plain embedding with one trainable variable.

    Args:
      layer: a built layer.
      variables: its trainable variables.
    """
    return len(variables) == 1 and EmbeddingRule().supports(layer, variables)


def is_reverse(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Returns whether a call with these arguments is a projection, not a lookup."""
    return bool(args[1] if len(args) > 1 else kwargs.get("reverse", False))


def rows_of_ids(layer: Any, ids: tf.Tensor) -> tf.Tensor:
    """Returns the row that an `Embedding` looks up for each id; -1 for invalid ids."""
    num_rows, _ = embeddings_of(layer).shape
    if ids.dtype not in (tf.int32, tf.int64):
        ids = tf.cast(ids, tf.int32)
    # Keras counts negative ids from the end of the table; ids without a row become -1.
    ids = tf.where(ids < 0, ids + num_rows, ids)
    exists = (ids >= 0) & (ids < num_rows)
    return tf.where(exists, ids, -1)
