"""Sizes of axes by name: which of them values of data decide about, and which are equal.

`Where`, `Unique` and others return as many entries as values say. What is made of them fits
other tensors only where the sizes have one name. An operation that is given such a tensor
must be in the tables here; static shapes are not believed, which `set_shape` changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Union

import tensorflow as tf

# A number; or a name: of a size that is not known while the graph is made, the same for all
# data ("size", ...), or of one that values decide about ("varies", ...).
Size = Union[int, tuple[Any, ...]]
# Of all axes; None if nobody knows how many there are. Of a list of tensors: its length.
Sizes = Union[tuple[Size, ...], None]

# They combine entries at the same place, after broadcasting.
UNARY = frozenset(
    "Abs Acos Acosh Angle Asin Asinh Atan Atanh BesselI0 BesselI0e BesselI1 BesselI1e Ceil "
    "CheckNumerics CheckNumericsV2 ClipByValue ComplexAbs Conj Cos Cosh Digamma Elu Erf "
    "Erfc Erfinv Exp Expm1 Floor Imag Inv Invert IsFinite IsInf IsNan LeakyRelu Lgamma Log "
    "Log1p LogicalNot Ndtri OnesLike Real Reciprocal Relu Relu6 Rint Round Rsqrt Selu "
    "Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Square Tan Tanh ZerosLike".split()
)
BINARY = frozenset(
    "Atan2 Betainc BitwiseAnd BitwiseOr BitwiseXor Complex DivNoNan Equal FloorMod Greater "
    "GreaterEqual Igamma Igammac LeftShift Less LessEqual LogicalAnd LogicalOr Mod "
    "MulNoNan NextAfter NotEqual Polygamma Pow RightShift SelectV2 SquaredDifference "
    "TruncateMod Xdivy Xlog1py Xlogy Zeta".split()
)
ARITHMETIC = frozenset(
    "Add AddV2 Div FloorDiv Maximum Minimum Mul RealDiv Sub TruncateDiv".split()
)
GRADIENTS = frozenset(
    "EluGrad InvGrad LeakyReluGrad ReciprocalGrad Relu6Grad ReluGrad RsqrtGrad SeluGrad "
    "SigmoidGrad SoftplusGrad SoftsignGrad SqrtGrad TanhGrad".split()
)
_OTHERS = frozenset(
    "AddN ApproximateEqual AsString BiasAdd Bucketize Cast Identity Neg PreventGradient "
    "Snapshot StaticRegexFullMatch StaticRegexReplace StopGradient StringJoin StringLength "
    "StringLower StringStrip StringToHashBucket StringToHashBucketFast "
    "StringToHashBucketStrong StringUpper".split()
)
# They keep the shape of their first input, whatever its sizes.
_KEEPS = frozenset(
    "Cumprod Cumsum CumulativeLogsumexp LogSoftmax ReverseV2 Softmax".split()
)
_REDUCES = frozenset("All Any EuclideanNorm Max Mean Min Prod Sum".split())
_NUMBERS = frozenset("L2Loss Rank Shape ShapeN Size TensorListLength".split())
_PREFIXES = frozenset(
    "ScatterNd SparseSoftmaxCrossEntropyWithLogits UnsortedSegmentMax UnsortedSegmentMin "
    "UnsortedSegmentProd UnsortedSegmentSum".split()
)
_PRODUCTS = frozenset("BatchMatMul BatchMatMulV2 BatchMatMulV3 MatMul".split())
_UNIQUE = frozenset("Unique UniqueV2 UniqueWithCounts UniqueWithCountsV2".split())
# The input that says which sizes an operation makes.
ASKED = {
    **dict.fromkeys(
        "Fill StatelessRandomNormal StatelessRandomNormalV2 StatelessRandomUniform "
        "StatelessRandomUniformV2 StatelessTruncatedNormal "
        "StatelessTruncatedNormalV2".split(),
        0,
    ),
    **dict.fromkeys("BroadcastTo Reshape TopKV2".split(), 1),
}
# Part of the name of a size that is not 0.
_SOME = "some"


class DoNotFit(Exception):
    """Sizes may not fit one another, for some values."""


def varies(sizes: Sizes) -> bool:
    """Whether values of data decide about a size."""
    return sizes is not None and any(_varies(size) for size in sizes)


def is_some(size: Size) -> bool:
    """Whether a size is known not to be 0."""
    return size[-1] == _SOME if isinstance(size, tuple) else size > 0


def own_sizes(tensor: Any) -> Sizes:
    """Sizes of a tensor of which no more is known than its static shape."""
    if tensor.dtype == tf.variant:
        return (("size", id(tensor)),)
    if tensor.shape.rank is None:
        return None
    return tuple(
        ("size", id(tensor), axis) if size is None else int(size)
        for axis, size in enumerate(tensor.shape)
    )


def varying(tensor: Any, like: Sizes, other: Sizes) -> Sizes:
    """Sizes of one of two tensors: values of data decide about the axes that differ."""
    if like is None or other is None or len(like) != len(other):
        return (("varies", id(tensor)),)
    return tuple(
        size if size == second else ("varies", id(tensor), axis)
        for axis, (size, second) in enumerate(zip(like, other, strict=True))
    )


def changing(tensor: Any, before: Sizes) -> Sizes:
    """Sizes of a part of a loop's state that rounds change, given those before the loop."""
    own = own_sizes(tensor)
    if not varies(before):
        return own
    if own is None or before is None or len(own) != len(before):
        return (("varies", id(tensor)),)
    return tuple(
        ("varies", id(tensor), axis) if _varies(first) else size
        for axis, (size, first) in enumerate(zip(own, before, strict=True))
    )


