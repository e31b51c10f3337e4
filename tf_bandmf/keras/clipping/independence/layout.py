"""Operations that move entries: reshapes, transposes, slices, concatenations."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tf_bandmf.graphs.shapes import shape_of
from tf_bandmf.keras.clipping.independence import sizes
from tf_bandmf.keras.clipping.independence.constants import folded
from tf_bandmf.keras.clipping.independence.domain import (
    INDEPENDENT,
    Kind,
    NotIndependent,
    Value,
    mixes,
    per_example,
)
from tf_bandmf.keras.clipping.independence.elementwise import POSITIONS
from tf_bandmf.keras.clipping.independence.evaluation import Node, transfer
from tf_bandmf.keras.clipping.independence.sizes import Content, Dim, as_tuple

_MINUS_ONE = Dim(-1)


def of_content(content: Content) -> Value:
    """The value of an integer tensor whose entries are known."""
    if sizes.depends_on_batch(content):
        return Value(Kind.SIZE, content=content)
    return dataclasses.replace(INDEPENDENT, content=content)


def needs_rows(value: Value) -> Dim:
    """The rows of a PER_EXAMPLE value.

    Raises:
      NotIndependent: for values of other kinds.
    """
    if value.kind is Kind.SIZE:
        raise NotIndependent(
            "computes with the number of examples in the batch, which other examples "
            "decide"
        )
    if value.kind is Kind.INDEX:
        raise NotIndependent("computes with the positions of examples in the batch")
    if not value.per_example or value.rows is None:
        raise NotIndependent("is not known for such tensors")
    return value.rows


def needs_independent(node: Node, *indices: int) -> None:
    """Asks that inputs say the same whatever is in the batch, and how much.

    Raises:
      NotIndependent: if one depends on data or on the number of examples.
    """
    for index in indices:
        if not node.values[index].independent:
            raise NotIndependent(
                "moves or cuts out entries of each example by numbers that depend on the "
                "batch"
            )


def _cuts_alike(node: Node, index: int, axes: Sequence[int]) -> None:
    """Asks that some entries of a vector do not depend on the batch.

    Raises:
      NotIndependent: if one depends on data or on the number of examples.
    """
    value = node.values[index]
    if value.independent:
        return
    entries = as_tuple(node.content(index)) if value.kind is Kind.SIZE else None
    if entries is None or any(entries[axis].depends_on_batch for axis in axes):
        needs_independent(node, index)


@transfer("Shape")
def _shape(node: Node) -> Value:
    return of_content(node.shape(0))


@transfer("ShapeN")
def _shapes(node: Node) -> list[Value]:
    return [of_content(node.shape(index)) for index in range(len(node.values))]


@transfer("Size")
def _size(node: Node) -> Value:
    return of_content(sizes.product(node.shape(0)))


@transfer("Rank")
def _rank(node: Node) -> Value:
    return of_content(Dim(node.rank(0)))


@transfer("Reshape")
def _reshape(node: Node) -> Value:
    value = node.values[0]
    if not node.values[1].independent and node.values[1].kind is not Kind.SIZE:
        raise NotIndependent("has a shape that depends on data")
    target = as_tuple(node.content(1))
    if value.kind is Kind.SIZE or (value.independent and node.content(0) is not None):
        entries = as_tuple(node.content(0))
        if target is None or entries is None or len(target) > 1:
            return Value(value.kind)
        return of_content(entries if len(target) == 1 else entries[0])
    if value.independent:
        # A target with B in it fits only by accident.
        raise NotIndependent(POSITIONS)
    rows = needs_rows(value)
    if target is None:
        raise NotIndependent("has a shape that is not known")
    source = node.shape(0)
    target = _resolved(target, sizes.product(source))
    before = sizes.product(source[: value.axis])
    passed = sizes.ONE
    for axis, dim in enumerate(target):
        if passed == before and dim.is_rows:
            return per_example(axis, dim, target)
        passed = passed * dim
    raise mixes(
        f"joins parts of several examples: rows {_text(source)} become "
        f"{_text(target)}, of which no axis has {_text(rows)} or a multiple of it"
    )


def _resolved(target: Sequence[Dim], total: Dim) -> tuple[Dim, ...]:
    """A reshape's target with its -1 replaced."""
    if _MINUS_ONE not in target:
        return tuple(target)
    rest = total.over(sizes.product([d for d in target if d != _MINUS_ONE]))
    if rest is None:
        rest = sizes.unknown(depends_on_batch=True)
    return tuple(rest if d == _MINUS_ONE else d for d in target)


def _text(dims: Dim | Sequence[Dim]) -> str:
    if isinstance(dims, Dim):
        words = [s if s.startswith("B") else "?" for s in dims.symbols]
        if dims.factor != 1 or not words:
            words.insert(0, str(dims.factor))
        return "*".join(words)
    return "[" + ", ".join(_text(dim) for dim in dims) + "]"


