"""No axis but the first has the number of examples in it; no place is numbered."""

import independence_cases as cases
import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_bandmf.keras.clipping import UnsupportedModelError
from tf_bandmf.keras.clipping.independence.evaluation import Evaluation

FULL = cases.LENGTH * cases.WIDTH


def rows(x):
    return tf.shape(x)[0]


def factor(x, number):
    """The layer's input times a number that should not depend on the batch."""
    return x * tf.cast(number, x.dtype)


def split_by_rows(x):
    parts = tf.maximum(FULL // tf.maximum(rows(x), 1), 1)
    flat = tf.reshape(x, [rows(x), FULL])[:, : (FULL // parts) * parts]
    return factor(x, tf.shape(tf.reshape(flat, [rows(x), -1, parts]))[1])


def listed(x):
    """An element that nobody wrote has the shape that is asked for."""
    empty = tf.raw_ops.TensorListReserve(
        element_shape=tf.constant([-1, -1]), num_elements=2, element_dtype=x.dtype
    )
    written = tf.raw_ops.TensorListSetItem(
        input_handle=empty, index=0, item=tf.reshape(x, [-1, FULL])
    )
    found = tf.raw_ops.TensorListGetItem(
        input_handle=written,
        index=1,
        element_shape=tf.stack([rows(x), rows(x)]),
        element_dtype=x.dtype,
    )
    return factor(x, tf.shape(found)[1])


def in_a_branch(x):
    wide = tf.cond(
        tf.constant(True),
        lambda: tf.reshape(x[:, :1, :1], [rows(x), 1]) * tf.ones([1, rows(x)]),
        lambda: tf.reshape(x[:, :1, :1], [rows(x), 1]) * tf.ones([1, 3]),
    )
    return factor(x, tf.shape(wide)[1])


SIZES = {
    "reshape by the number": split_by_rows,
    "an element of a list": listed,
    "a branch": in_a_branch,
    "broadcast": lambda x: factor(
        x, tf.shape(tf.broadcast_to(x[:, :1, :1], [rows(x), 1, rows(x)]))[2]
    ),
    "tile": lambda x: factor(x, tf.shape(tf.tile(x, [1, rows(x), 1]))[1]),
    "slice": lambda x: factor(
        x, tf.shape(x[:, : tf.minimum(rows(x) - 2, cases.LENGTH)])[1]
    ),
    "pad": lambda x: factor(x, tf.shape(tf.pad(x, [[0, 0], [0, rows(x)], [0, 0]]))[1]),
    "fill": lambda x: factor(x, tf.shape(tf.fill([3, rows(x)], 1.0))[1]),
    "range": lambda x: factor(x, tf.size(tf.range(rows(x)))),
    "one hot": lambda x: factor(
        x, tf.shape(tf.one_hot(tf.cast(x[:, 0, 0], tf.int32), rows(x)))[1]
    ),
    "resize": lambda x: factor(
        x, tf.shape(tf.image.resize(x[..., None], [rows(x), 2]))[1]
    ),
    "top k": lambda x: factor(
        x,
        tf.shape(tf.math.top_k(x, tf.maximum(tf.minimum(rows(x) - 2, 4), 1)).values)[2],
    ),
    "random": lambda x: factor(x, tf.shape(tf.random.normal([2, rows(x)]))[1]),
}


def fresh():
    return tf.random.uniform([2], 0, 2**31 - 1, tf.int32)


def numbered(x, seed):
    return x * tf.random.stateless_normal(tf.shape(x), seed=seed)


GENERATOR = keras.random.SeedGenerator(3)
SEEDS = {
    "a sum that is zero": lambda: (lambda s: s + tf.negative(s) + 7)(fresh()),
    "xor with itself": lambda: (lambda s: tf.bitwise.bitwise_xor(s, s))(fresh()),
    "the constant part": lambda: tf.concat([fresh(), [7, 7]], 0)[2:],
    "the stacked part": lambda: tf.stack([fresh(), [7, 7]])[1],
    "a lookup": lambda: tf.gather([[7, 7], [7, 7]], fresh()[0] % 2),
    "few bits": lambda: tf.cast(
        tf.cast(tf.bitwise.right_shift(fresh(), 31), tf.int8), tf.int32
    ),
    "a product": lambda: fresh() * 0 + 5,
}


@pytest.mark.attack(
    "The number of examples in the shape of an example",
    tried="Reshapes, pieces, repetitions, lists and branches by the number of examples.",
    area="inputs",
    invariants=[16],
)
@pytest.mark.slow_cases(
    "tile",
    "slice",
    "pad",
    "fill",
    "range",
    "one hot",
    "resize",
    "top k",
    "random",
    "an element of a list",
    "reshape by the number",
    "a branch",
)
@pytest.mark.parametrize("name", SIZES)
@pytest.mark.invariant(16)
def test_no_axis_has_the_number_of_examples_in_it(name):
    model = cases.model_with(cases.Custom(SIZES[name]))
    try:
        assert cases.largest_change(model) <= 1 + 1e-3
    except UnsupportedModelError:
        pass


@pytest.mark.attack(
    "Seeds that only look drawn",
    tried="Zeros, constants and keys made of numbers that were drawn.",
    area="inputs",
    invariants=[16],
)
@pytest.mark.slow_cases(
    "a sum that is zero",
    "the constant part",
    "a lookup",
    "few bits",
    "the stacked part",
    "xor with itself",
)
@pytest.mark.parametrize("name", SEEDS)
@pytest.mark.invariant(16)
def test_a_seed_is_drawn_and_nothing_else(name):
    model = cases.model_with(cases.Custom(lambda x: numbered(x, SEEDS[name]())))
    try:
        assert cases.largest_change(model) <= 1 + 1e-3
    except UnsupportedModelError:
        pass


def test_a_generators_numbers_and_sizes_of_time_are_allowed():
    def call(x):
        noise = keras.random.normal(tf.shape(x), seed=GENERATOR)
        halves = tf.reshape(x, [rows(x), tf.shape(x)[1], 2, 2])
        return tf.reshape(halves, tf.shape(x)) + 0.1 * noise

    model = cases.model_with(cases.Custom(call))
    assert cases.executed_alone(model) == ()
    x, y = cases.examples()
    assert all(np.all(np.isfinite(s)) for s in cases.clipping_of(model)(x, y))


@pytest.mark.parametrize(
    "part, known", [(lambda s: s, True), (lambda s: s[:1], False)], ids=["all", "key"]
)
@pytest.mark.invariant(16)
def test_a_generators_key_is_no_number_that_is_drawn(part, known):
    @tf.function(autograph=False)
    def seed():
        return tf.cast(part(GENERATOR.next()), tf.int32)

    (tensor,) = seed.get_concrete_function().graph.outputs
    found = Evaluation({}).value(tensor)
    assert found.independent and (found.fresh or found.state) == known


@pytest.mark.parametrize("name", ["reshape by the number", "broadcast", "tile"])
def test_the_measure_sees_a_number_of_examples(name):
    layer = cases.Custom(SIZES[name])
    x, _ = cases.examples()
    whole, rest = layer(tf.constant(x)), layer(tf.constant(x[:-1]))
    assert np.abs(whole[:-1] - rest).max() > 0.1
