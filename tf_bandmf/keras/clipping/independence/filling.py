"""Operations that make or repeat entries: tiles, broadcasts, constants, counters."""

from __future__ import annotations

import dataclasses

from tf_bandmf.keras.clipping.independence import sizes
from tf_bandmf.keras.clipping.independence.domain import (
    INDEPENDENT,
    Kind,
    NotIndependent,
    Value,
    mixes,
    per_example,
)
from tf_bandmf.keras.clipping.independence.elementwise import POSITIONS
from tf_bandmf.keras.clipping.independence.evaluation import (
    LONGEST_SHAPE,
    Node,
    transfer,
)
from tf_bandmf.keras.clipping.independence.layout import needs_rows
from tf_bandmf.keras.clipping.independence.sizes import Content, Dim, as_tuple


@transfer("Tile")
def _tile(node: Node) -> Value:
    value = node.values[0]
    multiples = as_tuple(node.content(1))
    if multiples is None:
        raise NotIndependent("repeats a number of times that is not known")
    if value.independent:
        shape = [d * m for d, m in zip(node.shape(0), multiples, strict=True)]
        for axis, multiple in enumerate(multiples):
            if multiple.depends_on_batch and node.shape(0)[axis] != sizes.ONE:
                raise NotIndependent(POSITIONS)
        return filled(tuple(shape))
    needs_rows(value)
    if multiples[value.axis] != sizes.ONE:
        raise mixes("repeats the whole batch")
    repeated = tuple(d * m for d, m in zip(node.shape(0), multiples, strict=True))
    return dataclasses.replace(value, content=None, shape=repeated)


def filled(shape: Content) -> Value:
    """The value of something that is the same, or drawn anew, for each example.

    Raises:
      NotIndependent: if no axis, or several, can be the batch.
    """
    entries = as_tuple(shape)
    if entries is None:
        raise NotIndependent("has a shape that is not known")
    axes = [axis for axis, dim in enumerate(entries) if dim.depends_on_batch]
    if not axes:
        return dataclasses.replace(INDEPENDENT, shape=entries)
    if len(axes) > 1 or not entries[axes[0]].is_rows:
        raise NotIndependent("has a shape in which the batch is not one axis")
    return per_example(axes[0], entries[axes[0]], entries)


@transfer("BroadcastTo")
def _broadcast(node: Node) -> Value:
    value = node.values[0]
    target = as_tuple(node.content(1))
    if target is None:
        raise NotIndependent("has a shape that is not known")
    source = node.shape(0)
    shift = len(target) - len(source)
    if value.independent:
        for axis, dim in enumerate(target):
            if dim.depends_on_batch and axis >= shift:
                if source[axis - shift] != sizes.ONE:
                    raise NotIndependent(POSITIONS)
        return filled(target)
    rows = needs_rows(value)
    if target[value.axis + shift] != rows:
        raise NotIndependent("repeats the batch")
    return per_example(value.axis + shift, rows, target)


@transfer("Fill")
def _fill(node: Node) -> Value:
    if not node.values[1].independent:
        raise NotIndependent("fills a tensor with a value that depends on the batch")
    content = node.content(0)
    return filled(() if content is None and node.rank(0) == 0 else content)


@transfer("Range")
def _range(node: Node) -> Value:
    start, limit, delta = (node.content(index) for index in range(3))
    if all(value.independent for value in node.values):
        numbers = [end for end in (start, limit, delta) if isinstance(end, Dim)]
        known = len(numbers) == 3 and not any(number.symbols for number in numbers)
        if not known or numbers[2].factor == 0:
            return INDEPENDENT
        found = range(*(number.factor for number in numbers))
        if len(found) > LONGEST_SHAPE:
            return INDEPENDENT
        return dataclasses.replace(INDEPENDENT, content=tuple(Dim(i) for i in found))
    if isinstance(limit, Dim) and limit.is_batch:
        if start == Dim(0) and delta == sizes.ONE:
            return Value(Kind.INDEX, 0, limit)
    raise NotIndependent(
        "counts the examples of the batch, so that values depend on positions in it"
    )
