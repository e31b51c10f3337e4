"""The table of Keras' operations: where each puts the axis of examples.

An operation is known by its exact class. Its rule gets the operation with its attributes,
its arguments and results, and returns the place of the examples in each result; it raises
`Mixes` where examples meet, and `CannotOpen` where it does not say.
"""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, Union

import keras
import numpy as np

from tf_bandmf.keras.clipping.independence.places import (
    CannotOpen,
    Mixes,
    Place,
    axes_of,
    reshaped,
    same,
    viewed,
)
from tf_bandmf.keras.compat.keras_operations import MODULES

Result = Union[Place, None, list[Union[Place, None]]]


class Call(Protocol):
    """An operation on symbolic tensors.

    Attributes:
      op: the operation, with its attributes.
      inputs: its arguments by name.
      outputs: its results, flat.
      size: the batch size.
    """

    op: Any
    inputs: dict[str, Any]
    outputs: list[Any]
    size: int

    def place(self, tensor: Any) -> Place | None:
        """Where the examples are in an argument; None: it is the same for all."""
        ...

    def shape(self, tensor: Any) -> tuple[int, ...]:
        """Of an argument or result."""
        ...

    def tensors(self) -> list[Any]:
        """All arguments that are tensors."""
        ...


Rule = Callable[[Call], Result]


def broadcast(call: Call, tensors: Iterable[Any] | None = None) -> Place:
    """Entry by entry, with broadcasting from the last axis on."""
    tensors = call.tensors() if tensors is None else list(tensors)
    rank = max(len(call.shape(tensor)) for tensor in tensors)
    places = []
    for tensor in tensors:
        place = call.place(tensor)
        if place is not None:
            shift = rank - len(call.shape(tensor))
            places.append(place._replace(axis=place.axis + shift))
    return same(places)


def _one(call: Call) -> tuple[Any, Place, tuple[int, ...]]:
    """The first argument, with its place and shape; no other may be of examples."""
    tensors = [t for t in call.tensors() if call.place(t) is not None]
    first = next(iter(call.inputs.values()))
    if len(tensors) != 1 or tensors[0] is not first:
        raise CannotOpen(f"{type(call.op).__name__} of several tensors of examples")
    place = call.place(first)
    assert place is not None
    return first, place, call.shape(first)


def _crosses(call: Call, place: Place, axes: set[int]) -> None:
    if place.axis in axes:
        raise Mixes("goes along the axis of examples")


def _without(place: Place, axes: set[int]) -> Place:
    return place._replace(axis=place.axis - sum(axis < place.axis for axis in axes))


def along(name: str = "axis", default: Any = None) -> Rule:
    """Along axes that an attribute names, and keeps."""

    def rule(call: Call) -> Place:
        _, place, shape = _one(call)
        axis = getattr(call.op, name, default)
        _crosses(call, place, axes_of(axis, len(shape)))
        return place

    return rule


def _reduces(call: Call) -> Place:
    """Over axes that an attribute names."""
    _, place, shape = _one(call)
    op = call.op
    axes = axes_of(op.axes if hasattr(op, "axes") else op.axis, len(shape))
    _crosses(call, place, axes)
    return place if getattr(op, "keepdims", False) else _without(place, axes)


def _quantile(call: Call) -> Place:
    """Over axes; several quantiles stand first."""
    if call.place(call.inputs["q"]) is not None:
        raise CannotOpen("a quantile of each example's own")
    place = _reduces(call)
    return place._replace(axis=place.axis + len(call.shape(call.inputs["q"])))


def _average(call: Call) -> Place:
    x, weights = call.inputs["x"], call.inputs.get("weights")
    place, shape = call.place(x), call.shape(x)
    if place is None or (weights is not None and call.shape(weights) != shape):
        raise CannotOpen("an average with weights of another shape")
    if weights is not None and call.place(weights) is not None:
        same([place, call.place(weights)])  # type: ignore[list-item]
    axes = axes_of(call.op.axis, len(shape))
    _crosses(call, place, axes)
    return _without(place, axes)


def _last(count: int) -> Rule:
    """On the last axes of each argument; those before are kept."""

    def rule(call: Call) -> list[Place | None]:
        place = broadcast(call)
        rank = max(len(call.shape(tensor)) for tensor in call.tensors())
        if place.axis >= rank - count:
            raise Mixes("goes along the axis of examples")
        return [place for _ in call.outputs]

    return rule


def _view(make: Callable[[Call], Any]) -> Rule:
    """Moves, adds or takes away axes, as a view of an array would."""

    def rule(call: Call) -> Place:
        _, place, shape = _one(call)
        found: Place = viewed(place, shape, call.size, make(call))[0]
        return found

    return rule