def sizes_after(op: Any, given: Sequence[Sizes], decided: bool) -> list[Sizes]:
    """Sizes of what an operation returns that calls no function.

    Args:
      op: the operation.
      given: sizes of its inputs.
      decided: whether the sizes of its results depend on values of data.

    Raises:
      DoNotFit: if values of data can make it raise, by the sizes that they lead to.
    """
    own = [own_sizes(output) for output in op.outputs]
    if decided:
        return _made(op, given)
    is_varying = any(map(varies, given))
    rule = _RULES.get(op.type)
    if rule is None or any(sizes is None for sizes in given):
        if is_varying:
            raise DoNotFit
        return own
    try:
        found = rule(op, given)
    except (DoNotFit, IndexError, ValueError):
        # A rule that meets sizes of a rank which it does not know knows nothing of them.
        if is_varying:
            raise DoNotFit from None
        return own
    return [
        sizes if varies(sizes) else _refined(sizes, static)
        for sizes, static in zip(found, own, strict=True)
    ]


def sizes_as_asked(op: Any, given: Sequence[Sizes], asked: Sizes) -> list[Sizes]:
    """Sizes of what an operation returns that is told sizes of other tensors.

    Args:
      op: the operation, of `ASKED`.
      given: sizes of its inputs.
      asked: the sizes.

    Raises:
      DoNotFit: if values of data can make it raise, by the sizes that they lead to.
    """
    own = given[0]
    fits = ASKED[op.type] == 0 or own == asked
    if own is None:
        pass
    elif op.type == "BroadcastTo":
        fits = _aligned([own, asked]) == asked
    elif op.type == "TopKV2":
        fits = own[-1:] == asked
        asked = own
    if not fits:
        raise DoNotFit
    return [asked] * len(op.outputs)


def _varies(size: Size) -> bool:
    return isinstance(size, tuple) and size[0] == "varies"


def _refined(sizes: Sizes, static: Sizes) -> Sizes:
    if sizes is None or static is None or len(sizes) != len(static):
        return static
    return tuple(
        b if isinstance(b, int) else a for a, b in zip(sizes, static, strict=True)
    )


def _made(op: Any, given: Sequence[Sizes]) -> list[Sizes]:
    """Sizes where values of data decide how many entries there are."""
    if op.type == "Where":
        # As many as are true, however they are arranged.
        source = op.inputs[0]
        while source.op.type in ("Identity", "Reshape"):
            source = source.op.inputs[0]
        return [(("varies", id(source)), op.inputs[0].shape.rank or ("varies", id(op)))]
    if op.type in _UNIQUE and given[0] is not None and len(given[0]) == 1:
        filled = isinstance(given[0][0], int) and given[0][0] > 0
        name = ("varies", id(op), *((_SOME,) if filled else ()))
        found: list[Sizes] = [(name,), given[0], (name,)]
        return found[: len(op.outputs)]
    if op.type == "ListDiff":
        return [(("varies", id(op)),)] * 2
    if op.type == "StringSplitV2":
        return [(("varies", id(op)), 2), (("varies", id(op)),), (2,)]
    return [
        tuple(("varies", id(out), axis) for axis in range(out.shape.rank or 1))
        for out in op.outputs
    ]


