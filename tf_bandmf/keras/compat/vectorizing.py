"""`tf.vectorized_map` in graphs that XLA compiles.

There TensorFlow puts the vectorized loop into a function of its own. Its gradient gets
shapes from that function, XLA must know shapes when it compiles, and takes all inputs of
the function for constants then: it would compile for every batch anew. So the loop is made
in the graph itself, as outside of XLA.

What tells that it broke: `tests/keras/clipping/tensors` and the cases under XLA of
`tests/keras/model/test_training.py`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import gen_math_ops
from tensorflow.python.ops.parallel_for import control_flow_ops, pfor

from tf_bandmf.keras.compat.patching import patched

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
    with contextlib.ExitStack() as stack:
        stack.enter_context(
            patched(control_flow_ops, "_is_under_xla_context", lambda original: False)
        )
        for name, function in _SEGMENTS.items():
            converter = _segments(function)
            stack.enter_context(patched(pfor._pfor_converter_registry, name, converter))
        yield


_SEGMENTS = {
    "UnsortedSegmentSum": tf.math.unsorted_segment_sum,
    "UnsortedSegmentMax": tf.math.unsorted_segment_max,
    "UnsortedSegmentMin": tf.math.unsorted_segment_min,
    "UnsortedSegmentProd": tf.math.unsorted_segment_prod,
}


def _segments(function: Callable[..., tf.Tensor]) -> Callable[[Any, Any], Any]:
    """A converter of a sum over segments whose examples keep theirs apart.

    A number that is no segment's is dropped, as on GPUs.
    """

    def convert(original: Any, pfor_input: Any) -> Any:
        del original
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


@contextlib.contextmanager
def without_broadcasting_products() -> Iterator[None]:
    """Repeats operands of batched matrix products instead of broadcasting them.

    On CPUs TensorFlow 2.21 (oneDNN) writes out of bounds in the product of [B, 1, M, K]
    with a broadcast [1, 1, K, N], which is what vectorizing makes of an example's
    activations times a kernel: it crashes, or returns wrong numbers.
    """
    with contextlib.ExitStack() as stack:
        for name in ("batch_mat_mul", "batch_mat_mul_v2", "batch_mat_mul_v3"):
            stack.enter_context(patched(gen_math_ops, name, _repeated))
        yield


def _repeated(
    product: Callable[..., tf.Tensor],
    x: tf.Tensor,
    y: tf.Tensor,
    *args: Any,
    **kwargs: Any,
) -> tf.Tensor:
    first, second = x.shape[:-2], y.shape[:-2]
    if not (first.is_fully_defined() and first == second):
        batch = tf.broadcast_dynamic_shape(tf.shape(x)[:-2], tf.shape(y)[:-2])
        x, y = (
            tf.broadcast_to(t, tf.concat([batch, tf.shape(t)[-2:]], axis=0))
            for t in (x, y)
        )
    return product(x, y, *args, **kwargs)
