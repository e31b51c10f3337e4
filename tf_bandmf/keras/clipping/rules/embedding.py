"""Norm rule of `Embedding`."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_bandmf.keras.clipping.factors import Factor
from tf_bandmf.keras.clipping.rows import Rows
from tf_bandmf.keras.clipping.rules.base import (
    LayerCall,
    Rule,
    is_plain,
    kernel_shape,
    owns_only,
)


class EmbeddingRule(Rule):
    """`Embedding`: gradients go to the rows that were looked up, repeats added.

    Position embeddings are looked up once for all examples; the lookup is repeated.
    """

    spreads = True

    def supports(self, layer: Any, variables: Sequence[Any]) -> bool:
        """See the base class."""
        return is_plain(layer, keras.layers.Embedding) and owns_only(
            variables, layer._embeddings
        )

    def forward(self, call: LayerCall) -> Any:
        """See the base class."""
        return call.tap(call.run())

    def factors(
        self, call: LayerCall, gradients: Sequence[tf.Tensor | None]
    ) -> Mapping[int, Factor]:
        """See the base class."""
        (gradient,) = gradients
        if gradient is None:
            return {}
        num_rows, width = kernel_shape(call.layer._embeddings)
        ids = call.spread(call.inputs)
        if ids.dtype not in (tf.int32, tf.int64):
            ids = tf.cast(ids, tf.int32)
        # Keras counts negative ids from the end; rows that do not exist get nothing.
        ids = tf.where(ids < 0, ids + num_rows, ids)
        ids = tf.where((ids >= 0) & (ids < num_rows), ids, -1)
        batch = tf.shape(ids)[0]
        terms = -1
        if all(d is not None for d in ids.shape[1:]):
            terms = 1
            for dimension in ids.shape[1:]:
                terms *= dimension
        rows = Rows(
            tf.reshape(ids, [batch, terms]),
            tf.reshape(gradient, [batch, terms, width]),
            num_rows,
        )
        return {id(call.layer._embeddings): rows}
