"""Between which numbers the entries of an integer tensor lie, whatever the data.

A lower bound is a number. Upper bounds are exclusive: numbers, sizes of axes that are not
known while the graph is made, and values of other tensors, each by a name. That is enough
to see that a position is within a tensor: it was clipped, taken modulo a size, counted,
compared with both ends and replaced where it is beyond, or found by `argmax` and `top_k`.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Union

import numpy as np
import tensorflow as tf

from tf_bandmf.graphs.walking import Scope

# A number; or what names a size or a value that is not known yet.
Limit = Union[int, tuple[Any, ...]]
_SAME = frozenset(
    "Reshape ExpandDims Squeeze Transpose BroadcastTo Slice StridedSlice Tile GatherV2 "
    "ReverseV2 EnsureShape Unpack TensorListGetItem".split()
)
_ALL = frozenset({"Pack", "ConcatV2"})


@dataclasses.dataclass(frozen=True)
class Bounds:
    """Bounds of a tensor's entries.

    Attributes:
      least: the entries are at least that; None if nothing is known.
      below: the entries are below each of these.
    """

    least: int | None = None
    below: frozenset[Limit] = frozenset()

    def is_below(self, limit: Limit) -> bool:
        """Whether all entries are below a limit."""
        numbers = [known for known in self.below if isinstance(known, int)]
        if limit in self.below:
            return True
        return isinstance(limit, int) and bool(numbers) and min(numbers) <= limit


_NOTHING = Bounds()
_TRUTH = Bounds(0, frozenset({2}))


def bounds(tensor: Any, scope: Scope) -> Bounds:
    """Bounds of a tensor's entries; see the module."""
    tensor, scope = scope.origin(tensor)
    if tensor.dtype == tf.bool:
        return _TRUTH
    if not tensor.dtype.is_integer:
        return _NOTHING  # NaN is between no numbers.
    constant = tf.get_static_value(tensor)
    if constant is not None and np.size(constant):
        largest = int(np.max(constant)) + 1
        return Bounds(int(np.min(constant)), frozenset({largest}))
    op = tensor.op
    if op.type == "Cast":
        # Some wider integers would become negative.
        source = op.inputs[0].dtype
        narrow = source.is_integer and source.size > tensor.dtype.size
        found = _NOTHING if narrow else bounds(op.inputs[0], scope)
    elif op.type in _SAME:
        found = bounds(op.inputs[0], scope)
    elif op.type in _ALL:
        parts = list(op.inputs)[: -1 if op.type == "ConcatV2" else None]
        found = _either([bounds(part, scope) for part in parts])
    elif op.type in ("Minimum", "Maximum", "ClipByValue"):
        found = _clipped(op, scope)
    elif op.type == "FloorMod":
        divisor = bounds(op.inputs[1], scope)
        limits = {limit_of(op.inputs[1], scope)}
        limits |= {k - 1 for k in divisor.below if isinstance(k, int)}
        positive = divisor.least is not None and divisor.least > 0
        found = Bounds(0, frozenset(limits)) if positive else _NOTHING
    elif op.type in ("Select", "SelectV2"):
        found = _chosen(op, scope)
    elif op.type in ("ArgMax", "ArgMin"):
        axis = tf.get_static_value(op.inputs[1])
        found = _places(op.inputs[0], axis, scope)
    elif op.type in ("TopKV2", "TopK") and tensor is op.outputs[1]:
        found = _places(op.inputs[0], -1, scope)
    elif op.type == "Range":
        found = _counted(op, scope)
    elif op.type in ("Add", "AddV2", "Sub", "Mul"):
        found = _combined(op, scope)
    elif op.type in ("Shape", "ShapeN", "Size", "Rank"):
        found = Bounds(0)
    elif op.type == "OneHot":
        found = _either([bounds(part, scope) for part in op.inputs[2:]])
    elif op.type == "Where" and op.inputs[0].shape.rank == 1:
        found = _places(op.inputs[0], 0, scope)
    elif op.type == "ZerosLike":
        found = Bounds(0, frozenset({1}))
    else:
        found = _NOTHING
    if tensor.shape.rank != 0:
        return found
    own = limit_of(tensor, scope)
    if isinstance(own, int):
        return Bounds(own, frozenset({own + 1}))
    if own[0] == "size":
        found = Bounds(found.least if found.least is not None else 0, found.below)
    return found


def limit_of(tensor: Any, scope: Scope) -> Limit:
    """The value of an integer scalar as a limit: a number, a size, or a name."""
    tensor, scope = _stripped(tensor, scope)
    constant = tf.get_static_value(tensor)
    if constant is not None and np.size(constant) == 1:
        return int(np.reshape(constant, ()))
    op = tensor.op
    if op.type not in ("StridedSlice", "GatherV2") or tensor.shape.rank != 0:
        return "value", id(tensor)
    vector, scope = scope.origin(op.inputs[0])
    place = tf.get_static_value(op.inputs[1])
    if place is not None and np.size(place) == 1 and vector.shape.rank == 1:
        index = int(np.reshape(place, ()))
        if vector.op.type == "Shape":
            return size_of(vector.op.inputs[0], index, scope)
        known = tf.get_static_value(vector)
        if known is not None:
            return int(known[index])
    return "value", id(tensor)


