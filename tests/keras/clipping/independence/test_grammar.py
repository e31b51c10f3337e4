"""Random layers, composed of operations that are listed and operations that are not.

Each graph is refused, executed for each example by itself, or within the clip norm. The
words below keep examples apart, mix them, number them, or count them; a sentence is a few
of them, in functions, branches and loops.
"""

import collections

import independence_cases as cases
import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_bandmf.keras.clipping import UnsupportedModelError

LENGTH, WIDTH = cases.LENGTH, cases.WIDTH
ops = keras.ops


def count(x):
    return tf.shape(x)[0]


def places(x):
    return tf.cast(tf.clip_by_value(tf.cast(x * 3, tf.int32), 0, LENGTH - 1), tf.int32)


WORDS = {
    # Apart.
    "tanh": tf.tanh,
    "square": tf.square,
    "reverse time": lambda x: x[:, ::-1],
    "cumsum": lambda x: tf.cumsum(x, axis=1),
    "softmax": tf.nn.softmax,
    "transpose twice": lambda x: tf.transpose(
        tf.tanh(tf.transpose(x, [1, 0, 2])), [1, 0, 2]
    ),
    "attention": lambda x: tf.matmul(tf.nn.softmax(tf.matmul(x, x, False, True)), x),
    "reshape": lambda x: tf.reshape(tf.reshape(x, [-1, LENGTH * WIDTH]), tf.shape(x)),
    "rows": lambda x: tf.reshape(tf.tanh(tf.reshape(x, [-1, WIDTH])), tf.shape(x)),
    "norm": lambda x: x / (1 + tf.norm(x, axis=[1, 2], keepdims=True)),
    "top": lambda x: tf.math.top_k(x, WIDTH).values,
    "sort": lambda x: tf.sort(x, axis=1),
    "gather": lambda x: tf.gather(x, places(x)[:, :, 0], axis=1, batch_dims=1),
    "one hot": lambda x: x * tf.reduce_sum(tf.one_hot(places(x), 5), -1),
    "concat": lambda x: tf.concat([x[:, 1:], x[:, :1]], axis=1),
    "einsum": lambda x: tf.einsum("btd,bsd->bts", x, x) @ x,
    "where": lambda x: tf.where(x > 0, x, 0.1 * x),
    "spectrum": lambda x: tf.math.real(tf.signal.ifft(tf.cast(x, tf.complex64))),
    "noise": lambda x: x + 0.0 * tf.random.normal(tf.shape(x)),
    "conv": lambda x: tf.nn.conv1d(x, tf.eye(WIDTH)[None] * 0.5, 1, "SAME"),
    # Together.
    "mean": lambda x: x - tf.reduce_mean(x, axis=0),
    "largest": lambda x: x / (1 + tf.reduce_max(tf.abs(x))),
    "reverse": lambda x: x[::-1],
    "roll": lambda x: tf.roll(x, 1, axis=0),
    "first": lambda x: x + x[:1],
    "cumsum of examples": lambda x: tf.cumsum(x, axis=0),
    "rank": lambda x: tf.gather(x, tf.argsort(x[:, 0, 0])),
    "moved": lambda x: tf.reshape(tf.transpose(x, [1, 0, 2]), tf.shape(x)),
    "joined": lambda x: tf.reshape(tf.cumsum(tf.reshape(x, [-1])), tf.shape(x)),
    "product": lambda x: tf.einsum("btd,ctd->bc", x, x)[:, :1, None] + x,
    "attention to all": lambda x: tf.einsum(
        "bc,ctd->btd", tf.nn.softmax(tf.einsum("btd,ctd->bc", x, x)), x
    ),
    "pool": lambda x: tf.nn.avg_pool2d(x[None], [3, 1], 1, "SAME")[0],
    "ids": lambda x: (
        tf.math.unsorted_segment_sum(
            tf.reshape(x, [-1, WIDTH]), tf.reshape(places(x)[:, :, 0], [-1]), LENGTH
        )
        + x
    ),
    # Numbers of examples and their places.
    "count": lambda x: x / tf.cast(count(x), x.dtype),
    "place": lambda x: x * (1 + tf.range(count(x), dtype=x.dtype))[:, None, None],
    "cut by count": lambda x: x + tf.reduce_sum(x[:, count(x) - 3 :], 1, keepdims=True),
    "size of a tile": lambda x: (
        x * tf.cast(tf.shape(tf.tile(x, [1, count(x), 1]))[1], x.dtype)
    ),
    "numbered": lambda x: x * tf.random.stateless_normal(tf.shape(x), [1, 2]),
    # Not listed, not pure, not total.
    "host": lambda x: tf.ensure_shape(
        tf.numpy_function(lambda v: v - v.mean(), [x], tf.float32), x.shape
    ),
    "quiet host": lambda x: tf.ensure_shape(
        tf.numpy_function(lambda v: v - v.mean(), [x], tf.float32, stateful=False),
        x.shape,
    ),
    "inverse": lambda x: (
        x + tf.linalg.inv(tf.matmul(x, x, False, True) + tf.eye(LENGTH))[..., :1]
    ),
    "assertion": lambda x: tf.debugging.check_numerics(x, "bad"),
    "zeta": lambda x: x + tf.math.zeta(3.0, tf.abs(x) + 1),
    "mask": lambda x: x + tf.reduce_sum(tf.boolean_mask(x, x > 0)),
}
HOW = {
    "plain": lambda f: f,
    "function": lambda f: tf.function(f, autograph=False),
    "branch": lambda f: lambda x: tf.cond(tf.constant(True), lambda: f(x), lambda: x),
    "branch of data": lambda f: (
        lambda x: tf.cond(tf.reduce_sum(x) > 0, lambda: f(x), lambda: x)
    ),
    "loop": lambda f: (
        lambda x: tf.while_loop(lambda i, _: i < 2, lambda i, v: (i + 1, f(v)), (0, x))[
            1
        ]
    ),
    "map": lambda f: lambda x: tf.map_fn(lambda e: f(e[None])[0], x),
    "vectorized": lambda f: lambda x: tf.vectorized_map(lambda e: f(e[None])[0], x),
    "gate": lambda f: lambda x: x + tf.stop_gradient(f(x)) * tf.sign(tf.abs(x) + 1),
}


