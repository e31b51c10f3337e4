"""Rows that a dilated convolution cuts its images into, and joins again."""

from __future__ import annotations

from tf_bandmf.keras.clipping.independence import sizes
from tf_bandmf.keras.clipping.independence.domain import (
    Kind,
    Value,
    mixes,
    per_example,
)
from tf_bandmf.keras.clipping.independence.evaluation import Node, transfer
from tf_bandmf.keras.clipping.independence.layout import needs_independent, needs_rows
from tf_bandmf.keras.clipping.independence.sizes import Dim


@transfer("SpaceToBatchND")
def _cut(node: Node) -> Value:
    value = node.values[0]
    rows = needs_rows(value)
    needs_independent(node, 1, 2)
    if value.axis != 0:
        raise mixes("takes another axis than that of the batch for the examples")
    blocks = sizes.product([Dim(size) for size in node.constants(1)])
    whole = per_example(0, rows)
    return Value(Kind.BLOCKS, rows=blocks * rows, element=whole)


@transfer("BatchToSpaceND")
def _join_cut(node: Node) -> Value:
    value = node.values[0]
    needs_independent(node, 1, 2)
    blocks = sizes.product([Dim(size) for size in node.constants(1)])
    if value.kind is not Kind.BLOCKS or value.element is None:
        raise mixes("joins rows of the batch that were not cut apart")
    if value.rows != blocks * needs_rows(value.element):
        raise mixes("joins parts of several examples")
    return value.element
