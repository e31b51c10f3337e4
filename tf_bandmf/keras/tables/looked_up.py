"""Finds the table rows that a batch looks up, before the forward pass."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_bandmf.keras.clipping.independence.state import is_pure
from tf_bandmf.keras.clipping.rules.embedding import is_reverse, rows_of_ids
from tf_bandmf.keras.clipping.tensors import batches
from tf_bandmf.keras.clipping.tensors.errors import UnsupportedModelError
from tf_bandmf.keras.clipping.tensors.multi_row import UnitRows
from tf_bandmf.keras.compat.graphs import nodes_of
from tf_bandmf.keras.compat.patching import all_patched
from tf_bandmf.keras.compat.recurrent import run_model

_WEIGHTS = frozenset({"ReadVariableOp", "ResourceGather", "ResourceGatherNd"})


class LookedUp:
    """A function from the inputs of a batch to the table rows that it looks up.

    The function is the part of the model between its inputs and the ids of its lookups,
    cut out of a graph of the model. It must not use weights, random numbers or state,
    because the training step computes the ids again and must look up the same rows.

    Args:
      model: a built model.
      layers: `Embedding` layers, several of which may share a table.
    """

    def __init__(self, model: keras.Model, layers: Sequence[Any]) -> None:
        self._model = model
        self._layers = list(layers)
        self._traces: dict[Any, Any] = {}

    def __call__(self, x: Any, rows: tf.Tensor | None) -> list[tf.Tensor]:
        """Returns the row numbers that each layer looks up, [N] int64; -1 means no row.

        Args:
          x: inputs of a batch.
          rows: None; or, for B privacy units with up to K rows of `x` each, [B, K]
            bool, True for the rows that are present.

        Raises:
          UnsupportedModelError: if ids depend on weights, random numbers or state.
        """
        data = batches.to_tensors((x, rows))
        specs = batches.specs_of(data)
        if specs not in self._traces:
            with tf.init_scope():
                self._traces[specs] = self._traced(data, specs)
        return list(self._traces[specs](*batches.tensor_leaves(data)))

    def _traced(self, data: Any, specs: Sequence[tf.TensorSpec]) -> Any:
        def forward(*leaves: tf.Tensor) -> list[tf.Tensor]:
            x, rows = batches.with_leaves(data, leaves)
            if rows is not None:
                x = UnitRows(rows).flat(x)
            read = [[tf.zeros([0], tf.int64)] for _ in self._layers]
            pairs = zip(self._layers, read, strict=True)
            with all_patched(
                (layer, "call", functools.partial(_noted_call, layer, its_rows))
                for layer, its_rows in pairs
            ):
                run_model(self._model, x)
            return [tf.concat(its_rows, axis=0) for its_rows in read]

        whole = tf.compat.v1.wrap_function(forward, list(specs))
        feeds = whole.graph.inputs[: len(specs)]
        part = whole.prune(feeds, whole.graph.outputs[: len(self._layers)])
        nodes = (n for op in part.graph.get_operations() for n in nodes_of(op))
        for node in nodes:
            if not is_pure(node) or node.op in _WEIGHTS:
                names = ", ".join(repr(layer.name) for layer in self._layers)
                raise UnsupportedModelError(
                    f"Lazy tables need ids that depend only on the model's inputs. Ids of "
                    f"{names} depend also on operation {node.name!r} ({node.op}), so they "
                    f"are not known before a step. Compute the ids from the inputs alone, "
                    f"or call make_private(model, tables='dense')."
                )
        return part


def _noted_call(
    layer: Any,
    read: list[tf.Tensor],
    original: Callable[..., Any],
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Calls a layer, and appends to `read` the rows that the layer looks up."""
    if is_reverse(args, kwargs):
        raise UnsupportedModelError(
            f"Layer {layer.name!r} multiplies by its table (a tied output projection), so "
            f"each step reads all rows, and the table cannot be lazy. Call "
            f"make_private(model, tables='dense'), or make_private(model, tables=[...]) "
            f"with names of other layers."
        )
    ids = tf.convert_to_tensor(args[0] if args else next(iter(kwargs.values())))
    read.append(tf.cast(tf.reshape(rows_of_ids(layer, ids), [-1]), tf.int64))
    return original(*args, **kwargs)
