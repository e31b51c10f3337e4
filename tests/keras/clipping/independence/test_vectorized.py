# ruff: noqa: E501
"""Tests that operations are vectorized without a change of results, or run in a loop."""

import numpy as np
import pytest
import tensorflow as tf

from tf_bandmf.keras.clipping.independence import map_examples as mapping

R = tf.raw_ops
KERNEL = tf.constant(np.random.default_rng(1).normal(size=(2, 2, 1, 2)), tf.float32)
MATRIX = tf.constant(np.random.default_rng(2).normal(size=(4, 2)), tf.float32)
WEIGHT = tf.Variable(MATRIX)
ENTRY = (
    "Abs Atan Ceil Cos Cosh Digamma Elu Erf Erfc Erfinv Exp Expm1 Floor Inv IsFinite IsInf "
    "IsNan LeakyRelu Lgamma Log Log1p Neg Reciprocal Relu Relu6 Round Rsqrt Selu Sigmoid "
    "Sign Sin Sinh Softplus Softsign Sqrt Square Tan Tanh"
).split()
PAIR = (
    "Add AddV2 Atan2 Div DivNoNan Equal FloorDiv FloorMod Greater GreaterEqual Less "
    "LessEqual Maximum Minimum Mod Mul MulNoNan NotEqual Pow RealDiv SquaredDifference Sub "
    "TruncateDiv Xdivy Xlogy"
).split()
OF_GRADIENTS = (
    "Elu LeakyRelu Relu Relu6 Selu Softplus Softsign Sigmoid Tanh Sqrt Rsqrt Reciprocal"
).split()
REDUCE = "Max Mean Min Prod Sum".split()


