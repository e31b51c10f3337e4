"""The table of Keras' operations: where each puts the axis of examples.

An operation is known by its exact class. Its rule gets the operation with its attributes,
its arguments and results, and returns the place of the examples in each result; it raises
`Mixes` where examples meet, and `CannotOpen` where it does not say.
"""

from __future__ import annotations

import functools
import inspect
import math
import string
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Union

import keras
import numpy as np
import tensorflow as tf

from tf_bandmf.keras.clipping.independence.places import (
    CannotOpen,
    Mixes,
    Place,
    axes_of,
    reshaped,
    same,
    viewed,
)
from tf_bandmf.keras.compat.keras_operations import MODULES, KerasTensor

Result = Union[Place, None, list[Union[Place, None]]]


class Call:
    """An operation on symbolic tensors.

    Args:
      walk: knows places and shapes of tensors, and the batch size.
      op: the operation, with its attributes.
      args: its arguments; of all, `inputs` has them by name.
      kwargs: likewise.
    """

    def __init__(self, walk: Any, op: Any, args: Any, kwargs: Any) -> None:
        self.op, self.size = op, walk.size
        self._walk = walk
        # Results, flat.
        self.outputs: list[Any] = []
        kind: Any = type(op)
        self.inputs = dict(_signature(kind).bind(op, *args, **kwargs).arguments)
        self.inputs.pop("self")
        # Of those that take any number of them.
        if "operands" in self.inputs:
            self.inputs["operands"] = list(self.inputs["operands"])

    def place(self, tensor: Any) -> Place | None:
        """Where the examples are in an argument; None: it is the same for all."""
        place: Place | None = self._walk.place(tensor)
        return place

    def shape(self, tensor: Any) -> tuple[int, ...]:
        """Of an argument or result, with the batch size."""
        shape: tuple[int, ...] = self._walk.shape(tensor)
        return shape

    def tensors(self) -> list[Any]:
        """All arguments that are tensors."""
        leaves = keras.tree.flatten(list(self.inputs.values()))
        return [t for t in leaves if isinstance(t, KerasTensor) or is_array(t)]


@functools.cache
def _signature(kind: Any) -> inspect.Signature:
    return inspect.signature(kind.call)


def is_array(value: Any) -> bool:
    """Whether a value is a tensor or variable with numbers."""
    return isinstance(value, (np.ndarray, keras.Variable)) or tf.is_tensor(value)


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


def _one(call: Call, name: str | None = None) -> tuple[Place, tuple[int, ...]]:
    """Place and shape of an argument, the first; no other may be of examples."""
    one = call.inputs[name] if name else next(iter(call.inputs.values()))
    tensors = [t for t in call.tensors() if call.place(t) is not None]
    place = call.place(one)
    if len(tensors) != 1 or tensors[0] is not one or place is None:
        raise CannotOpen(f"{type(call.op).__name__} of several tensors of examples")
    return place, call.shape(one)


def _crosses(place: Place, axes: set[int]) -> None:
    if place.axis in axes:
        raise Mixes("goes along the axis of examples")


def _kept(call: Call, place: Place) -> list[Place | None]:
    """Examples as they are in the argument, along the one axis that is as long."""
    length = place.outer * call.size * place.inner
    places: list[Place | None] = []
    for tensor in call.outputs:
        axes = [axis for axis, n in enumerate(tensor.shape) if n in (None, length)]
        if len(axes) != 1:
            raise Mixes("has no axis, or several, that could be that of the examples")
        places.append(place._replace(axis=axes[0]))
    return places


def _along(*names: str, argument: str | None = None) -> Rule:
    """Along axes that attributes name, of the one argument that is of examples."""

    def rule(call: Call) -> Result:
        place, shape = _one(call, argument)
        told = [getattr(call.op, name) for name in names if hasattr(call.op, name)]
        if names and not told:
            raise CannotOpen(f"{type(call.op).__name__} does not tell its axes")
        for axis in told:
            _crosses(place, axes_of(axis, len(shape)))
        return _kept(call, place)

    return rule


def _average(call: Call) -> Result:
    x, weights = call.inputs["x"], call.inputs.get("weights")
    if weights is None:
        return _along("axis")(call)
    if call.shape(weights) != call.shape(x):
        raise CannotOpen("an average with weights of another shape")
    place = broadcast(call)
    _crosses(place, axes_of(call.op.axis, len(call.shape(x))))
    return _kept(call, place)