def new_sizes(call: Any) -> list[int]:
    """The shape that `Reshape` or `Ravel` gives."""
    shape = call.shape(next(iter(call.inputs.values())))
    given = getattr(call.op, "newshape", (-1,))
    sizes = [call.size if n is None else int(n) for n in given]
    if -1 in sizes:
        sizes[sizes.index(-1)] = math.prod(shape) // max(-math.prod(sizes), 1)
    return sizes


def _reshape(call: Call) -> Place:
    _, place, shape = _one(call)
    return reshaped(place, shape, new_sizes(call), call.size)


def _broadcast_to(call: Call) -> Place:
    _, place, shape = _one(call)
    shift = len(call.shape(call.outputs[0])) - len(shape)
    return place._replace(axis=place.axis + shift)


def _tile(call: Call) -> Place:
    _, place, shape = _one(call)
    repeats = list(np.atleast_1d(call.op.repeats))
    rank = max(len(shape), len(repeats))
    repeats = [1] * (rank - len(repeats)) + repeats
    axis = place.axis + rank - len(shape)
    return Place(axis, place.outer * int(repeats[axis]), place.inner)


def _repeat(call: Call) -> Place:
    _, place, shape = _one(call)
    repeats, axis = call.op.repeats, call.op.axis
    if axis is None:
        raise CannotOpen("Repeat without an axis")
    if axis % len(shape) != place.axis:
        return place
    if np.ndim(repeats) and np.size(repeats) != 1:
        raise Mixes("repeats some examples more often than others")
    return place._replace(inner=place.inner * int(np.reshape(repeats, ())))


def _concatenate(call: Call) -> Place:
    tensors = call.tensors()
    place = same([p for t in tensors if (p := call.place(t)) is not None])
    if place.axis not in axes_of(call.op.axis, len(call.shape(tensors[0]))):
        return place
    if any(call.place(tensor) is None for tensor in tensors):
        raise CannotOpen("Concatenate of examples with rows that are none")
    return place._replace(outer=place.outer * len(tensors))


def _stack(call: Call) -> Place:
    tensors = call.tensors()
    place = same([p for t in tensors if (p := call.place(t)) is not None])
    (axis,) = axes_of(call.op.axis, len(call.shape(tensors[0])) + 1)
    return place._replace(axis=place.axis + (axis <= place.axis))


