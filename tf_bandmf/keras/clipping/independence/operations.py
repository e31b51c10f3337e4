"""The table of Keras operations: where each operation puts the axis of examples.

An operation is recognized by its exact class. Its rule gets the operation with its
attributes, arguments and results, and returns the axis of examples in each result (a
`Place`). The rule raises `Mixes` if a result combines examples, and `CannotOpen` if the
axis of examples cannot be determined.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from opt_einsum.parser import parse_einsum_input

from tf_bandmf.keras.clipping.independence.places import (
    CannotOpen,
    Mixes,
    Place,
    same,
)
from tf_bandmf.keras.compat.keras_operations import MODULES, KerasTensor


@dataclasses.dataclass
class Call:
    """A call of an operation on symbolic tensors.

    Attributes:
      op: the operation with its attributes.
      args: the positional arguments.
      kwargs: the keyword arguments.
      tensors: the tensors among all arguments.
      size: the batch size.
      place: function that returns the axis of examples in a tensor; it returns None if
        the tensor is the same for all examples.
    """

    op: Any
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    tensors: Sequence[Any]
    size: int
    place: Callable[[Any], Place | None]

    @functools.cached_property
    def specs(self) -> Any:
        """The shape and dtype of each result, nested as the operation returns them."""
        return self.op.compute_output_spec(*self.args, **self.kwargs)

    @property
    def outputs(self) -> list[Any]:
        """The shape and dtype of each result, as a flat list."""
        return keras.tree.flatten(self.specs)


def tensors_of(structure: Any) -> list[Any]:
    """Returns all tensors (symbolic or not) and arrays in a nested structure."""
    leaves = keras.tree.flatten(structure)
    return [leaf for leaf in leaves if isinstance(leaf, KerasTensor) or is_array(leaf)]


def is_array(value: Any) -> bool:
    """Returns True for NumPy arrays, TensorFlow tensors and Keras variables."""
    return isinstance(value, (np.ndarray, keras.Variable)) or tf.is_tensor(value)


Rule = Callable[[Call], list[Place]]
Axes = Callable[[Any, int], Collection[int]]


def _told(op: Any, rank: int) -> Collection[int]:
    """Returns the axes along which an operation works, from its attributes.

    If an attribute is None, the operation works along all axes.
    """
    names = [n for n in ("axes", "axis", "axis1", "axis2") if hasattr(op, n)]
    if not names:
        raise CannotOpen(f"{type(op).__name__} has no attribute for axes.")
    told = [getattr(op, name) for name in names]
    chosen = [range(rank) if axis is None else np.atleast_1d(axis) for axis in told]
    return {int(one) % rank if rank else 0 for axes in chosen for one in axes}


def _padded(op: Any, rank: int) -> Collection[int]:
    """Returns the axes that `Pad` lengthens.

    If `pad_width` contains only one pair, the pair applies to all axes.
    """
    return {axis for axis, pair in enumerate([*op.pad_width] * rank) if any(pair)}


def _within(least: int) -> Axes:
    """Returns a function that returns all axes except the first, which is the batch axis.

    For tensors of a rank below `least`, it returns all axes.
    """
    return lambda op, rank: range(1 if rank >= least else 0, rank)


def _kept(call: Call, place: Place) -> list[Place]:
    """Returns, for each result, the only axis whose length fits the examples.

    A length fits if it is unknown, or equal to the batch size times `place.inner`.

    Raises:
      Mixes: if a result has no such axis, or several.
    """
    length = call.size * place.inner
    places = []
    for tensor in call.outputs:
        axes = [axis for axis, n in enumerate(tensor.shape) if n in (None, length)]
        if len(axes) != 1:
            raise Mixes("returns a tensor whose batch axis cannot be identified")
        places.append(place._replace(axis=axes[0]))
    return places


def _apart(crossed: Axes | None = None, several: bool = False) -> Rule:
    """Returns a rule for operations that mix entries only along some axes.

    Args:
      crossed: function that returns the axes along which an operation mixes entries,
        given the operation and a rank; None if no entries are mixed.
      several: True if several arguments may contain examples, and are broadcast against
        each other; False if only the first argument may contain examples.
    """

    def rule(call: Call) -> list[Place]:
        given = [(at, t) for t in call.tensors if (at := call.place(t)) is not None]
        if not several and [id(t) for _, t in given] != [id(call.args[0])]:
            raise CannotOpen(f"{type(call.op).__name__} has several batched arguments.")
        rank = max(len(t.shape) for t in (call.tensors if several else call.args[:1]))
        place = same(
            [at._replace(axis=at.axis + rank - len(t.shape)) for at, t in given]
        )
        if crossed is not None and place.axis in crossed(call.op, rank):
            raise Mixes("works along the batch axis")
        return _kept(call, place)

    return rule


ENTRY_BY_ENTRY = _apart(several=True)
_ALONG = _apart(_told)


def _arranged(arrange: Callable[..., Any]) -> Rule:
    """Returns a rule for operations that rearrange or repeat entries.

    The rule also sets the shape of the result, which Keras does not always know.

    Args:
      arrange: function that performs the operation on a NumPy array. Its arguments are
        the array, the operation, and the operation's other arguments. The array has the
        shape of the operation's first argument, and each of its entries is the number
        of the example to which it belongs.
    """

    def rule(call: Call) -> list[Place]:
        x, *others = call.args
        place = call.place(x)
        if place is None:
            raise CannotOpen("An index depends on the example.")
        shape = [call.size * place.inner if n is None else n for n in x.shape]
        numbers = np.broadcast_to(_numbers(place, len(shape), call.size), shape)
        result = arrange(numbers, call.op, *others)
        if not result.size:
            raise CannotOpen("The result is empty.")
        # Along axes with stride 0, all entries are the same, so one is enough.
        entries = result[tuple(slice(None if step else 1) for step in result.strides)]
        for axis, length in enumerate(entries.shape):
            kept = Place(axis, length // call.size)
            if kept.inner * call.size == length:
                expected = _numbers(kept, entries.ndim, call.size)
                if np.all(entries == expected):
                    call.specs = KerasTensor(result.shape, x.dtype)
                    return [kept]
        raise Mixes(
            f"drops or rearranges examples when it turns the shape {shape} into "
            f"{list(result.shape)}"
        )

    return rule


def _numbers(place: Place, rank: int, size: int) -> Any:
    """Returns an array with the number of the example to which each row belongs.

    The rows are along the axis `place.axis`; all other axes have length 1.
    """
    numbers = np.repeat(np.arange(size, dtype=np.uint8), place.inner)
    return numbers.reshape([-1 if axis == place.axis else 1 for axis in range(rank)])


def _take(call: Call) -> list[Place]:
    x, indices = call.args
    place = call.place(indices)
    if place is None:
        return _ALONG(call)
    if call.place(x) is not None:
        raise CannotOpen("Only one argument of Take may be batched.")
    return _kept(call, place)


def _contracted(call: Call, subscripts: str) -> list[Place]:
    """Returns the axis of examples in the result of an einsum."""
    operands = call.args
    inputs, output, _ = parse_einsum_input((subscripts, *operands))
    places = set()
    for tensor, part in zip(operands, inputs.split(","), strict=True):
        place = call.place(tensor)
        if place is not None:
            letter = part[place.axis]
            places.add((letter, place.inner))
            if part.count(letter) > 1:
                raise Mixes("takes a diagonal along the batch axis")
    (letter, inner), *others = places
    if others:
        raise Mixes("multiplies each example by every other one")
    if letter not in output:
        raise Mixes("sums over the batch axis")
    return [Place(output.index(letter), inner)]


def _matmul(call: Call) -> list[Place]:
    rows, columns = (len(x.shape) > 1 for x in call.args)
    left, right = "...mk" if rows else "k", "...kn" if columns else "k"
    return _contracted(call, f"{left},{right}->...{'m' * rows}{'n' * columns}")


def _dot(call: Call) -> list[Place]:
    """Applies the rule of `Matmul` to matrix products by `Dot` and `Tensordot`."""
    if len(call.args[1].shape) > 2 or getattr(call.op, "axes", 1) != 1:
        raise CannotOpen(f"{type(call.op).__name__} is not a matrix product.")
    return _matmul(call)


_TABLE: list[tuple[Rule, str]] = [
    (
        ENTRY_BY_ENTRY,
        "Absolute Fabs Add Angle Arccos Arccosh Arcsin Arcsinh Arctan Arctan2 Arctanh "
        "Array Heaviside BitwiseAnd BitwiseInvert BitwiseNot BitwiseOr BitwiseXor "
        "LeftShift RightShift Cbrt Ceil Clip Conjugate "
        "Copy Cos Cosh Deg2rad Rad2deg Equal Exp Exp2 Expm1 Floor Gcd Greater "
        "GreaterEqual Hypot Imag I0 Isclose Isfinite Isinf Isnan Isneginf Isposinf Isreal "
        "Lcm Less LessEqual Log Log10 Log1p Log2 Logaddexp Logaddexp2 LogicalAnd "
        "LogicalNot LogicalOr Maximum Fmax Minimum Fmin Mod Fmod NanToNum NotEqual Real "
        "Reciprocal Round Sign Signbit Sin Sinc Sinh Tan Tanh Trunc Where Subtract "
        "Multiply Divide DivideNoNan TrueDivide Power Negative Nextafter Square Sqrt "
        "FloorDivide LogicalXor Relu Relu6 Sigmoid SparseSigmoid Softplus Softsign "
        "SoftShrink SparsePlus Silu Squareplus LogSigmoid LeakyRelu HardSigmoid HardSilu "
        "Elu Selu Gelu Celu TanhShrink HardTanh HardShrink Threshold BinaryCrossentropy "
        "Polar StopGradient Cast ReLU SaturateCast ConvertToTensor Rsqrt Erf Erfc Erfinv "
        "Identity",
    ),
    (
        _ALONG,
        "All Any Amax Amin Argmax Argmin Average CountNonzero Max Mean Median Min Prod Ptp "
        "Std Sum Var Nanargmax Nanargmin Nanmax Nanmean Nanmedian Nanmin Nanprod Nanstd "
        "Nansum Nanvar Logsumexp Norm Moments Quantile Percentile Nanquantile "
        "Nanpercentile Trapezoid Unstack LayerNorm RMSNorm Cumsum Cumprod Nancumsum "
        "Nancumprod Flip Sort Argsort Argpartition Diff Softmax LogSoftmax Sparsemax "
        "Normalize Glu Roll Diagonal Trace Split ArraySplit Repeat BatchNorm",
    ),
    (_apart(_told, several=True), "TakeAlongAxis Concatenate"),
    (_apart(several=True), "Stack"),
    (
        _apart(),
        "BroadcastTo Digitize ExpandDims FullLike Moveaxis OneHot OnesLike Squeeze "
        "Swapaxes Transpose ZerosLike",
    ),
    (_apart(_padded), "Pad"),
    (
        _apart(_within(3), several=True),
        "Tril Triu Cholesky Inv Qr SVD Pinv Det Logdet Eigh FFT2 IFFT2",
    ),
    (_apart(_within(2), several=True), "FFT RFFT STFT TopK ExtractSequences"),
    (
        _apart(_within(3)),
        "MaxPool AveragePool Conv DepthwiseConv "
        "SeparableConv ConvTranspose DepthToSpace SpaceToDepth Unfold",
    ),
    (
        _apart(_within(4)),
        "RGBToGrayscale RGBToHSV HSVToRGB Resize ExtractPatches PadImages CropImages "
        "GaussianBlur SobelEdges AffineTransform",
    ),
    (_apart(_within(4), several=True), "DotProductAttention"),
    (_take, "Take"),
    (lambda call: _contracted(call, call.op.subscripts), "Einsum"),
    (_matmul, "Matmul"),
    (_dot, "Dot Tensordot"),
    (_arranged(lambda array, op, key: array[key]), "GetItem"),
    (_arranged(lambda array, op: array.reshape(op.newshape)), "Reshape"),
    (_arranged(lambda array, op: np.ravel(array)), "Ravel"),
    (_arranged(lambda array, op: np.tile(array, op.repeats)), "Tile"),
]


def _classes(names: str) -> list[type]:
    kinds = (getattr(m, name, None) for name in names.split() for m in MODULES)
    return [k for k in kinds if isinstance(k, type) and issubclass(k, keras.Operation)]


OPERATIONS: dict[type, Rule] = {
    kind: rule for rule, names in _TABLE for kind in _classes(names)
}