def _last(count: int) -> Rule:
    """On the last axes of each argument; those before are kept."""

    def rule(call: Call) -> Result:
        place = broadcast(call)
        rank = max(len(call.shape(tensor)) for tensor in call.tensors())
        _crosses(place, set(range(rank - count, rank)))
        return [place for _ in call.outputs]

    return rule


def _get_item(call: Call) -> Place:
    place, shape = _one(call)
    key = key_of(call)
    found: Place = viewed(place, shape, call.size, lambda array: array[key])[0]
    return found


def new_sizes(call: Any) -> list[int]:
    """The shape that `Reshape` or `Ravel` gives."""
    shape = call.shape(next(iter(call.inputs.values())))
    given = getattr(call.op, "newshape", (-1,))
    sizes = [call.size if n is None else int(n) for n in given]
    if -1 in sizes:
        sizes[sizes.index(-1)] = math.prod(shape) // max(-math.prod(sizes), 1)
    return sizes


def _reshape(call: Call) -> Place:
    place, shape = _one(call)
    return reshaped(place, shape, new_sizes(call), call.size)


def _tile(call: Call) -> Place:
    place, shape = _one(call)
    repeats = list(np.atleast_1d(call.op.repeats))
    rank = max(len(shape), len(repeats))
    repeats = [1] * (rank - len(repeats)) + repeats
    axis = place.axis + rank - len(shape)
    return Place(axis, place.outer * int(repeats[axis]), place.inner)


def _repeat(call: Call) -> Place:
    place, shape = _one(call)
    repeats, axis = call.op.repeats, call.op.axis
    if axis is None:
        raise CannotOpen("Repeat without an axis")
    if axis % len(shape) != place.axis:
        return place
    if np.ndim(repeats) and np.size(repeats) != 1:
        raise Mixes("repeats some examples more often than others")
    return place._replace(inner=place.inner * int(np.reshape(repeats, ())))


def _joined(call: Call) -> Result:
    """Tensors put side by side: along an axis, or along a new one."""
    tensors = call.tensors()
    place = same([p for t in tensors if (p := call.place(t)) is not None])
    is_new = len(call.shape(call.outputs[0])) > len(call.shape(tensors[0]))
    if is_new or place.axis not in axes_of(call.op.axis, len(call.shape(tensors[0]))):
        return _kept(call, place)
    if any(call.place(tensor) is None for tensor in tensors):
        raise CannotOpen("Concatenate of examples with rows that are none")
    return place._replace(outer=place.outer * len(tensors))


