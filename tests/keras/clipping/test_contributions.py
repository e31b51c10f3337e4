"""What one record adds to the clipped sum of whole models, searched for its largest."""

import itertools

import clipping_reference as reference
import hypothesis
import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st

from tf_bandmf.keras.clipping import clipped_gradient_sums

layers = keras.layers
TOLERANCE = 1e-3
CLIP = 0.7
BATCH = 3


def regression(inputs, *stack, dtype=None):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input(inputs, dtype=dtype), *stack])
    model.add(layers.Flatten())
    model.add(layers.Dense(2))
    return model


def siamese():
    keras.utils.set_random_seed(1)
    inputs = keras.Input((2, 203))
    shared = layers.Dense(211, use_bias=False)
    first = shared(layers.Cropping1D((0, 1))(inputs))
    second = shared(layers.Cropping1D((1, 0))(inputs))
    outputs = layers.Flatten()(layers.Subtract()([first, second]))
    return keras.Model(inputs, layers.Dense(2)(outputs))


def tied():
    keras.utils.set_random_seed(1)
    inputs = keras.Input((6, 4))
    dense, scale = layers.Dense(4), reference.Scale()
    x = inputs
    for _ in range(3):
        x = scale(dense(x))
    return keras.Model(inputs, layers.Dense(2)(layers.Flatten()(x)))


MODELS = {
    "siamese": (siamese, (2, 203)),
    "tied": (tied, (6, 4)),
    "sequence": (
        lambda: regression((6, 4), layers.Dense(11000, use_bias=False)),
        (6, 4),
    ),
    "convolution": (
        lambda: regression((8, 8, 3), layers.Conv2D(1600, 3, strides=3)),
        (8, 8, 3),
    ),
    "groups": (
        lambda: regression((8, 8, 6), layers.Conv2D(6, 3, groups=3, strides=2)),
        (8, 8, 6),
    ),
    "normalizations": (
        lambda: regression(
            (6, 4),
            layers.LayerNormalization(),
            layers.RMSNormalization(),
            layers.GroupNormalization(2),
        ),
        (6, 4),
    ),
    "custom": (lambda: regression((6, 4), reference.Scale()), (6, 4)),
    "bfloat16": (
        lambda: regression(
            (6, 300), layers.Dense(300, dtype="mixed_bfloat16"), reference.Scale()
        ),
        (6, 300),
    ),
}
_FUNCTIONS = {}


def sums_of(name, xla, microbatch_size):
    key = name, xla, microbatch_size
    if key not in _FUNCTIONS:
        model = MODELS[name][0]()
        model.compile(loss="mse")

        @tf.function(autograph=False, jit_compile=xla)
        def run(x, y, weight):
            clipped = clipped_gradient_sums(
                model, x, y, weight, l2_norm_clip=CLIP, microbatch_size=microbatch_size
            )
            return tf.concat([tf.reshape(s, [-1]) for s in clipped.sums], 0)

        _FUNCTIONS[key] = run
    return _FUNCTIONS[key]


def contribution(name, record, target, xla=False, microbatch_size=None):
    """Norm of what the record changes in the sum; the other two are ordinary."""
    run = sums_of(name, xla, microbatch_size)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(BATCH, *MODELS[name][1])).astype("f4")
    y = rng.normal(size=(BATCH, 2)).astype("f4")
    x[1], y[1] = record, target
    with_it = run(x, y, np.ones(BATCH, "f4"))
    x[1], y[1] = 0.0, 0.0
    without = run(x, y, np.array([1, 0, 1], "f4"))
    assert np.all(np.isfinite(with_it))
    return np.linalg.norm(np.asarray(with_it, "f8") - np.asarray(without, "f8"))


@st.composite
def records(draw):
    return (
        draw(st.integers(0, 2**31)),
        draw(st.sampled_from(["unrelated", "alike", "opposite", "ties"])),
        draw(st.floats(-30, 30)),
        draw(st.floats(-30, 30)),
        draw(st.floats(-9, 0)),
    )


