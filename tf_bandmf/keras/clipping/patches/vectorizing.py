"""`tf.vectorized_map` in graphs that XLA compiles.

There TensorFlow puts the vectorized loop into a function of its own. Its gradient gets
shapes from that function, XLA must know shapes when it compiles, and takes all inputs of
the function for constants then: it would compile for every batch anew. So the loop is made
in the graph itself, as outside of XLA.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.ops.parallel_for import control_flow_ops, pfor

_LOCK = threading.RLock()
# Operations that TensorFlow's conversion makes, or leaves, of which each computes a row
# of its outputs from the same row of its inputs: those that add up, pick or compare
# within an example. Not in it are sparse products, scatters and partitions, which number
# the places of all examples through: an index past the end is one of the next example.
# TensorFlow's sums over segments do that, too; they are converted here.
CONVERTED = frozenset(
    """
    Abs AccumulateNV2 AddN AddV2 All Any ArgMax ArgMin AvgPool AvgPoolGrad BatchMatMul
    BatchMatMulV2 BatchMatMulV3 BiasAdd BiasAddGrad Bitcast BitwiseAnd BitwiseOr
    BitwiseXor BroadcastArgs BroadcastGradientArgs BroadcastTo Cast Ceil Cholesky
    ClipByValue ConcatOffset ConcatV2 Const Conv2D Conv2DBackpropFilter
    Conv2DBackpropInput Conv3D Cos Cumprod Cumsum DepthwiseConv2dNative
    DepthwiseConv2dNativeBackpropFilter DepthwiseConv2dNativeBackpropInput Digamma
    DivNoNan Einsum Elu EluGrad EmptyTensorList EnsureShape Equal Erf Erfc Exp
    ExpandDims Expm1 Fill Floor FloorDiv FloorMod FusedBatchNormGradV3 FusedBatchNormV3
    GatherV2 Greater GreaterEqual Identity IdentityN If InvGrad InvertPermutation
    IsFinite IsInf IsNan L2Loss LeakyRelu LeakyReluGrad LeftShift Less LessEqual Lgamma
    LinSpace Log Log1p LogSoftmax LogicalAnd LogicalNot LogicalOr MatMul MatrixBandPart
    MatrixDiagPartV3 MatrixDiagV3 MatrixInverse MatrixSetDiagV3 Max MaxPool MaxPoolGrad
    Maximum Mean Min Minimum MirrorPad Mul MulNoNan Neg NoOp NotEqual OneHot OnesLike
    Pack Pad PadV2 PartitionedCall Placeholder PlaceholderWithDefault Pow
    PreventGradient Prod Range Rank ReadVariableOp RealDiv Reciprocal ReciprocalGrad
    Relu Relu6 Relu6Grad ReluGrad Reshape ReverseV2 RightShift Rint Roll Round Rsqrt
    RsqrtGrad Select SelectV2 Selu SeluGrad Shape ShapeN Sigmoid SigmoidGrad Sign Sin
    Size Slice Softmax SoftmaxCrossEntropyWithLogits Softplus SoftplusGrad Softsign
    SoftsignGrad SparseSoftmaxCrossEntropyWithLogits Split SplitV Sqrt SqrtGrad Square
    SquaredDifference Squeeze StatefulPartitionedCall StatelessIf
    StatelessRandomGetKeyCounter StatelessRandomNormalV2 StatelessRandomUniformIntV2
    StatelessRandomUniformV2 StatelessTruncatedNormalV2 StatelessWhile StopGradient
    StridedSlice StridedSliceGrad Sub Sum Tan Tanh TanhGrad TensorListFromTensor
    TensorListGetItem TensorListReserve TensorListSetItem TensorListStack Tile TopKV2
    Transpose Unpack UnsortedSegmentMax UnsortedSegmentMin UnsortedSegmentProd
    UnsortedSegmentSum VarHandleOp While Xdivy Xlog1py Xlogy ZerosLike
    """.split()
)


def vectorized_map(function: Callable[[Any], Any], elements: Any) -> Any:
    """As `tf.vectorized_map`; see the module."""
    with _in_place():
        return tf.vectorized_map(function, elements)


@contextlib.contextmanager
def _in_place() -> Iterator[None]:
    if tf.executing_eagerly():
        yield
        return
    with _LOCK:
        original = control_flow_ops._is_under_xla_context
        control_flow_ops._is_under_xla_context = lambda: False
        converters = pfor._pfor_converter_registry
        before = {name: converters[name] for name in _SEGMENTS}
        for name, function in _SEGMENTS.items():
            converters[name] = _segments(function)
        try:
            yield
        finally:
            control_flow_ops._is_under_xla_context = original
            converters.update(before)


_SEGMENTS = {
    "UnsortedSegmentSum": tf.math.unsorted_segment_sum,
    "UnsortedSegmentMax": tf.math.unsorted_segment_max,
    "UnsortedSegmentMin": tf.math.unsorted_segment_min,
    "UnsortedSegmentProd": tf.math.unsorted_segment_prod,
}


def _segments(function: Callable[..., tf.Tensor]) -> Callable[[Any], Any]:
    """A converter of a sum over segments whose examples keep theirs apart.

    A number that is no segment's is dropped, as on GPUs.
    """

    def convert(pfor_input: Any) -> Any:
        pfor_input.stack_inputs([0, 1])
        data = pfor_input.stacked_input(0)
        segments = tf.cast(pfor_input.stacked_input(1), tf.int64)
        count = tf.cast(pfor_input.unstacked_input(2), tf.int64)
        shape = tf.shape(segments, out_type=tf.int64)
        first = count * tf.range(shape[0])
        first = tf.reshape(first, tf.concat([shape[:1], tf.ones_like(shape)[1:]], 0))
        exists = (segments >= 0) & (segments < count)
        number = tf.where(exists, segments + first, tf.constant(-1, tf.int64))
        total = count * shape[0]
        # Seen from the graph, too: see `tf_bandmf.graphs.bounds`.
        number = tf.where(number < total, number, tf.constant(-1, tf.int64))
        found = function(data, number, total)
        entry = tf.shape(found, out_type=tf.int64)[1:]
        found = tf.reshape(found, tf.concat([[shape[0], count], entry], 0))
        return pfor.wrap(found, True)

    return convert
