"""What is vectorized is analysed as vectorized: TensorFlow's conversion is not believed."""

import itertools

import independence_cases as cases
import keras
import pytest
import tensorflow as tf

from tf_bandmf.keras.clipping import UnsupportedModelError
from tf_bandmf.keras.clipping.independence import map_examples
from tf_bandmf.keras.clipping.independence.constants import constant_value
from tf_bandmf.keras.compat import vectorizing

LENGTH, WIDTH = cases.LENGTH, cases.WIDTH


def change(monkeypatch, believed):
    """What the first example changes in others, by TensorFlow's own conversion."""
    monkeypatch.setattr(vectorizing, "_SEGMENTS", {})
    if believed:
        monkeypatch.setattr(map_examples, "rows_stay_apart", lambda *args: True)

    def sums(example):
        values, numbers = example
        found = tf.raw_ops.UnsortedSegmentSum(
            data=values, segment_ids=numbers, num_segments=2
        )
        return [found]

    @tf.function(autograph=False)
    def of_first(number):
        values = tf.constant([[100.0, 1.0], [2.0, 3.0]])
        numbers = tf.constant([[number, 1], [0, 1]])
        return map_examples.map_examples(sums, (values, numbers), "sums")[0]

    return float(tf.reduce_max(tf.abs(of_first(2) - of_first(0))[1]))


@pytest.mark.attack(
    "Vectorized sums over segments",
    tried="TensorFlow's own conversion, in which a number past the end is a segment of "
    "the next example: the vectorized graph is not shown to keep rows apart, and a loop "
    "takes its place, in which the number is refused.",
    area="inputs",
    invariants=[16],
)
@pytest.mark.invariant(16)
@pytest.mark.on_cpu
def test_a_conversion_is_not_believed(monkeypatch):
    with pytest.raises(tf.errors.InvalidArgumentError, match="map/while"):
        change(monkeypatch, believed=False)


@pytest.mark.invariant(18)
def test_a_segment_past_the_end_is_refused_before_the_step():
    def sums(x):
        numbers = tf.where(x[0, :, 0] > 0, 2, 0)
        found = tf.raw_ops.UnsortedSegmentSum(
            data=x[0], segment_ids=numbers, num_segments=2
        )
        return x + tf.reduce_sum(found, axis=0)

    with pytest.raises(UnsupportedModelError, match="UnsortedSegmentSum"):
        cases.largest_change(cases.model_with(cases.Weighted(sums)))


def test_the_measure_sees_a_conversion_that_mixes(monkeypatch):
    assert change(monkeypatch, believed=True) > 1


@pytest.mark.slow_cases("pool", "norm", "concat")
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x - tf.reduce_mean(x),
        lambda x: tf.nn.max_pool1d(x, 2, 1, "SAME") + tf.reduce_mean(x, 0),
        lambda x: tf.concat([x[:, 1:], x[:, :1]], 1) * tf.reduce_mean(x),
        lambda x: x / (1 + tf.norm(x)),
    ],
    ids=["mean", "pool", "concat", "norm"],
)
def test_what_stays_apart_is_not_looped(monkeypatch, function):
    def loop(*args, **kwargs):
        raise AssertionError("a loop")

    monkeypatch.setattr(tf, "map_fn", loop)
    assert cases.largest_change(cases.model_with(cases.Weighted(function))) <= 1 + 1e-3


def test_axes_of_broadcast_gradients_are_those_of_tensorflow():
    shapes = [s for rank in range(4) for s in itertools.product([1, 2], repeat=rank)]
    for pair in itertools.product(shapes, repeat=2):
        given = [tf.constant(s, tf.int32, shape=[len(s)]) for s in pair]
        expected = tf.raw_ops.BroadcastGradientArgs(s0=given[0], s1=given[1])
        with tf.Graph().as_default():
            constants = [tf.constant(t.numpy()) for t in given]
            found = tf.raw_ops.BroadcastGradientArgs(s0=constants[0], s1=constants[1])
            for axes, known in zip(found, expected):
                assert list(constant_value(axes)) == list(known.numpy()), pair


def rounds(entry):
    """A layer that loops over the examples and writes one entry a round."""

    def call(x):
        count = tf.shape(x)[0]

        def body(i, made):
            return i + 1, made.write(*entry(x, i, count))

        start = 0, tf.TensorArray(tf.float32, count)
        made = tf.while_loop(lambda i, _: i < count, body, start)[1].stack()
        return tf.ensure_shape(made, [None, LENGTH, WIDTH]) + 0 * x

    return cases.model_with(cases.Weighted(call))


@pytest.mark.slow_cases("before")
@pytest.mark.parametrize(
    ("alone", "entry"),
    [
        (0, lambda x, i, n: (i, tf.tanh(x[i]))),
        (1, lambda x, i, n: (i, x[tf.maximum(i - 1, 0)])),
        pytest.param(1, lambda x, i, n: (n - 1 - i, x[i]), marks=pytest.mark.slow),
        pytest.param(
            1,
            lambda x, i, n: (i, x[i] * tf.cast(i + 1, x.dtype)),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["own", "before", "reversed", "numbered"],
)
@pytest.mark.invariant(16)
def test_a_round_has_its_row_alone(alone, entry):
    model = rounds(entry)
    assert len(cases.executed_alone(model)) == alone
    assert cases.largest_change(model) <= 1 + 1e-3


class Mapped(keras.layers.Layer):
    """Its loop reads a weight."""

    def build(self, shape):
        self.scale = self.add_weight(shape=shape[-1:], initializer="ones")

    def call(self, x):
        return x + tf.tanh(tf.map_fn(lambda e: e * tf.convert_to_tensor(self.scale), x))

    def compute_output_shape(self, shape):
        return shape


@pytest.mark.slow
def test_nothing_of_a_failed_attempt_runs():
    """The gradient of this loop cannot be vectorized, which shows when half of it is made.

    TensorFlow runs loops that read weights, whether anybody reads their results or not.
    """
    layer = Mapped()
    model = cases.model_with(layer)
    assert cases.largest_change(model) <= 1 + 1e-3
    assert cases.executed_alone(model) == (layer,)


@pytest.mark.parametrize("acts, calls", [(False, 2), (True, 3)])
def test_what_the_function_itself_raises_is_passed_on(acts, calls):
    called = []

    def one(x, dies_at):
        called.append(x)
        if len(called) == dies_at:
            raise ValueError("of the caller")
        checks = [tf.raw_ops.Assert(condition=x < 9.0, data=[x])] if acts else []
        with tf.control_dependencies(checks):
            return [2.0 * x]

    def run(dies_at):
        called.clear()
        mapped = tf.function(
            lambda xs: map_examples.map_examples(lambda x: one(x, dies_at), xs, "one")[
                0
            ],
            autograph=False,
        )
        return mapped(tf.constant([1.0, 2.0])).numpy().tolist()

    assert run(0) == [2.0, 4.0]  # the control
    assert len(called) == calls
    for dies_at in range(1, calls + 1):
        with pytest.raises(ValueError, match="of the caller"):
            run(dies_at)