def _split(call: Call) -> Place:
    place, shape = _one(call)
    (axis,) = axes_of(getattr(call.op, "axis", None) or 0, len(shape))
    count = len(call.outputs)
    if axis != place.axis:
        return place
    if np.ndim(call.op.indices_or_sections) or place.outer % count:
        raise Mixes("splits the examples of a batch")
    return place._replace(outer=place.outer // count)


def _pad(call: Call) -> Place:
    place, _ = _one(call)
    if tuple(call.op.pad_width[place.axis]) != (0, 0):
        raise CannotOpen("Pad along the axis of examples")
    return place


def _take(call: Call) -> Result:
    x, indices, axis = call.inputs["x"], call.inputs["indices"], call.op.axis
    place, chosen = call.place(x), call.place(indices)
    if place is None:
        return _along(argument="indices")(call)
    if axis is None or axis % len(call.shape(x)) == place.axis:
        raise Mixes("picks examples")
    if chosen is not None:
        raise Mixes("takes from each example what every other one chooses")
    return _kept(call, place)


def _take_along_axis(call: Call) -> Place:
    place = broadcast(call)
    _crosses(place, axes_of(call.op.axis, len(call.shape(call.inputs["x"]))))
    return place


def _multi_hot(call: Call) -> Place:
    place, shape = _one(call)
    if len(shape) < 2:
        raise Mixes("takes all examples for the classes of one")
    if place.axis != 0 or call.op.axis not in (-1, len(shape) - 1):
        raise CannotOpen("MultiHot along other axes")
    return place


def _rows(rank: int | None = None) -> Rule:
    """Each row of the first argument by itself; nothing else is of examples.

    Args:
      rank: of the argument; an image of a lower one is a single one.
    """

    def rule(call: Call) -> Result:
        place, shape = _one(call)
        if place.axis != 0:
            raise Mixes("is given examples along another axis than the first")
        if rank is not None and len(shape) != rank:
            raise Mixes("takes the examples of a batch for rows of one image")
        return place

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


def _in_top_k(call: Call) -> Place:
    places = [call.place(call.inputs[name]) for name in ("targets", "predictions")]
    return same([place for place in places if place is not None])


def _segments(call: Call) -> Place:
    raise Mixes("adds up rows of different examples")


def _categorical(call: Call) -> Result:
    """A cross-entropy along an axis, which goes."""
    output, target = call.inputs["output"], call.inputs["target"]
    place, rank = broadcast(call, [output]), len(call.shape(output))
    _crosses(place, axes_of(call.op.axis, rank))
    (kept,) = _kept(call, place)
    other = call.place(target)
    if other is not None:
        same([other, place if len(call.shape(target)) == rank else kept])  # type: ignore[list-item]
    return kept


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
_ALONG = (
    "All Any Amax Amin Argmax Argmin CountNonzero Max Mean Median Min Prod Ptp Std Sum "
    "Var Nanargmax Nanargmin Nanmax Nanmean Nanmedian Nanmin Nanprod Nanstd Nansum Nanvar "
    "Logsumexp Norm Moments Quantile Percentile Nanquantile Nanpercentile Trapezoid "
    "Unstack "
    "LayerNorm RMSNorm Cumsum Cumprod Nancumsum Nancumprod Flip Sort Argsort Argpartition "
    "Diff Softmax LogSoftmax Sparsemax Normalize Glu Roll"
)
_LAST_TWO = "Tril Triu Cholesky Inv Qr SVD Pinv Det Logdet Eigh FFT2 IFFT2"
_LAST_ONE = "FFT RFFT STFT TopK ExtractSequences"
_MOVES = "BroadcastTo ExpandDims Moveaxis OneHot Squeeze Swapaxes Transpose"
_ROWS = (
    "MaxPool AdaptiveMaxPool AveragePool AdaptiveAveragePool Conv DepthwiseConv "
    "SeparableConv ConvTranspose DepthToSpace SpaceToDepth Unfold BatchNorm RGBToHSV "
    "HSVToRGB"
)
_IMAGES = (
    "RGBToGrayscale Resize ExtractPatches PadImages CropImages GaussianBlur SobelEdges "
    "AffineTransform"
)
_TABLE: dict[str, Rule] = {
    name: rule
    for names, rule in {
        _BROADCAST: broadcast,
        "FullLike OnesLike ZerosLike": lambda call: _one(call)[0],
        _ALONG: _along("axes", "axis"),
        "Diagonal Trace": _along("axis1", "axis2"),
        "Digitize": _along(),
        "SearchSorted": _along(argument="values"),
        _MOVES: _along(),
        _LAST_TWO: _last(2),
        _LAST_ONE: _last(1),
        _ROWS: _rows(),
        _IMAGES: _rows(rank=4),
        "Reshape Ravel": _reshape,
        "GetItem": _get_item,
        "Concatenate Stack": _joined,
        "Split ArraySplit": _split,
        "Tile": _tile,
        "Repeat": _repeat,
        "Pad": _pad,
        "Take": _take,
        "TakeAlongAxis": _take_along_axis,
        "Einsum": _einsum,
        "Matmul": _matmul,
        "Tensordot Dot Inner": _tensordot,
        "DotProductAttention": _attention,
        "Average": _average,
        "CategoricalCrossentropy SparseCategoricalCrossentropy": _categorical,
        "InTopK": _in_top_k,
        "MultiHot": _multi_hot,
        "SegmentSum SegmentMax SegmentMin SegmentProd": _segments,
    }.items()
    for name in names.split()
}
OPERATIONS: dict[type, Rule] = {
    getattr(module, name): rule
    for name, rule in _TABLE.items()
    for module in MODULES
    if isinstance(getattr(module, name, None), type)
    and issubclass(getattr(module, name), keras.Operation)
}
