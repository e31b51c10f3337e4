"""No value of a record decides how much memory `map` and `parse` need."""

import keras
import pytest
import tensorflow as tf

from tf_bandmf.sampling.purity import may_fail


def number(x):
    return tf.cast(x[0], tf.int32)


def in_a_branch(x):
    return tf.cond(x[0] > 0, lambda: tf.range(number(x)), lambda: tf.range(3))


def parsed(x):
    features = {
        "list": tf.io.VarLenFeature(tf.int64),
        "sparse": tf.io.SparseFeature("place", "value", tf.float32, 100),
    }
    return tf.io.parse_single_example(tf.strings.as_string(x[0]), features)


LARGE = {
    "parsed": lambda x: tf.range(parsed(x)["list"].values[0]),
    "range": lambda x: tf.range(number(x)),
    "fill": lambda x: tf.zeros([2, number(x)]),
    "tile": lambda x: tf.tile(x, number(x)[None]),
    "repeat": lambda x: tf.repeat(x, tf.cast(x, tf.int32)),
    "mask": lambda x: tf.sequence_mask(number(x)),
    "one hot": lambda x: tf.one_hot(3, number(x)),
    "pad": lambda x: tf.pad(x, [[0, number(x)]]),
    "resize": lambda x: tf.image.resize(x[None, :, None], [1, number(x)]),
    "random": lambda x: tf.random.stateless_normal([number(x)], [1, 2]),
    "count": lambda x: tf.math.bincount(tf.cast(x, tf.int32)),
    "segments": lambda x: tf.math.segment_sum(x, tf.cast(x, tf.int32)),
    "stitch": lambda x: tf.dynamic_stitch([number(x)[None]], [x[:1]]),
    "scatter": lambda x: tf.scatter_nd([[0]], x[:1], number(x)[None]),
    "function": lambda x: tf.function(lambda n: tf.range(n))(number(x)),
    "branch": in_a_branch,
    "text": lambda x: tf.range(
        tf.strings.to_number(tf.strings.as_string(x[0]), tf.int32)
    ),
}
OF_LIMITED_SIZE = {
    "clipped": lambda x: tf.range(tf.clip_by_value(number(x), 0, 100)),
    "sizes": lambda x: tf.zeros([2 * tf.shape(x)[0] + 1]),
    "chosen size": lambda x: tf.range(tf.shape(tf.boolean_mask(x, x > 0))[0]),
    "split": lambda x: tf.pad(
        tf.strings.split(tf.strings.as_string(x[0])),
        [[0, 9 - tf.shape(tf.strings.split(tf.strings.as_string(x[0])))[0]]],
    ),
    "counted": lambda x: tf.range(tf.reduce_sum(tf.cast(x > 0, tf.int32))),
    "letters": lambda x: tf.zeros([tf.strings.length(tf.strings.as_string(x[0]))]),
    "entries of a record": lambda x: tf.sparse.to_dense(parsed(x)["list"]),
    "entries with places": lambda x: tf.sparse.to_dense(parsed(x)["sparse"]),
    "crossed": lambda x: keras.layers.HashedCrossing(5, output_mode="one_hot")(
        (tf.strings.as_string(x[0]), tf.strings.as_string(x[0]))
    ),
    "part": lambda x: x[: number(x)],
    "image": lambda x: tf.image.resize_with_pad(
        tf.io.decode_png(tf.strings.as_string(x[0]), channels=1), 8, 8
    ),
    "ratio": lambda x: tf.image.resize(
        tf.io.decode_png(tf.strings.as_string(x[0]), channels=1),
        [8, 8],
        preserve_aspect_ratio=True,
    ),
    "tokens": lambda x: tf.strings.unicode_decode(
        tf.strings.as_string(x), "UTF-8"
    ).to_tensor(shape=[None, 5]),
    "repeated": lambda x: tf.repeat(x, 3),
    "sizes in a function": lambda x: tf.function(lambda v: tf.range(tf.shape(v)[0]))(
        tf.boolean_mask(x, x > 0)
    ),
}


def judged(function):
    traced = tf.function(function, autograph=False).get_concrete_function(
        tf.TensorSpec([None])
    )
    return may_fail(traced.graph, traced.graph.inputs[:1])


@pytest.mark.attack(
    "Records that ask for any amount of memory",
    tried="A map makes a tensor of as many entries as a value of the record says.",
    area="inputs",
    invariants=[18],
)
@pytest.mark.parametrize("name", LARGE)
@pytest.mark.invariant(18)
def test_a_size_that_a_record_decides_is_refused(name):
    with pytest.raises(ValueError, match="of a size that a value"):
        judged(LARGE[name])


@pytest.mark.parametrize("name", ["range", "fill", "tile", "pad", "random", "function"])
def test_without_the_check_the_record_gets_what_it_asks_for(name):
    small, large = (
        tf.size(LARGE[name](tf.constant([value, 1.0]))) for value in (3.0, 3e4)
    )
    assert large > 1000 * small


@pytest.mark.parametrize("name", OF_LIMITED_SIZE)
def test_a_size_with_a_limit_is_taken(name):
    judged(OF_LIMITED_SIZE[name])