def _aligned(given: Sequence[Sizes]) -> Sizes:
    """Sizes after broadcasting."""
    known = [sizes for sizes in given if sizes is not None]
    rank = max(map(len, known))
    found: list[Size] = []
    for place in range(-rank, 0):
        here = {sizes[place] for sizes in known if len(sizes) >= -place} - {1}
        if len(here) > 1:
            raise DoNotFit
        found += here or {1}
    return tuple(found)


def _entries(op: Any, given: Sequence[Sizes]) -> list[Sizes]:
    return [_aligned(given)]


def _keeps(op: Any, given: Sequence[Sizes]) -> list[Sizes]:
    return [given[0]]


def _numbers(op: Any, given: Sequence[Sizes]) -> list[Sizes]:
    # The number of axes is known.
    if op.type in ("Shape", "ShapeN"):
        return [(len(sizes),) for sizes in given if sizes is not None]
    return [()]


def _axes(tensor: Any, rank: int) -> list[int]:
    axes = tf.get_static_value(tensor)
    if axes is None:
        raise DoNotFit
    return [int(axis) % max(rank, 1) for axis in axes.reshape(-1)]


def _reduces(op: Any, given: Sequence[Sizes]) -> list[Sizes]:
    sizes = given[0] or ()
    axes = _axes(op.inputs[1], len(sizes))
    if op.get_attr("keep_dims"):
        return [tuple(1 if i in axes else s for i, s in enumerate(sizes))]
    return [tuple(s for i, s in enumerate(sizes) if i not in axes)]


def _best(op: Any, given: Sequence[Sizes]) -> list[Sizes]:
    sizes = given[0] or ()
    (axis,) = _axes(op.inputs[1], len(sizes))
    if _varies(sizes[axis]) and not is_some(sizes[axis]):
        raise DoNotFit  # of nothing there is no best
    return [(*sizes[:axis], *sizes[axis + 1 :])]


def _squeezed(op: Any, given: Sequence[Sizes]) -> list[Sizes]:
    sizes = given[0] or ()
    axes = [axis % len(sizes) for axis in op.get_attr("squeeze_dims")]
    if not axes or any(sizes[axis] != 1 for axis in axes):
        raise DoNotFit  # of which axes there are one
    return [tuple(size for axis, size in enumerate(sizes) if axis not in axes)]


def _expanded(op: Any, given: Sequence[Sizes]) -> list[Sizes]:
    sizes = given[0] or ()
    (axis,) = _axes(op.inputs[1], len(sizes) + 1)
    return [(*sizes[:axis], 1, *sizes[axis:])]


def _transposed(op: Any, given: Sequence[Sizes]) -> list[Sizes]:
    sizes = given[0] or ()
    return [tuple(sizes[axis] for axis in _axes(op.inputs[1], len(sizes)))]


def _packed(op: Any, given: Sequence[Sizes]) -> list[Sizes]:
    if len(set(given)) > 1:
        raise DoNotFit
    sizes = given[0] or ()
    axis = op.get_attr("axis") % (len(sizes) + 1)
    return [(*sizes[:axis], len(given), *sizes[axis:])]


def _unpacked(op: Any, given: Sequence[Sizes]) -> list[Sizes]:
    sizes = given[0] or ()
    axis = op.get_attr("axis") % len(sizes)
    if sizes[axis] != len(op.outputs):
        raise DoNotFit
    return [(*sizes[:axis], *sizes[axis + 1 :])] * len(op.outputs)


def _joined(op: Any, given: Sequence[Sizes]) -> list[Sizes]:
    parts = [sizes or () for sizes in given[:-1]]
    (axis,) = _axes(op.inputs[-1], len(parts[0]))
    if len({(*s[:axis], *s[axis + 1 :]) for s in parts}) > 1:
        raise DoNotFit
    along = [sizes[axis] for sizes in parts]
    numbers = [size for size in along if isinstance(size, int)]
    size: Size = sum(numbers)
    if len(numbers) < len(along):
        kind = "varies" if any(map(_varies, along)) else "size"
        filled = any(map(is_some, along))
        size = (kind, id(op.outputs[0]), axis, *((_SOME,) if filled else ()))
    return [(*parts[0][:axis], size, *parts[0][axis + 1 :])]