def _split(call: Call) -> list[Place | None]:
    _, place, shape = _one(call)
    (axis,) = axes_of(getattr(call.op, "axis", None) or 0, len(shape))
    count = len(call.outputs)
    if axis == place.axis:
        if np.ndim(call.op.indices_or_sections) or place.outer % count:
            raise Mixes("splits the examples of a batch")
        place = place._replace(outer=place.outer // count)
    return [place] * count


def _unstack(call: Call) -> list[Place | None]:
    _, place, shape = _one(call)
    axes = axes_of(call.op.axis, len(shape))
    if place.axis in axes:
        raise Mixes("picks examples")
    return [_without(place, axes)] * len(call.outputs)


def _pad(call: Call) -> Place:
    _, place, _ = _one(call)
    if tuple(call.op.pad_width[place.axis]) != (0, 0):
        raise CannotOpen("Pad along the axis of examples")
    return place


def _take(call: Call) -> Place:
    x, indices = call.inputs["x"], call.inputs["indices"]
    place, chosen = call.place(x), call.place(indices)
    rank, added = len(call.shape(x)), len(call.shape(indices))
    axis = call.op.axis
    if axis is not None:
        axis %= rank
    if place is None:
        assert chosen is not None
        return chosen._replace(axis=chosen.axis + (axis or 0))
    if axis is None or axis == place.axis:
        raise Mixes("picks examples")
    if chosen is not None:
        raise Mixes("takes from each example what every other one chooses")
    return place._replace(axis=place.axis + (added - 1 if place.axis > axis else 0))


def _take_along_axis(call: Call) -> Place:
    place = broadcast(call)
    rank = len(call.shape(call.inputs["x"]))
    if call.op.axis is None or call.op.axis % rank == place.axis:
        raise Mixes("picks examples")
    return place


def _one_hot(call: Call) -> Place:
    _, place, shape = _one(call)
    axis = call.op.axis % (len(shape) + 1)
    return place._replace(axis=place.axis + (axis <= place.axis))


def _multi_hot(call: Call) -> Place:
    _, place, shape = _one(call)
    if len(shape) < 2:
        raise Mixes("takes all examples for the classes of one")
    if place.axis != 0 or call.op.axis not in (-1, len(shape) - 1):
        raise CannotOpen("MultiHot along other axes")
    return place


def _rows(*names: str) -> Rule:
    """Each row of the named arguments by itself; nothing else is of examples."""

    def rule(call: Call) -> list[Place | None]:
        of_rows = {id(call.inputs.get(name)) for name in names}
        places = []
        for tensor in call.tensors():
            place = call.place(tensor)
            if place is None:
                continue
            if id(tensor) not in of_rows:
                raise CannotOpen(f"{type(call.op).__name__} with an example's own")
            if place.axis != 0:
                raise Mixes("is given examples along another axis than the first")
            places.append(place)
        return [same(places)] * len(call.outputs)

    return rule


def _image(*names: str) -> Rule:
    """Of images: a tensor of rank 3 is a single one."""

    def rule(call: Call) -> Result:
        for name in names:
            given = call.inputs.get(name)
            if given is not None and len(call.shape(given)) != 4:
                raise Mixes("takes the examples of a batch for rows of one image")
        return _rows(*names)(call)

    return rule


def _attention(call: Call) -> Place:
    places = [call.place(call.inputs[name]) for name in ("query", "key", "value")]
    for name in ("bias", "mask"):
        tensor = call.inputs.get(name)
        if tensor is not None and (place := call.place(tensor)) is not None:
            rank = len(call.shape(tensor))
            places.append(place._replace(axis=place.axis + 4 - rank))
    if call.place(call.inputs.get("scale")) is not None:
        raise CannotOpen("DotProductAttention with a scale of each example's own")
    place = same([place for place in places if place is not None])
    if place.axis != 0:
        raise Mixes("attends from examples to others")
    return place


def contraction(call: Call, operands: Sequence[Any], subscripts: str) -> Place | None:
    """The place of examples in a product of tensors that an equation describes."""
    inputs, _, output = subscripts.replace(" ", "").partition("->")
    names = iter(set(string.ascii_letters) - set(subscripts))
    parts, ranks = inputs.split(","), [len(call.shape(t)) for t in operands]
    hidden = [
        rank - len(part.replace("...", ""))
        for part, rank in zip(parts, ranks, strict=True)
        if "..." in part
    ]
    extra = [next(names) for _ in range(max(hidden, default=0))]

    def spelled(part: str, count: int) -> str:
        return part.replace("...", "".join(extra[len(extra) - count :]))

    if "->" not in subscripts:
        flat = inputs.replace(",", "").replace(".", "")
        output = "..." if hidden else ""
        output += "".join(sorted({c for c in flat if flat.count(c) == 1}))
    output = spelled(output, len(extra))
    letters = set()
    for tensor, part, rank in zip(operands, parts, ranks, strict=True):
        place = call.place(tensor)
        part = spelled(part, rank - len(part.replace("...", "")))
        if place is not None:
            letters.add((part[place.axis], place.outer, place.inner))
            if part.count(part[place.axis]) > 1:
                raise Mixes("takes a diagonal through the examples")
    if not letters:
        return None
    (letter, outer, inner), *others = letters
    if others:
        raise Mixes("multiplies each example by every other one")
    if letter not in output:
        raise Mixes("sums over the examples")
    return Place(output.index(letter), outer, inner)


def _einsum(call: Call) -> Place | None:
    return contraction(call, call.inputs["operands"], call.op.subscripts)


def _matmul(call: Call) -> Place | None:
    x, y = call.inputs["x1"], call.inputs["x2"]
    first, second = len(call.shape(x)), len(call.shape(y))
    left = "k" if first == 1 else "...mk"
    right = "k" if second == 1 else "...kn"
    output = "..." + ("m" if first > 1 else "") + ("n" if second > 1 else "")
    output = output if first > 1 or second > 1 else ""
    return contraction(call, [x, y], f"{left},{right}->{output}")


def _tensordot(call: Call) -> Place | None:
    x, y = call.inputs["x1"], call.inputs["x2"]
    first, second = len(call.shape(x)), len(call.shape(y))
    axes = getattr(call.op, "axes", 1)
    if type(call.op).__name__ == "Inner":
        axes = [[first - 1], [second - 1]]
    elif type(call.op).__name__ == "Dot":
        axes = [[first - 1], [max(second - 2, 0)]]
    if isinstance(axes, int):
        axes = [list(range(first - axes, first)), list(range(axes))]
    one, other = ([int(a) for a in np.atleast_1d(part)] for part in axes)
    left = list(string.ascii_lowercase[:first])
    right = list(string.ascii_uppercase[:second])
    for a, b in zip(one, other, strict=True):
        right[b % second] = left[a % first]
    output = [c for c in left if c not in right] + [c for c in right if c not in left]
    equation = f"{''.join(left)},{''.join(right)}->{''.join(output)}"
    return contraction(call, [x, y], equation)


def _top_k(call: Call) -> list[Place | None]:
    _, place, shape = _one(call)
    _crosses(call, place, {len(shape) - 1})
    return [place, place]


def _in_top_k(call: Call) -> Place:
    places = [call.place(call.inputs[name]) for name in ("targets", "predictions")]
    return same([place for place in places if place is not None])


def _sequence(call: Call) -> Place:
    """A matrix of sorted numbers for all, and values of each example."""
    if call.place(call.tensors()[0]) is not None and len(call.tensors()) > 1:
        first, *others = call.tensors()
        if type(call.op).__name__ == "Digitize" and not any(map(call.place, others)):
            place = call.place(first)
            assert place is not None
            return place
        raise CannotOpen("SearchSorted in numbers of each example's own")
    return broadcast(call, call.tensors()[1:])


def _segments(call: Call) -> Place:
    raise Mixes("adds up rows of different examples")


def _categorical(call: Call) -> Place:
    """A cross-entropy along an axis, which goes."""
    place = broadcast(call, [call.inputs["output"]])
    shape = call.shape(call.inputs["output"])
    axes = axes_of(call.op.axis, len(shape))
    _crosses(call, place, axes)
    target = call.inputs["target"]
    if (other := call.place(target)) is not None:
        if len(call.shape(target)) == len(shape):
            same([place, other])
        else:
            same([_without(place, axes), other])
    return _without(place, axes)


def _unfold_like(call: Call) -> Result:
    return _rows(*list(call.inputs)[:1])(call)


def _fold_patches(call: Call) -> Place:
    """Frames of the last axis, which becomes two."""
    _, place, shape = _one(call)
    _crosses(call, place, {len(shape) - 1})
    return place


def _diagonal(call: Call) -> Place:
    _, place, shape = _one(call)
    axes = axes_of((call.op.axis1, call.op.axis2), len(shape))
    _crosses(call, place, axes)
    return _without(place, axes)


def _permutation(call: Call) -> Any:
    axes = call.op.axes
    return lambda array: np.transpose(array, axes)


def _spread(call: Call) -> Any:
    axis = call.op.axis
    return lambda array: np.expand_dims(
        array, tuple(axis) if isinstance(axis, list) else axis
    )


def _squeezed(call: Call) -> Any:
    axis = call.op.axis
    axis = tuple(axis) if isinstance(axis, list) else axis
    return lambda array: np.squeeze(array, axis)


def _like(call: Call) -> Place | None:
    """A constant of the shape of the first argument."""
    (first, *_) = call.inputs.values()
    return call.place(first)


def _picking(call: Call) -> Any:
    key = key_of(call)
    return lambda array: array[key]


def key_of(call: Any) -> Any:
    """What `GetItem` picks: numbers, slices and new axes."""
    key = call.inputs["key"]
    parts = key if isinstance(key, (tuple, list)) else [key]
    for part in parts:
        pieces = [part.start, part.stop, part.step] if isinstance(part, slice) else []
        for piece in pieces or [part]:
            known = piece is None or piece is Ellipsis or isinstance(piece, bool)
            if not known and not isinstance(piece, (int, np.integer)):
                raise CannotOpen("GetItem with an index that is a tensor")
    return tuple(parts)


_BROADCAST = (
    "Absolute Fabs Add Angle Arccos Arccosh Arcsin Arcsinh Arctan Arctan2 Arctanh "
    "Array Heaviside BitwiseAnd BitwiseInvert BitwiseNot BitwiseOr BitwiseXor "
    "LeftShift RightShift Cbrt Ceil Clip Conjugate "
    "Copy Cos Cosh Deg2rad Rad2deg Equal Exp Exp2 Expm1 Floor Gcd Greater "
    "GreaterEqual Hypot Imag I0 Isclose Isfinite Isinf Isnan Isneginf Isposinf Isreal Lcm "
    "Less LessEqual Log Log10 Log1p Log2 Logaddexp Logaddexp2 LogicalAnd LogicalNot "
    "LogicalOr Maximum Fmax Minimum Fmin Mod Fmod NanToNum NotEqual Real Reciprocal Round "
    "Sign Signbit Sin Sinc Sinh Tan Tanh Trunc Where Subtract Multiply Divide DivideNoNan "
    "TrueDivide Power Negative Nextafter Square Sqrt FloorDivide LogicalXor Relu Relu6 "
    "Sigmoid SparseSigmoid Softplus Softsign SoftShrink SparsePlus Silu Squareplus "
    "LogSigmoid LeakyRelu HardSigmoid HardSilu Elu Selu Gelu Celu TanhShrink HardTanh "
    "HardShrink Threshold BinaryCrossentropy Polar StopGradient Cast ReLU SaturateCast "
    "ConvertToTensor Rsqrt Erf Erfc Erfinv Identity"
)
_REDUCES = (
    "All Any Amax Amin Argmax Argmin CountNonzero Max Mean Median Min Prod Ptp Std Sum "
    "Var Nanargmax Nanargmin Nanmax Nanmean Nanmedian Nanmin Nanprod Nanstd Nansum Nanvar "
    "Logsumexp Norm Moments"
)
_ALONG = (
    "LayerNorm RMSNorm Cumsum Cumprod Nancumsum Nancumprod Flip Sort Argsort Argpartition "
    "Diff Softmax LogSoftmax Sparsemax Normalize Glu Roll"
)
_LAST_TWO = "Tril Triu Cholesky Inv Qr SVD Pinv Det Logdet Eigh FFT2 IFFT2"
_LAST_ONE = "FFT RFFT STFT "
_TABLE: dict[str, Rule] = {
    **dict.fromkeys(_BROADCAST.split(), broadcast),
    **dict.fromkeys(_REDUCES.split(), _reduces),
    **dict.fromkeys("Quantile Percentile Nanquantile Nanpercentile".split(), _quantile),
    **dict.fromkeys(_ALONG.split(), along()),
    **dict.fromkeys("Trapezoid".split(), _reduces),
    **dict.fromkeys(_LAST_TWO.split(), _last(2)),
    **dict.fromkeys(_LAST_ONE.split(), _last(1)),
    **dict.fromkeys("FullLike OnesLike ZerosLike".split(), _like),
    **dict.fromkeys("Reshape Ravel".split(), _reshape),
    **dict.fromkeys("Split ArraySplit".split(), _split),
    **dict.fromkeys("Tensordot Dot Inner".split(), _tensordot),
    **dict.fromkeys("Diagonal Trace".split(), _diagonal),
    **dict.fromkeys("SegmentSum SegmentMax SegmentMin SegmentProd".split(), _segments),
    **dict.fromkeys("Digitize SearchSorted".split(), _sequence),
    **dict.fromkeys(
        "MaxPool AdaptiveMaxPool AveragePool AdaptiveAveragePool Conv DepthwiseConv "
        "SeparableConv ConvTranspose".split(),
        _rows("inputs"),
    ),
    **dict.fromkeys(
        "DepthToSpace SpaceToDepth Unfold BatchNorm RGBToHSV HSVToRGB".split(),
        _unfold_like,
    ),
    **dict.fromkeys(
        "RGBToGrayscale Resize ExtractPatches PadImages CropImages GaussianBlur "
        "SobelEdges".split(),
        _image("images"),
    ),
    "AffineTransform": _image("images"),
    "Average": _average,
    "BroadcastTo": _broadcast_to,
    "CategoricalCrossentropy": _categorical,
    "SparseCategoricalCrossentropy": _categorical,
    "Concatenate": _concatenate,
    "DotProductAttention": _attention,
    "Einsum": _einsum,
    "ExpandDims": _view(_spread),
    "ExtractSequences": _fold_patches,
    "GetItem": _view(_picking),
    "InTopK": _in_top_k,
    "Matmul": _matmul,
    "Moveaxis": _view(
        lambda call: lambda a: np.moveaxis(a, call.op.source, call.op.destination)
    ),
    "MultiHot": _multi_hot,
    "OneHot": _one_hot,
    "Pad": _pad,
    "Repeat": _repeat,
    "Squeeze": _view(_squeezed),
    "Stack": _stack,
    "Swapaxes": _view(
        lambda call: lambda a: np.swapaxes(a, call.op.axis1, call.op.axis2)
    ),
    "Take": _take,
    "TakeAlongAxis": _take_along_axis,
    "Tile": _tile,
    "TopK": _top_k,
    "Transpose": _view(_permutation),
    "Unstack": _unstack,
}
OPERATIONS: dict[type, Rule] = {
    getattr(module, name): rule
    for name, rule in _TABLE.items()
    for module in MODULES
    if isinstance(getattr(module, name, None), type)
    and issubclass(getattr(module, name), keras.Operation)
}