def record_of(name, case):
    seed, form, scale, target, nearness = case
    rng = np.random.default_rng(seed)
    shape = MODELS[name][1]
    x = rng.normal(size=shape)
    if form != "unrelated":
        # All positions (rows) nearly the same, or the opposite of their neighbours.
        x = np.broadcast_to(x[:1], shape) + 10.0**nearness * x
    if form == "opposite":
        x = x * np.where(np.arange(shape[0]) % 2, -1.0, 1.0).reshape(
            -1, *[1] * (len(shape) - 1)
        )
    if form == "ties":
        x = np.ones(shape)
    with np.errstate(over="ignore"):
        return np.float32(10.0**scale * x), np.float32(
            10.0**target * rng.normal(size=2)
        )


FAST = ["siamese", "sequence", "convolution", "groups", "custom"]
CASES = [pytest.param(name, False, None, id=name) for name in FAST]
CASES += [
    pytest.param(name, False, None, id=name, marks=pytest.mark.slow)
    for name in MODELS
    if name not in FAST
]
CASES += [
    pytest.param(name, True, None, id=f"{name}-xla", marks=pytest.mark.slow)
    for name in MODELS
]
CASES += [pytest.param("siamese", False, 2, id="siamese-microbatches")]


@pytest.mark.slow_cases(
    "convolution", "siamese", "custom", "sequence", "siamese-microbatches"
)
@pytest.mark.parametrize(("name", "xla", "microbatch_size"), CASES)
@pytest.mark.invariant(17)
def test_a_record_moves_the_sum_by_the_clip_norm(name, xla, microbatch_size):
    @hypothesis.settings(
        max_examples=30, deadline=None, derandomize=True, database=None
    )
    @hypothesis.given(records())
    def search(case):
        record, target = record_of(name, case)
        moved = contribution(name, record, target, xla, microbatch_size)
        assert moved <= CLIP * (1 + TOLERANCE)

    search()


@pytest.mark.invariant(17)
def test_embedding_with_repeated_ids():
    """Half of the positions pull the same row one way, half the other."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input((40,), dtype="int32")
    x = layers.Embedding(3, 16)(inputs)
    signs = np.where(np.arange(40) % 2, -1.0, 1.0)[:, None].astype("f4")
    weights = keras.Input((40, 16))
    x = layers.Multiply()([x, weights])
    outputs = layers.Lambda(lambda t: keras.ops.sum(t, axis=(1, 2))[:, None])(x)
    model = keras.Model([inputs, weights], outputs)
    model.compile(loss="mse")
    rng = np.random.default_rng(0)
    clipped = tf.function(
        lambda x, y: clipped_gradient_sums(model, x, y, l2_norm_clip=CLIP),
        autograph=False,
    )
    y = np.full((1, 1), 100.0, "f4")
    for scale, nearness in itertools.product((1e-3, 1.0, 1e6), (0.0, 1e-7, 1e-4)):
        weight = scale * (signs + nearness * rng.normal(size=(40, 16)))
        result = clipped([np.zeros((1, 40), "i4"), weight[None].astype("f4")], y)
        assert np.linalg.norm(result.sums[0]) <= CLIP * (1 + TOLERANCE)


@pytest.mark.slow
def test_ordinary_models_lose_less_than_a_thousandth():
    """One example of every layer of the zoo, clipped to half its norm."""
    import test_kinds_of_layers as zoo

    lost = {}
    cases = [(zoo.IMAGE_LAYERS, (8, 8, 3), reference.images)]
    cases += [(zoo.SEQUENCE_LAYERS, (6, 4), reference.sequences)]
    for makers, inputs, data in cases:
        for name, make in makers.items():
            model = reference.classifier(make(), inputs=inputs)
            x, y = data(batch=1), reference.labels(batch=1)
            norm = float(clipped_gradient_sums(model, x, y, l2_norm_clip=1.0).norms[0])
            sums = clipped_gradient_sums(model, x, y, l2_norm_clip=norm / 2).sums
            actual = np.sqrt(sum(np.sum(np.square(s, dtype="f8")) for s in sums))
            lost[name] = 1 - actual / (norm / 2)
    assert max(lost.values()) < 1e-3, lost


class Claims(layers.Layer):
    """Gives its output a static shape that it may not have."""

    def __init__(self, shape):
        super().__init__()
        self.shape = shape

    def call(self, inputs):
        if tf.is_tensor(inputs):
            inputs = tf.identity(inputs)
            inputs.set_shape([None, *self.shape])
        return inputs

    def compute_output_shape(self, input_shape):
        return (input_shape[0], *self.shape)


def clipped_sums(model, microbatch_size):
    """In a graph, of batches of any size."""
    model.compile(loss="mse")
    return tf.function(
        lambda x, y: clipped_gradient_sums(
            model, x, y, l2_norm_clip=CLIP, microbatch_size=microbatch_size
        ),
        autograph=False,
        input_signature=[tf.TensorSpec(model.input.shape), tf.TensorSpec([None, 1])],
    )


@pytest.mark.slow_cases("claimed1-1", "claimed0-1")
@pytest.mark.parametrize("microbatch_size", [None, 1])
@pytest.mark.parametrize("claimed", [(4, 5), (2, 2, 5)])
@pytest.mark.invariant(17)
def test_positions_of_an_example_are_no_examples(claimed, microbatch_size):
    """Twice as many positions as a layer claims: each half would be clipped by itself."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((None, *claimed[1:]))
    x = layers.Dense(300, use_bias=False)(Claims(claimed)(inputs))
    axes = tuple(range(1, len(claimed) + 1))
    outputs = layers.Lambda(lambda t: keras.ops.mean(t, axis=axes)[:, None])(x)
    model = keras.Model(inputs, outputs)
    clipped = clipped_sums(model, microbatch_size)
    true = clipped(tf.ones([1, *claimed]), tf.fill([1, 1], 100.0))
    assert np.linalg.norm(true.sums[0]) == pytest.approx(CLIP, rel=1e-3)
    for count in (1, 2):
        longer = tf.ones([count, 2 * claimed[0], *claimed[1:]])
        with pytest.raises(tf.errors.InvalidArgumentError, match="shape"):
            clipped(longer, tf.fill([count, 1], 100.0))


