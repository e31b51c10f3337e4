"""Whether vectorized examples stay apart, shown on the graph that vectorizing made.

TensorFlow's conversion of an operation to many examples is not believed: it numbers the
places of all examples through for some, and an index past the end is one of the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tf_bandmf.graphs.functions import made_once
from tf_bandmf.graphs.shapes import InferredShapes
from tf_bandmf.keras.clipping.independence.domain import (
    NotIndependent,
    Value,
    mixes,
    per_example,
)
from tf_bandmf.keras.clipping.independence.evaluation import Evaluation
from tf_bandmf.keras.clipping.independence.sizes import BATCH


@made_once()
def rows_stay_apart(
    outputs: Sequence[Any],
    elements: Sequence[Any],
    known: Sequence[tuple[Any, Sequence[Any]]],
    static_batch: int | None,
) -> bool:
    """Whether row i of the outputs depends on row i of the elements alone.

    Args:
      outputs: tensors [B, ...].
      elements: tensors [B, ...] that they are made of.
      known: tensors whose rows are made of the same rows of others, by how they are made.
      static_batch: as of `Evaluation`.
    """

    def row_by_row(values: list[Value]) -> Value:
        if not all(value.one_row_each for value in values):
            raise mixes("takes rows for examples that are none")
        return per_example(0, BATCH)

    evaluation = Evaluation(
        {id(tensor): per_example(0, BATCH) for tensor in elements},
        {id(tensor): (made_of, row_by_row) for tensor, made_of in known},
        static_batch=static_batch,
        shapes=InferredShapes(elements[0].graph, outputs),
    )
    try:
        return all(evaluation.value(output).one_row_each for output in outputs)
    except NotIndependent:
        return False