def size_of(tensor: Any, axis: int, scope: Scope) -> Limit:
    """The size of an axis as a limit."""
    if tensor.shape.rank is not None:
        axis %= max(tensor.shape.rank, 1)
        size = tensor.shape[axis] if tensor.shape.rank else None
        if size is not None:
            return int(size)
    tensor, _ = _stripped(tensor, scope)
    return "size", id(tensor), axis


def _stripped(tensor: Any, scope: Scope) -> tuple[Any, Scope]:
    while True:
        tensor, scope = scope.origin(tensor)
        is_number = tensor.shape.rank == 0
        if (
            tensor.op.type == "Cast"
            and is_number
            and tensor.op.inputs[0].dtype.is_integer
        ):
            tensor = tensor.op.inputs[0]
        else:
            return tensor, scope


def _either(parts: list[Bounds]) -> Bounds:
    """What holds for all."""
    if not parts:
        return _NOTHING
    least = [part.least for part in parts]
    numbers = [[k for k in part.below if isinstance(k, int)] for part in parts]
    # 0 is below every size, but for 0: there nothing is, whatever the data.
    larger = [
        part.below
        for part, own in zip(parts, numbers, strict=True)
        if min(own, default=2) > 1
    ]
    names = frozenset.intersection(*larger) if larger else frozenset()
    below: set[Limit] = {name for name in names if not isinstance(name, int)}
    if all(numbers):
        below.add(max(min(n) for n in numbers))
    known = [k for k in least if k is not None]
    return Bounds(min(known) if len(known) == len(least) else None, frozenset(below))


def _clipped(op: Any, scope: Scope) -> Bounds:
    first, second, *rest = (bounds(tensor, scope) for tensor in op.inputs)
    if op.type == "Minimum":
        return _smaller(first, second)
    if op.type == "Maximum":
        return _larger(first, second)
    return _smaller(_larger(first, second), rest[0])


def _smaller(first: Bounds, second: Bounds) -> Bounds:
    known = [b.least for b in (first, second)]
    least = None if None in known else min(k for k in known if k is not None)
    return Bounds(least, first.below | second.below)


def _larger(first: Bounds, second: Bounds) -> Bounds:
    known = [b.least for b in (first, second) if b.least is not None]
    return Bounds(max(known) if known else None, _either([first, second]).below)


def _chosen(op: Any, scope: Scope) -> Bounds:
    """Bounds of a value that is replaced where a condition on it does not hold."""
    condition, first, second = op.inputs
    found = bounds(first, scope)
    least, below = found.least, set(found.below)
    value, _ = _uncast(first, scope)
    pending = [scope.origin(condition)]
    while pending:
        tensor, place = pending.pop()
        of = tensor.op
        if of.type == "LogicalAnd":
            pending += [place.origin(part) for part in of.inputs]
            continue
        if of.type not in ("Less", "LessEqual", "Greater", "GreaterEqual"):
            continue
        small, large = list(of.inputs)[:: 1 if of.type.startswith("Less") else -1]
        strict = of.type in ("Less", "Greater")
        if not small.dtype.is_integer:
            continue
        if _uncast(small, place)[0] is value:
            limit = limit_of(large, place)
            below.add(limit if strict else _next(limit))
            below |= {k for k in bounds(large, place).below if not strict}
        elif _uncast(large, place)[0] is value:
            lowest = bounds(small, place).least
            if lowest is not None:
                lowest += strict
                least = lowest if least is None else max(least, lowest)
    return _either([Bounds(least, frozenset(below)), bounds(second, scope)])


def _next(limit: Limit) -> Limit:
    return limit + 1 if isinstance(limit, int) else ("after", *limit)


def _uncast(tensor: Any, scope: Scope) -> tuple[Any, Scope]:
    """A tensor before casts to wider integers."""
    while True:
        tensor, scope = scope.origin(tensor)
        op = tensor.op
        if (
            op.type == "Cast"
            and op.inputs[0].dtype.is_integer
            and op.inputs[0].dtype.size <= tensor.dtype.size
        ):
            tensor = op.inputs[0]
        else:
            return tensor, scope


def _places(tensor: Any, axis: Any, scope: Scope) -> Bounds:
    if axis is None:
        return _NOTHING
    return Bounds(0, frozenset({size_of(tensor, int(axis), scope)}))


def _counted(op: Any, scope: Scope) -> Bounds:
    start, limit, delta = op.inputs
    step = tf.get_static_value(delta)
    if step is None or step <= 0:
        return _NOTHING
    below = bounds(limit, scope).below
    numbers = {k - 1 for k in below if isinstance(k, int)}
    names = {limit_of(limit, scope)}
    return Bounds(bounds(start, scope).least, frozenset(numbers | names))


def _combined(op: Any, scope: Scope) -> Bounds:
    first, second = (_interval(bounds(tensor, scope)) for tensor in op.inputs)
    if first is None or second is None:
        return _NOTHING
    kind = op.type
    if kind == "Sub":
        second = (-second[1], -second[0])
    if kind == "Mul":
        ends = [a * b for a in first for b in second]
    else:
        ends = [first[0] + second[0], first[1] + second[1]]
    widest = op.outputs[0].dtype.max
    if max(map(abs, ends)) >= widest:
        return _NOTHING  # it may overflow
    return Bounds(min(ends), frozenset({max(ends) + 1}))


def _interval(found: Bounds) -> tuple[int, int] | None:
    numbers = [k for k in found.below if isinstance(k, int)]
    if found.least is None or not numbers:
        return None
    return found.least, min(numbers) - 1