@pytest.mark.parametrize("microbatch_size", [None, 1])
@pytest.mark.parametrize(
    "convolution",
    [
        lambda: layers.Conv2D(6, 1, use_bias=False),
        lambda: layers.Conv2D(6, 3, strides=2, padding="same", use_bias=False),
        lambda: layers.Conv2D(6, 3, padding="same", use_bias=False),
        lambda: layers.Conv2D(900, 3, padding="same", use_bias=False),
        lambda: layers.Conv2D(900, 2, strides=1, padding="valid", use_bias=False),
    ],
    ids=["points", "few_positions", "groups", "some_positions", "valid"],
)
@pytest.mark.slow_cases(
    but=["points-None", "few_positions-None", "groups-None", "valid-None"]
)
@pytest.mark.invariant(17)
def test_pixels_of_an_example_are_no_examples(convolution, microbatch_size):
    """As above, of images that are twice as high as a layer claims, or wide."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((None, None, 5))
    x = convolution()(Claims((10, 10, 5))(inputs))
    outputs = layers.Lambda(lambda t: keras.ops.mean(t, axis=(1, 2, 3))[:, None])(x)
    model = keras.Model(inputs, outputs)
    clipped = clipped_sums(model, microbatch_size)
    true = clipped(tf.ones([1, 10, 10, 5]), tf.fill([1, 1], 100.0))
    assert np.linalg.norm(true.sums[0]) == pytest.approx(CLIP, rel=1e-3)
    for count, *size in ((1, 20, 10), (2, 20, 10), (1, 10, 20), (2, 5, 10)):
        other = tf.ones([count, *size, 5])
        with pytest.raises(tf.errors.InvalidArgumentError):
            clipped(other, tf.fill([count, 1], 100.0))
    # The same number of pixels: whatever becomes of them, an example is one.
    try:
        total = clipped(tf.ones([1, 5, 20, 5]), tf.fill([1, 1], 100.0)).sums[0]
    except tf.errors.InvalidArgumentError:
        return
    assert np.linalg.norm(total) <= CLIP * (1 + 1e-6)