def _gathered(op: Any, given: Sequence[Sizes]) -> list[Sizes]:
    sizes, places = given[0] or (), given[1] or ()
    if op.type == "GatherNd":
        depth = places[-1]
        if not isinstance(depth, int) or any(map(_varies, sizes[:depth])):
            raise DoNotFit
        return [(*places[:-1], *sizes[depth:])]
    if op.get_attr("batch_dims"):
        raise DoNotFit
    (axis,) = _axes(op.inputs[2], len(sizes))
    if _varies(sizes[axis]):
        static = op.inputs[0].shape
        if not is_some(sizes[axis]) or static.rank is None or static[axis] is not None:
            raise DoNotFit  # of nothing there is no first
    return [(*sizes[:axis], *places, *sizes[axis + 1 :])]


def _one_hot(op: Any, given: Sequence[Sizes]) -> list[Sizes]:
    sizes = given[0] or ()
    axis = op.get_attr("axis") % (len(sizes) + 1)
    depth = tf.get_static_value(op.inputs[1])
    number = ("size", id(op.outputs[0]), axis) if depth is None else int(depth)
    return [(*sizes[:axis], number, *sizes[axis:])]


def _padded(op: Any, given: Sequence[Sizes]) -> list[Sizes]:
    pads = tf.get_static_value(op.inputs[1])
    if pads is None:
        raise DoNotFit
    found: list[Size] = []
    for axis, (size, more) in enumerate(zip(given[0] or (), pads.sum(1), strict=True)):
        if isinstance(size, int) or not more:
            found.append(size + int(more) if isinstance(size, int) else size)
        else:
            found.append((size[0], id(op.outputs[0]), axis, _SOME))
    return [tuple(found)]


def _sliced(op: Any, given: Sequence[Sizes]) -> list[Sizes]:
    """Sizes of `x[...]`: one entry of an axis whose size varies may not be there."""
    sizes = list(given[0] or ())
    static = own_sizes(op.outputs[0]) or ()
    masks = {
        name: op.get_attr(f"{name}_mask")
        for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    }
    strides = tf.get_static_value(op.inputs[3])
    if strides is None:
        raise DoNotFit
    count = len(strides)
    has = {
        name: [bool(mask >> i & 1) for i in range(count)]
        for name, mask in masks.items()
    }
    found: list[Size] = []
    for i in range(count):
        if has["ellipsis"][i]:
            after = sum(not new for new in has["new_axis"][i + 1 :])
            found += [sizes.pop(0) for _ in range(len(sizes) - after)]
        elif has["new_axis"][i]:
            found.append(1)
        else:
            size = sizes.pop(0)
            if has["shrink_axis"][i]:
                if _varies(size):
                    raise DoNotFit
            elif has["begin"][i] and has["end"][i] and abs(strides[i]) == 1:
                found.append(size)
            elif _varies(size):
                found.append(("varies", id(op.outputs[0]), len(found)))
            else:
                known = len(found) < len(static)
                name = ("size", id(op.outputs[0]), len(found))
                found.append(static[len(found)] if known else name)
    return [(*found, *sizes)]


def _reshaped(op: Any, given: Sequence[Sizes]) -> list[Sizes]:
    """Sizes of a reshape whose one free axis takes what there is."""
    target = tf.get_static_value(op.inputs[1])
    if target is None:
        raise DoNotFit
    wanted = [int(size) for size in target]
    sizes = given[0] or ()
    names = [size for size in sizes if not isinstance(size, int)]
    inside = math.prod(size for size in sizes if isinstance(size, int))
    outside = math.prod(size for size in wanted if size >= 0)
    if wanted.count(-1) != 1 or not outside or inside % outside:
        raise DoNotFit
    free: Size = ("varies" if any(map(_varies, names)) else "size", id(op.outputs[0]))
    if not names:
        free = inside // outside
    elif len(names) == 1 and inside == outside:
        free = names[0]
    return [tuple(free if size < 0 else size for size in wanted)]