def sentence(number):
    """A layer, and what it is made of."""
    rng = np.random.default_rng(number)
    words = [str(w) for w in rng.choice(list(WORDS), rng.integers(1, 4))]
    weights = [0.6] + [0.4 / (len(HOW) - 1)] * (len(HOW) - 1)
    how = [str(h) for h in rng.choice(list(HOW), len(words), p=weights)]
    residual = bool(rng.integers(2))

    def call(x):
        y = x
        for word, way in zip(words, how, strict=True):
            y = HOW[way](WORDS[word])(y)
            y = tf.ensure_shape(y, x.shape)
        return x + y if residual else y

    return call, " ".join(f"{way}:{word}" for way, word in zip(how, words, strict=True))


def judged(number):
    """What becomes of a sentence, and how far a record moves the sum.

    Layers that are executed for each example by itself are measured one time in five:
    their gradients take by far the longest to trace.
    """
    call, text = sentence(number)
    x, _ = cases.examples()
    try:
        for size in (1, cases.BATCH - 1, cases.BATCH):
            call(tf.constant(x[:size]))
    except Exception:
        return "no sentence", 0.0, text
    model = cases.model_with(cases.Custom(call))
    try:
        alone = cases.executed_alone(model)
        measured = not alone or number % 5 == 0
        change = cases.largest_change(model) if measured else 0.0
    except UnsupportedModelError:
        return "refused", 0.0, text
    except ValueError as error:
        if "size" in str(error) or "shape" in str(error):
            return "refused", 0.0, text  # as it is traced for any number of examples
        raise
    return ("alone" if alone else "together"), change, text


def judge(numbers):
    counts = collections.Counter()
    keras.backend.clear_session()
    for number in numbers:
        verdict, change, text = judged(number)
        counts[verdict] += 1
        assert change <= 1 + 1e-3, (number, text, change)
    return counts


@pytest.mark.attack(
    "Random layers",
    tried="Words that keep examples apart, mix, number or count them, in functions, "
    "branches and loops: each is refused, executed alone, or within the clip norm.",
    area="inputs",
    invariants=[16],
)
@pytest.mark.invariant(16)
def test_random_layers(figure):
    counts = judge(range(3))
    figure(f"{sum(counts.values())} layers, {len(WORDS)} words")


@pytest.mark.slow
@pytest.mark.parametrize("part", range(100))
@pytest.mark.invariant(16)
def test_ten_thousand_random_layers(part):
    counts = judge(range(100 * part, 100 * (part + 1)))
    assert counts["refused"] and counts["alone"] and counts["together"]


def test_the_measure_sees_the_words_that_mix():
    mixing = {"mean", "largest", "reverse", "roll", "first", "rank", "moved", "count"}
    x, _ = cases.examples()
    for word in mixing:
        whole = WORDS[word](tf.constant(x))
        alone = [WORDS[word](tf.constant(row[None]))[0] for row in x]
        assert np.abs(whole - tf.stack(alone)).max() > 1e-3, word
