"""Maps a function of one example over a batch, without mixing examples."""

import contextlib
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_bandmf.keras.clipping.tensors.errors import UnsupportedModelError
from tf_bandmf.keras.compat.graphs import depends_on_arguments, nodes_of
from tf_bandmf.keras.compat.vectorizing import vectorized_map

# Operations that TensorFlow vectorizes without mixing examples. Other operations are
# not trusted: TensorFlow vectorizes some of them by numbering the entries of all
# examples consecutively, so an index past the end of one example refers to an entry of
# the next example.
VECTORIZABLE = frozenset(
    (
        # Arguments, constants and weights.
        "Const Placeholder ReadVariableOp Identity IdentityN StopGradient "
        "PreventGradient NoOp Shape ShapeN Size ZerosLike OnesLike Fill Range "
        "_EagerConst PlaceholderWithDefault "
        # Elementwise operations.
        "Abs Add AddN AddV2 Atan Atan2 BiasAdd BitwiseAnd BitwiseOr BitwiseXor "
        "BroadcastArgs BroadcastTo Cast Ceil ClipByValue Cos Cosh Digamma Div "
        "DivNoNan Elu EluGrad Equal Erf Erfc Erfinv Exp Expm1 Floor FloorDiv FloorMod "
        "Greater GreaterEqual Inv IsFinite IsInf IsNan LeakyRelu LeakyReluGrad "
        "LeftShift Less LessEqual Lgamma Log Log1p LogicalAnd LogicalNot LogicalOr "
        "Maximum Minimum Mod Mul MulNoNan Neg NotEqual Pow RealDiv Reciprocal "
        "ReciprocalGrad Relu Relu6 Relu6Grad ReluGrad RightShift Round Rsqrt "
        "RsqrtGrad Select SelectV2 Selu SeluGrad Sigmoid SigmoidGrad Sign Sin Sinh "
        "Softplus SoftplusGrad Softsign SoftsignGrad Sqrt SqrtGrad Square "
        "SquaredDifference Sub Tan Tanh TanhGrad TruncateDiv Xdivy Xlogy "
        # Operations along axes of one example.
        "All Any ArgMax ArgMin BroadcastGradientArgs Cumprod Cumsum LogSoftmax Max "
        "Mean Min Prod Softmax Sum "
        # Operations that change shapes or rearrange entries.
        "ConcatV2 ExpandDims Pack Pad Reshape ReverseV2 Slice Split SplitV Squeeze "
        "StridedSlice StridedSliceGrad Tile Transpose Unpack "
        # Matrix products, and operations on images.
        "AvgPool AvgPoolGrad BatchMatMulV2 BatchMatMulV3 BatchMatMul BiasAddGrad "
        "Conv2D Conv2DBackpropFilter Conv2DBackpropInput DepthwiseConv2dNative "
        "DepthwiseConv2dNativeBackpropFilter DepthwiseConv2dNativeBackpropInput "
        "Einsum L2Loss MatMul MaxPool MaxPoolGrad MatrixBandPart SpaceToBatchND "
        "BatchToSpaceND "
        # Random draws, with separate seeds for each example.
        "StatelessRandomGetKeyCounter StatelessRandomGetAlg StatelessRandomUniformV2 "
        "StatelessRandomNormalV2 StatelessTruncatedNormalV2 "
        "StatelessRandomUniformIntV2 "
        # Operations on class labels.
        "OneHot SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits"
    ).split()
)


def map_examples(
    function: Callable[[Any], list[tf.Tensor]], elements: Any, name: str
) -> list[tf.Tensor]:
    """Maps a function of one example over the examples of a batch, in a graph.

    The function is vectorized if all its operations are in `VECTORIZABLE`; otherwise, it
    runs in a loop, on one example at a time.

    Args:
      function: takes the nested tensors of one example, and returns a list of tensors.
      elements: nested tensors [B, ...].
      name: name of the function, for messages.

    Returns:
      Tensors [B, ...].

    Raises:
      UnsupportedModelError: if the function reads a tensor that is not one of its
        arguments, but may depend on examples.
      Exception: any exception that the function itself raises.
    """
    specs = tf.nest.map_structure(
        lambda t: tf.TensorSpec(t.shape[1:], t.dtype), elements
    )
    of_one = tf.function(function, autograph=False).get_concrete_function(specs)
    graph = of_one.graph
    if any(depends_on_arguments(outside) for outside, _ in graph.captures):
        raise UnsupportedModelError(
            f"{name} runs on one example at a time, but reads a tensor of the whole batch "
            f"that is not one of its arguments. Pass that tensor as an argument."
        )
    nodes = (node for op in graph.get_operations() for node in nodes_of(op))
    if all(node.op in VECTORIZABLE for node in nodes):
        # Some operations in `VECTORIZABLE` have arguments that prevent vectorization.
        with contextlib.suppress(Exception):
            return list(vectorized_map(function, elements))
    # The function was traced above, outside of a loop, so any error of its own was
    # raised there. If it were raised in this loop, TensorFlow would leave a caching
    # device in the variable scope, and no distribution strategy could be entered any
    # more.
    signature = [tf.TensorSpec(out.shape, out.dtype) for out in graph.outputs]
    return list(
        tf.map_fn(
            function, elements, fn_output_signature=signature, parallel_iterations=1
        )
    )
