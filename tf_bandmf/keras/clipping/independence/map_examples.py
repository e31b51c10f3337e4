"""A function of one example, executed for each example of a batch by itself."""

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tf_bandmf.keras.clipping.independence.state import NotIndependent
from tf_bandmf.keras.compat.graphs import FuncGraph, depends_on_arguments, nodes_of
from tf_bandmf.keras.compat.vectorizing import vectorized_map

# Operations that TensorFlow converts to many examples at once, each by itself. Its
# conversion of others is not believed: it numbers the places of all examples through for
# some, and an index past the end is one of the next.
VECTORIZABLE = frozenset(
    (
        # Arguments, constants and weights.
        "Const Placeholder ReadVariableOp Identity IdentityN StopGradient PreventGradient "
        "NoOp Shape ShapeN Size ZerosLike OnesLike Fill Range "
        "_EagerConst PlaceholderWithDefault "
        # Entry by entry.
        "Abs Add AddN AddV2 Atan Atan2 BiasAdd BitwiseAnd BitwiseOr BitwiseXor "
        "BroadcastArgs "
        "BroadcastTo Cast Ceil ClipByValue Cos Cosh Digamma Div DivNoNan Elu EluGrad Equal "
        "Erf Erfc Erfinv Exp Expm1 Floor FloorDiv FloorMod Greater GreaterEqual Inv "
        "IsFinite "
        "IsInf IsNan LeakyRelu LeakyReluGrad LeftShift Less LessEqual Lgamma Log Log1p "
        "LogicalAnd LogicalNot LogicalOr Maximum Minimum Mod Mul MulNoNan Neg NotEqual Pow "
        "RealDiv Reciprocal ReciprocalGrad Relu Relu6 Relu6Grad ReluGrad RightShift Round "
        "Rsqrt RsqrtGrad Select SelectV2 Selu SeluGrad Sigmoid SigmoidGrad Sign Sin Sinh "
        "Softplus Softsign SoftsignGrad Sqrt SqrtGrad Square "
        "SquaredDifference "
        "Sub Tan Tanh TanhGrad TruncateDiv Xdivy Xlogy "
        # Along axes of one example.
        "All Any ArgMax ArgMin BroadcastGradientArgs Cumprod Cumsum LogSoftmax Max Mean "
        "Min "
        "Prod Softmax Sum "
        # Shapes.
        "ConcatV2 ExpandDims Pack Pad Reshape ReverseV2 Slice Split SplitV Squeeze "
        "StridedSlice StridedSliceGrad Tile Transpose Unpack "
        # Products and images.
        "AvgPool AvgPoolGrad BatchMatMulV2 BatchMatMulV3 BatchMatMul BiasAddGrad Conv2D "
        "Conv2DBackpropFilter Conv2DBackpropInput DepthwiseConv2dNative "
        "DepthwiseConv2dNativeBackpropFilter DepthwiseConv2dNativeBackpropInput Einsum "
        "L2Loss "
        "MatMul MaxPool MaxPoolGrad MatrixBandPart SpaceToBatchND BatchToSpaceND "
        # Draws with seeds of each example's own.
        "StatelessRandomGetKeyCounter StatelessRandomGetAlg StatelessRandomUniformV2 "
        "StatelessRandomNormalV2 StatelessTruncatedNormalV2 StatelessRandomUniformIntV2 "
        # Classes.
        "OneHot SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits"
    ).split()
)


def map_each(
    function: Callable[[Any], Any],
    elements: Any,
    signature: Any,
    parallel_iterations: int | None = None,
) -> Any:
    """`tf.map_fn`, after which TensorFlow is as it was, also if the function raises.

    Where that happens in a graph, `tf.map_fn` leaves a caching device in the variable
    scope, which graphs share with the program around them: no distribution strategy could
    be entered any more in this process.

    Args:
      function: of the elements of one example.
      elements: structure of tensors [N, ...].
      signature: structure of specs of what it returns.
      parallel_iterations: as for `tf.map_fn`.

    Returns:
      Structure of tensors [N, ...].
    """
    scope = tf.compat.v1.get_variable_scope()
    before = scope.caching_device
    try:
        return tf.map_fn(
            function,
            elements,
            fn_output_signature=signature,
            parallel_iterations=parallel_iterations,
        )
    finally:
        if not tf.executing_eagerly():
            scope.set_caching_device(before)


def map_examples(
    function: Callable[[Any], list[tf.Tensor]], elements: Any, name: str
) -> list[tf.Tensor]:
    """Maps a function over examples, in a graph: of a batch it sees no other example.

    It is vectorized if TensorFlow's conversions of its operations are known; else a loop.

    Args:
      function: of nested tensors, those of one example; returns a list of tensors.
      elements: nested tensors [B, ...].
      name: what runs, for messages.

    Returns:
      Tensors [B, ...].

    Raises:
      NotIndependent: if the function reads another tensor that may be of examples.
      Exception: what the function itself raises, whenever it is called.
    """
    signature, graph = _of_one(function, elements)
    if any(depends_on_arguments(outside) for outside, _ in graph.captures):
        raise NotIndependent(
            f"{name} is executed for each example by itself, but reads a tensor of the "
            f"whole batch that it was not given"
        )
    nodes = (node for op in graph.get_operations() for node in nodes_of(op))
    if all(node.op in VECTORIZABLE for node in nodes):
        outputs = _vectorized(function, elements)
        if outputs is not None:
            return outputs
    return list(map_each(function, elements, signature, parallel_iterations=1))


def _of_one(
    function: Callable[[Any], list[tf.Tensor]], elements: Any
) -> tuple[list[tf.TensorSpec], Any]:
    """Specs of the function's results for one example, and the graph of them."""
    beside = FuncGraph("one_example")
    with beside.as_default():
        placeholders = tf.nest.map_structure(
            lambda t: tf.compat.v1.placeholder(t.dtype, t.shape[1:]), elements
        )
        results = function(placeholders)
    signature = [tf.TensorSpec(out.shape, out.dtype) for out in results]
    return signature, beside


def _vectorized(
    function: Callable[[Any], list[tf.Tensor]], elements: Any
) -> list[Any] | None:
    """Results of all examples; None if vectorizing fails.

    What the function itself raises is passed on.
    """
    raised: list[Exception] = []

    def noted(element: Any) -> list[tf.Tensor]:
        try:
            return function(element)
        except Exception as error:
            raised.append(error)
            raise

    try:
        with _silent():
            return list(vectorized_map(noted, elements))
    except Exception:
        if raised:
            raise
        return None


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Keeps the pages that TensorFlow logs of an operation that it cannot convert."""

    def is_wanted(record: logging.LogRecord) -> bool:
        return record.module != "pfor"

    log = tf.get_logger()
    log.addFilter(is_wanted)
    try:
        yield
    finally:
        log.removeFilter(is_wanted)