@transfer("ExpandDims")
def _expand(node: Node) -> Value:
    value = node.values[0]
    if value.kind is Kind.SIZE or value.independent:
        return of_content(as_tuple(node.content(0)))
    (axis,) = node.constants(1)
    axis %= node.rank(0) + 1
    if value.kind is Kind.BLOCKS and axis:
        return dataclasses.replace(value, shape=None)
    rows = needs_rows(value)
    return per_example(value.axis + (axis <= value.axis), rows)


@transfer("Squeeze")
def _squeeze(node: Node) -> Value:
    value = node.values[0]
    if value.kind is Kind.SIZE or value.independent:
        entries = as_tuple(node.content(0))
        return of_content(entries[0] if entries and len(entries) == 1 else None)
    rank = node.rank(0)
    axes = {axis % rank for axis in node.attr("squeeze_dims")}
    if not axes:
        raise NotIndependent("removes axes that are not named")
    if value.kind is Kind.BLOCKS and 0 not in axes:
        return dataclasses.replace(value, shape=None)
    rows = needs_rows(value)
    if value.axis in axes:
        raise mixes("removes the axis of the batch")
    return per_example(value.axis - sum(axis < value.axis for axis in axes), rows)


@transfer("Transpose")
def _transpose(node: Node) -> Value:
    value = node.values[0]
    rows = needs_rows(value)
    rank = node.rank(0)
    order = [axis % rank for axis in node.constants(1)]
    return per_example(order.index(value.axis), rows)


@transfer("Pack")
def _pack(node: Node) -> Value:
    axis = int(node.attr("axis"))
    if all(v.independent or v.kind is Kind.SIZE for v in node.values):
        if node.op.outputs[0].dtype.is_integer and node.rank(0) == 0:
            contents = [node.content(index) for index in range(len(node.values))]
            return of_content(
                tuple(
                    entry
                    if isinstance(entry, Dim)
                    else sizes.unknown(not v.independent)
                    for entry, v in zip(contents, node.values, strict=True)
                )
            )
        kinds = {v.kind for v in node.values}
        return Value(Kind.SIZE if Kind.SIZE in kinds else Kind.INDEPENDENT)
    rank = node.rank(0) + 1
    place = _same_place(node, node.values)
    return per_example(place.axis + (axis % rank <= place.axis), needs_rows(place))


@transfer("Unpack")
def _unpack(node: Node) -> list[Value]:
    value = node.values[0]
    outputs = len(node.op.outputs)
    if value.kind is Kind.SIZE or value.independent:
        entries = as_tuple(node.content(0))
        if entries is None or len(entries) != outputs:
            return [Value(value.kind)] * outputs
        return [of_content(entry) for entry in entries]
    rows = needs_rows(value)
    axis = int(node.attr("axis")) % node.rank(0)
    if axis == value.axis:
        raise mixes("takes single examples out of the batch")
    return [per_example(value.axis - (axis < value.axis), rows)] * outputs


def _same_place(node: Node, values: Sequence[Value]) -> Value:
    """The common value of tensors that are put side by side."""
    for value in values:
        if value.independent:
            raise NotIndependent(POSITIONS)
        needs_rows(value)
        if value.axis != values[0].axis:
            raise mixes("combines each example with others of the batch")
        if value.rows != values[0].rows:
            raise NotIndependent("combines rows that are split in different ways")
    return values[0]


@transfer("ConcatV2")
def _concat(node: Node) -> Value:
    values = node.values[:-1]
    if all(v.independent or v.kind is Kind.SIZE for v in values):
        parts = [as_tuple(node.content(index)) for index in range(len(values))]
        if any(part is None for part in parts):
            kinds = {v.kind for v in values}
            return Value(Kind.SIZE if Kind.SIZE in kinds else Kind.INDEPENDENT)
        return of_content(tuple(entry for part in parts if part for entry in part))
    place = _same_place(node, values)
    (axis,) = node.constants(len(values))
    if axis % node.rank(0) == place.axis:
        raise mixes("puts rows of the batch below others")
    return dataclasses.replace(place, content=None)


@transfer("Split", "SplitV")
def _split(node: Node) -> list[Value]:
    index, where = (1, 0) if node.op.type == "Split" else (0, 2)
    value = node.values[index]
    outputs = len(node.op.outputs)
    if value.kind is Kind.SIZE:
        return [Value(Kind.SIZE)] * outputs
    needs_rows(value)
    if node.op.type == "SplitV":
        needs_independent(node, 1)
    (axis,) = node.constants(where)
    if axis % node.rank(index) == value.axis:
        raise mixes("splits the batch")
    return [dataclasses.replace(value, content=None)] * outputs