def _products(op: Any, given: Sequence[Sizes]) -> list[Sizes]:
    first, second = given[0] or (), given[1] or ()
    names = (
        ("transpose_a", "transpose_b") if op.type == "MatMul" else ("adj_x", "adj_y")
    )
    turned = [op.get_attr(name) for name in names]
    rows, inner = first[-2:][::-1] if turned[0] else first[-2:]
    again, columns = second[-2:][::-1] if turned[1] else second[-2:]
    if inner != again:
        raise DoNotFit
    batch = _aligned([first[:-2], second[:-2]]) if len(first) + len(second) > 4 else ()
    return [(*(batch or ()), rows, columns)]


def _prefixed(op: Any, given: Sequence[Sizes]) -> list[Sizes]:
    """Sizes of sums over segments and the like: numbers for the first axes of values."""
    places = 0 if op.type == "ScatterNd" else 1
    numbers, values = given[places] or (), given[1 - places] or ()
    if op.type == "ScatterNd":
        numbers = numbers[:-1]
    if values[: len(numbers)] != numbers:
        raise DoNotFit
    if op.type.startswith("Sparse"):
        return [numbers, values]
    static = own_sizes(op.outputs[0]) or ()
    rest = values[len(numbers) :]
    return [(*static[: len(static) - len(rest)], *rest)]


def _fixed(op: Any, given: Sequence[Sizes]) -> list[Sizes]:
    """Sizes that an operation checks, where its shape says one."""
    sizes = given[0] or ()
    shape = tf.TensorShape(op.get_attr("shape"))
    if shape.rank is None:
        return [sizes]
    if shape.rank != len(sizes) or any(
        wanted is not None and _varies(size)
        for wanted, size in zip(shape, sizes, strict=True)
    ):
        raise DoNotFit
    return [sizes]


def _each(op: Any, given: Sequence[Sizes]) -> list[Sizes]:
    return list(given)


def _listed(op: Any, given: Sequence[Sizes]) -> list[Sizes]:
    """Length of a list after an entry was set or added, whose shape must not vary."""
    if varies(given[-1]):
        raise DoNotFit
    if op.type == "TensorListSetItem":
        if varies(given[0]):
            raise DoNotFit
        if not op.get_attr("resize_if_index_out_of_bounds"):
            return [given[0]]
    length = (given[0] or ((),))[0]
    kind = "varies" if _varies(length) else "size"
    return [((kind, id(op.outputs[0])),)]


def _stacked(op: Any, given: Sequence[Sizes]) -> list[Sizes]:
    length = (given[0] or ((),))[0]
    if not _varies(length):
        raise DoNotFit  # as its static shape says
    if op.get_attr("num_elements") >= 0 or op.outputs[0].shape.rank is None:
        raise DoNotFit
    static = own_sizes(op.outputs[0]) or ()
    return [(length, *static[1:])]


def _looked_up(op: Any, given: Sequence[Sizes]) -> list[Sizes]:
    """Sizes of rows that are looked up, in a table or a variable of fixed shape."""
    keys = given[1] or ()
    if op.type == "ResourceGather" and op.get_attr("batch_dims"):
        raise DoNotFit
    return [(*keys, *(own_sizes(op.outputs[0]) or ())[len(keys) :])]


_Rule = Callable[[Any, Sequence[Sizes]], list[Sizes]]
_RULES: dict[str, _Rule] = {
    **dict.fromkeys(UNARY | BINARY | ARITHMETIC | GRADIENTS | _OTHERS, _entries),
    **dict.fromkeys(_KEEPS, _keeps),
    **dict.fromkeys(_REDUCES, _reduces),
    **dict.fromkeys(_NUMBERS, _numbers),
    **dict.fromkeys(_PREFIXES, _prefixed),
    **dict.fromkeys(_PRODUCTS, _products),
    "ArgMax": _best,
    "ArgMin": _best,
    "ConcatV2": _joined,
    "EnsureShape": _fixed,
    "ExpandDims": _expanded,
    "GatherNd": _gathered,
    "GatherV2": _gathered,
    "IdentityN": _each,
    "LookupTableFindV2": _looked_up,
    "OneHot": _one_hot,
    "Pack": _packed,
    "Pad": _padded,
    "PadV2": _padded,
    "PlaceholderWithDefault": _fixed,
    "Reshape": _reshaped,
    "ResourceGather": _looked_up,
    "Squeeze": _squeezed,
    "StridedSlice": _sliced,
    "TensorListPushBack": _listed,
    "TensorListSetItem": _listed,
    "TensorListStack": _stacked,
    "Transpose": _transposed,
    "Unpack": _unpacked,
}
