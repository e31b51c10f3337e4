"""Operations that TensorFlow converts to many examples at once, each by itself.

Its conversion of others is not believed: it numbers the places of all examples through for
some, and an index past the end is one of the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tf_bandmf.keras.compat.graphs import nodes_of

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
        "MatMul MaxPool MaxPoolGrad MatrixBandPart "
        # Draws with seeds of each example's own.
        "StatelessRandomGetKeyCounter StatelessRandomGetAlg StatelessRandomUniformV2 "
        "StatelessRandomNormalV2 StatelessTruncatedNormalV2 StatelessRandomUniformIntV2 "
        # Classes.
        "OneHot SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits"
    ).split()
)


def may_vectorize(operations: Sequence[Any]) -> bool:
    """Whether each operation of a graph of one example stands in the list."""
    return all(node.op in VECTORIZABLE for op in operations for node in nodes_of(op))