@transfer("Slice")
def _slice(node: Node) -> Value:
    value = node.values[0]
    begin, size = (as_tuple(node.content(index)) for index in (1, 2))
    if value.independent and not all(v.independent for v in node.values[1:]):
        raise NotIndependent(POSITIONS)
    if value.kind is Kind.SIZE or value.independent:
        entries = as_tuple(node.content(0))
        if entries is None or begin is None or size is None:
            return Value(value.kind)
        first, count = begin[0].factor, size[0].factor
        return of_content(entries[first : first + count if count >= 0 else None])
    rows = needs_rows(value)
    if begin is None or size is None:
        raise NotIndependent("cuts out a part that is not constant")
    if begin[value.axis] != Dim(0) or size[value.axis] not in (rows, _MINUS_ONE):
        raise mixes("takes some of the examples out of the batch")
    others = [axis for axis in range(node.rank(0)) if axis != value.axis]
    _cuts_alike(node, 1, others)
    _cuts_alike(node, 2, others)
    return dataclasses.replace(value, content=None, shape=node.sizes_of_others())


@transfer("StridedSlice")
def _strided_slice(node: Node) -> Value:
    value = node.values[0]
    if value.independent and not all(v.independent for v in node.values[1:]):
        raise NotIndependent(POSITIONS)
    if value.kind is Kind.SIZE or value.independent:
        return _sliced_content(node)
    rows = needs_rows(value)
    rank = node.rank(0)
    begin, end, strides = (
        as_tuple(content) if (content := node.content(i)) is not None else None
        for i in (1, 2, 3)
    )
    length = shape_of(node.op.inputs[1])[0]
    if length is None:
        raise NotIndependent("slices in a way that is not constant")
    masks = {
        name: int(node.attr(f"{name}_mask"))
        for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    }

    def has(name: str, index: int) -> bool:
        return bool(masks[name] >> index & 1)

    def cuts_alike(but: int | None = None) -> None:
        used = [i for i in range(length) if i != but and not has("ellipsis", i)]
        used = [i for i in used if not has("new_axis", i)]
        _cuts_alike(node, 1, [i for i in used if not has("begin", i)])
        _cuts_alike(node, 2, [i for i in used if not has("end", i)])
        _cuts_alike(node, 3, used)

    consumed = sum(
        not has("new_axis", i) and not has("ellipsis", i) for i in range(length)
    )
    source = output = 0
    for index in range(length):
        if has("ellipsis", index):
            skipped = rank - consumed
            if source <= value.axis < source + skipped:
                cuts_alike()
                return per_example(
                    output + value.axis - source, rows, node.sizes_of_others()
                )
            source, output = source + skipped, output + skipped
            continue
        if has("new_axis", index):
            output += 1
            continue
        if source == value.axis:
            whole = (
                not has("shrink_axis", index)
                and (has("begin", index) or (begin and begin[index] == Dim(0)))
                and (has("end", index) or (end and end[index] == rows))
                and strides is not None
                and strides[index] == sizes.ONE
            )
            if not whole:
                raise mixes("takes some of the examples out of the batch")
            cuts_alike(but=index)
            return per_example(output, rows, node.sizes_of_others())
        output += not has("shrink_axis", index)
        source += 1
    cuts_alike()
    return per_example(output + value.axis - source, rows, node.sizes_of_others())


def _sliced_content(node: Node) -> Value:
    entries = as_tuple(node.content(0))
    kind = node.values[0].kind
    if not all(v.independent for v in node.values[1:]):
        kind = Kind.SIZE
    masks = ("ellipsis_mask", "new_axis_mask")
    if entries is None or node.rank(0) != 1 or any(node.attr(m) for m in masks):
        return Value(kind)
    try:
        (begin,), (end,), (stride,) = (node.constants(i) for i in (1, 2, 3))
    except (NotIndependent, ValueError):
        return Value(kind)
    if node.attr("shrink_axis_mask"):
        return of_content(entries[begin])
    first = None if node.attr("begin_mask") else begin
    last = None if node.attr("end_mask") else end
    return of_content(entries[first:last:stride])


@transfer("Pad", "PadV2", "MirrorPad")
def _pad(node: Node) -> Value:
    value = node.values[0]
    needs_rows(value)
    needs_independent(node, *range(1, len(node.values)))
    paddings = _matrix(node, 1)
    if any(paddings[value.axis]):
        raise mixes("puts rows before or after the examples of the batch")
    return dataclasses.replace(value, content=None)


def _matrix(node: Node, index: int) -> list[list[int]]:
    constant = folded(node.op.inputs[index])
    if constant is None:
        raise NotIndependent("has sizes that are not constant")
    return [[int(entry) for entry in row] for row in constant]
