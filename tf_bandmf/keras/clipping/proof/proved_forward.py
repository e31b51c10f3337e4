"""The forward pass of the step that runs, with the proof that it keeps examples apart."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_bandmf.keras.clipping.forward.passes import Forward, run_forward
from tf_bandmf.keras.clipping.forward.tapped_layers import find_units
from tf_bandmf.keras.clipping.independence.trace import Trace, recording
from tf_bandmf.keras.clipping.proof.batch_axis import structure_of
from tf_bandmf.keras.clipping.proof.refusals import (
    prove,
    refuse_shared_reads,
    refuse_state,
)
from tf_bandmf.keras.clipping.tensors import batches
from tf_bandmf.keras.compat.seeds import used_generators


@contextlib.contextmanager
def proved_forward(
    model: keras.Model, variables: Sequence[Any], data: Any
) -> Iterator[Forward]:
    """Runs the model and its loss in the current graph, and shows that it may run.

    The batch size is unknown while the graph is made, even if it is known, so that the
    model cannot compute with it unseen.

    Args:
      model: a built and compiled model.
      variables: its trainable variables.
      data: (x, y, sample_weight), tensors [B, ...].

    Yields:
      The recorded pass; what is made of it in the body belongs to the step.

    Raises:
      UnsupportedModelError: if an example's gradient may depend on other examples, or
        the step changes a variable.
    """
    alone: Sequence[Any] = ()
    data = batches.map_tensors(_without_batch_size, data)
    while True:
        structure = structure_of(model, variables, data, alone)
        units = find_units(model, variables, structure.alone)
        trace = Trace(batches.tensor_leaves(data))
        with used_generators() as generators:
            forward = run_forward(
                model, variables, units, data, structure.shapes, trace
            )
        more = prove(model, forward, trace, generators, structure.alone)
        if more is None:
            break
        trace.done()
        alone = (*structure.alone, more)
    try:
        with recording(trace):
            yield forward
    finally:
        trace.done()
    refuse_shared_reads(model, trace)
    refuse_state(model, forward, trace, generators)


def _without_batch_size(tensor: tf.Tensor) -> tf.Tensor:
    if tensor.shape[0] is None:
        # XLA would take what follows for a constant, and compile for each batch.
        return tensor
    return tf.raw_ops.PlaceholderWithDefault(
        input=tensor, shape=[None, *tensor.shape[1:]]
    )