def gradient(function):
    """Returns a function that computes the gradient of the sum of function(x)²."""

    def call(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            value = tf.reduce_sum(tf.square(function(x)))
        return tape.gradient(value, x)

    return call


def unary(name, x):
    operation = getattr(R, name)
    names = [n for n in ("x", "features", "input") if n in operation.__doc__]
    for argument in names:
        try:
            return operation(**{argument: x})
        except TypeError:
            continue
    raise AssertionError(name)


def binary(name, x, y):
    return getattr(R, name)(x=x, y=y)


def whole(x):
    return tf.cast(
        tf.clip_by_value(tf.where(tf.math.is_finite(x), x, 0.0), -9, 9), tf.int32
    )


def image(x):
    return tf.reshape(x, [1, 3, 4, 1])


def seed(x):
    return tf.stack([whole(x)[0, 0], 7])


CASES = {
    **{n: (lambda x, n=n: unary(n, x)) for n in ENTRY},
    **{n: (lambda x, n=n: binary(n, x, x[:1] * 2 + 0.5)) for n in PAIR},
    **{f"{n}, gradient": gradient(lambda x, n=n: unary(n, x)) for n in OF_GRADIENTS},
    # These gradient operations are called directly, because versions of TensorFlow
    # differ in the operations that they use for a gradient.
    "SoftplusGrad": lambda x: R.SoftplusGrad(gradients=x * 2, features=x),
    "EluGrad": lambda x: R.EluGrad(gradients=x * 2, outputs=x) + R.SeluGrad(gradients=x, outputs=x),
    **{n: (lambda x, n=n: getattr(R, n)(input=x, axis=[1])) for n in REDUCE},
    **{f"{n} kept": (lambda x, n=n: getattr(R, n)(input=x, axis=0, keep_dims=True)) for n in REDUCE},
    "bits": lambda x: tf.stack(
        [
            tf.bitwise.bitwise_and(whole(x), 3),
            tf.bitwise.bitwise_or(whole(x), 3),
            tf.bitwise.bitwise_xor(whole(x), 3),
            tf.bitwise.left_shift(whole(x), 1),
            tf.bitwise.right_shift(whole(x), 1),
        ]
    ),
    "logic": lambda x: R.LogicalOr(x=R.LogicalAnd(x=x > 0, y=x < 1), y=R.LogicalNot(x=tf.math.is_finite(x))),
    "all": lambda x: tf.stack([tf.reduce_all(x > 0, 1), tf.reduce_any(x > 0, 1)]),
    "choice": lambda x: R.Select(condition=x > 0, x=x, y=-x) + tf.where(x[:1] > 0, x, 1.0),
    "clip": lambda x: R.ClipByValue(t=x, clip_value_min=-1.0, clip_value_max=1.0),
    "sums": lambda x: R.AddN(inputs=[x, x, x]) + R.BiasAdd(value=x, bias=tf.ones([4])),
    "bias gradient": lambda x: R.BiasAddGrad(out_backprop=x),
    "broadcast": lambda x: tf.broadcast_to(x[:1], R.BroadcastArgs(s0=tf.shape(x), s1=[2, 1, 1])),
    "broadcast gradient": gradient(lambda x: x[:1] * x),
    "numbers": lambda x: tf.cast(tf.range(tf.size(x)), x.dtype) + tf.cast(tf.rank(x), x.dtype),
    "fill": lambda x: tf.fill(tf.shape(x), 2.0) + tf.ones_like(x) + tf.zeros_like(x),
    "shapes": lambda x: tf.stack(R.ShapeN(input=[x, x[0]])[0]),
    "copies": lambda x: R.IdentityN(input=[tf.stop_gradient(x)])[0] + R.PreventGradient(input=x),
    "identity": lambda x: tf.identity(x),
    "argmax": lambda x: tf.stack([tf.argmax(x, 1), tf.argmin(x, 1)]),
    "cumulative": lambda x: tf.cumsum(x, 0) + tf.math.cumprod(x, 1, reverse=True),
    "softmax": lambda x: tf.nn.softmax(x) + tf.nn.log_softmax(x),
    "concat": lambda x: tf.concat([x, x[::-1]], 0),
    "pack": lambda x: tf.stack(tf.unstack(x, axis=1)),
    "pad": lambda x: tf.pad(x, [[0, 1], [2, 0]]),
    "reverse": lambda x: tf.reverse(x, [1]),
    "slice": lambda x: tf.slice(x, [1, 0], [2, 3]),
    "split": lambda x: tf.split(x, 2, 1)[1] + tf.split(x, [1, 2, 1], 1)[1],
    "squeeze": lambda x: tf.squeeze(tf.expand_dims(x, 0)),
    "squeeze of one": lambda x: tf.squeeze(x[:1]),
    "strided gradient": gradient(lambda x: x[1:, ::2]),
    "tile": lambda x: tf.tile(x, [2, 1]),
    "transpose": lambda x: tf.transpose(x),
    "matmul": lambda x: x @ MATRIX + x @ tf.convert_to_tensor(WEIGHT),
    "batch matmul": lambda x: R.BatchMatMul(x=x[None], y=tf.stack([MATRIX])),
    "batch matmul 2": lambda x: R.BatchMatMulV2(x=x[None], y=MATRIX[None]),
    "batch matmul 3": lambda x: R.BatchMatMulV3(x=x[None], y=MATRIX[None], Tout=tf.float32),
    "einsum": lambda x: tf.einsum("td,de->et", x, MATRIX),
    "band": lambda x: tf.linalg.band_part(x, 1, 0),
    "norm": lambda x: R.L2Loss(t=x),
    "conv": lambda x: tf.nn.conv2d(image(x), KERNEL, 1, "SAME"),
    "conv, gradient": gradient(lambda x: tf.nn.conv2d(image(x), KERNEL, 2, "VALID")),
    "conv, kernel": lambda x: R.Conv2DBackpropFilter(
        input=image(x), filter_sizes=[2, 2, 1, 1], out_backprop=image(x), strides=[1] * 4, padding="SAME"
    ),
    "depthwise": lambda x: tf.nn.depthwise_conv2d(image(x), KERNEL, [1] * 4, "SAME"),
    "dilated, gradient": gradient(
        lambda x: tf.nn.depthwise_conv2d(image(x), KERNEL, [1] * 4, "SAME", dilations=[2, 2])
    ),
    "depthwise, gradient": gradient(lambda x: tf.nn.depthwise_conv2d(image(x), KERNEL, [1] * 4, "SAME")),
    "depthwise, kernel": lambda x: R.DepthwiseConv2dNativeBackpropFilter(
        input=image(x), filter_sizes=[2, 2, 1, 1], out_backprop=image(x), strides=[1] * 4, padding="SAME"
    ),
    "average pool": gradient(lambda x: tf.nn.avg_pool2d(image(x), 2, 1, "SAME")),
    "max pool": gradient(lambda x: tf.nn.max_pool2d(image(x), 2, 1, "VALID")),
    "one hot": lambda x: tf.one_hot(whole(x), 5),
    "cross-entropy": lambda x: tf.nn.softmax_cross_entropy_with_logits(tf.nn.softmax(-x), x),
    "sparse cross-entropy": lambda x: tf.nn.sparse_softmax_cross_entropy_with_logits(
        tf.abs(whole(x))[:, 0] % 4, x
    ),
    "uniform": lambda x: tf.random.stateless_uniform([3], seed(x)),
    "normal": lambda x: tf.random.stateless_normal([3], seed(x)),
    "truncated": lambda x: tf.random.stateless_truncated_normal([3], seed(x)),
    "key": lambda x: R.StatelessRandomUniformV2(
        shape=[3], key=[1], counter=tf.cast(tf.stack([seed(x)[0], 0]), tf.uint64), alg=R.StatelessRandomGetAlg()
    ),
    "integers": lambda x: tf.random.stateless_uniform([3], seed(x), 0, 9, tf.int32),
}  # fmt: skip


def examples():
    x = np.random.default_rng(0).normal(size=(6, 3, 4)).astype("f4")
    x[1], x[3], x[4] = 0.0, np.nan, 1e20
    return tf.constant(x)


# Cases that are also traced with input axes of unknown size.
DYNAMIC = [
    *(f"{n}{kept}" for n in REDUCE for kept in ("", " kept")),
    *(
        n
        for n in CASES
        if n.startswith(("fill", "numbers", "shapes", "broadcast", "soft"))
    ),
    *("Mul", "concat", "tile", "transpose", "strided gradient", "reverse", "slice"),
]


@pytest.mark.parametrize(
    ("name", "size"), [*((n, 3) for n in CASES), *((n, None) for n in DYNAMIC)]
)
@pytest.mark.invariant(16)
def test_an_operation_is_vectorized_as_a_loop_would_do_it(name, size, monkeypatch):
    function = CASES[name]

    def no_loop(*args, **kwargs):
        raise AssertionError("a loop")

    monkeypatch.setattr(tf, "map_fn", no_loop)

    @tf.function(
        autograph=False, input_signature=[tf.TensorSpec([None, size, size and 4])]
    )
    def mapped(x):
        return mapping.map_examples(lambda row: [function(row)], x, name)[0]

    x = examples()
    expected = np.stack([function(row).numpy() for row in x])
    np.testing.assert_allclose(mapped(x).numpy(), expected, rtol=2e-5, atol=1e-6)


def test_each_operation_of_the_list_was_tried():
    seen = set()
    for names, size in ((CASES, 3), (DYNAMIC, None)):
        for name in names:
            of_one = tf.function(CASES[name], autograph=False)
            concrete = of_one.get_concrete_function(tf.TensorSpec([size, size and 4]))
            seen |= {op.type for op in concrete.graph.get_operations()}
    assert sorted(mapping.VECTORIZABLE - seen) == UNTRIED


UNTRIED = ["PlaceholderWithDefault", "_EagerConst"]


@pytest.mark.attack(
    "Vectorized sums over segments",
    tried="Sums segments with a segment number past the end. TensorFlow's "
    "vectorization would add to a segment of the next example, so the operation is not "
    "vectorized: it runs in a loop, which refuses the number.",
    area="inputs",
)
@pytest.mark.invariant(16)
@pytest.mark.on_cpu
def test_a_conversion_is_not_believed():
    def sums(example):
        values, numbers = example
        return [R.UnsortedSegmentSum(data=values, segment_ids=numbers, num_segments=2)]

    @tf.function(autograph=False)
    def of_all(values, numbers):
        return mapping.map_examples(sums, (values, numbers), "sums")[0]

    values = tf.constant([[100.0, 1.0], [2.0, 3.0]])
    assert of_all(values, tf.constant([[0, 1], [0, 1]])).shape == (2, 2)
    with pytest.raises(tf.errors.InvalidArgumentError, match="map/while"):
        of_all(values, tf.constant([[2, 1], [0, 1]]))
