"""Layers of Keras run for the whole batch at once; rows that are cut do not meet."""

import independence_cases as cases
import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_bandmf.keras.clipping import UnsupportedModelError

layers, ops = keras.layers, keras.ops
VECTOR, SEQUENCE, IMAGE, VOLUME = (6,), (4, 6), (4, 4, 2), (4, 4, 4, 2)
LINE_OF_IMAGES = (2, 4, 4, 2)


def spatial(rank, shape):
    actual = [
        (f"Conv{rank}D", dict(filters=2, kernel_size=2)),
        (f"Conv{rank}D", dict(filters=2, kernel_size=2, padding="same", strides=2)),
        (
            f"Conv{rank}D",
            dict(filters=2, kernel_size=2, padding="same", dilation_rate=2),
        ),
        (f"Conv{rank}DTranspose", dict(filters=2, kernel_size=2)),
        (f"SpatialDropout{rank}D", dict(rate=0.5)),
        (f"UpSampling{rank}D", {}),
        (f"MaxPooling{rank}D", dict(pool_size=2)),
        (f"AveragePooling{rank}D", dict(pool_size=2, padding="same")),
        (f"Cropping{rank}D", {}),
        (f"ZeroPadding{rank}D", {}),
        (f"GlobalMaxPooling{rank}D", {}),
        (f"GlobalAveragePooling{rank}D", dict(keepdims=True)),
    ]
    if rank < 3:
        actual += [
            (f"DepthwiseConv{rank}D", dict(kernel_size=2, dilation_rate=2)),
            (f"SeparableConv{rank}D", dict(filters=2, kernel_size=2)),
        ]
    return [(name, arguments, shape) for name, arguments in actual]


def entries():
    for shape in (VECTOR, SEQUENCE, IMAGE):
        yield "BatchNormalization", dict(trainable=False), shape
        yield "Normalization", dict(mean=1.0, variance=2.0), shape
        for name in (
            "PReLU ReLU LeakyReLU ELU Identity Flatten Softmax LayerNormalization "
            "RMSNormalization UnitNormalization"
        ).split():
            yield name, {}, shape
        for name in "Dropout GaussianDropout GaussianNoise AlphaDropout".split():
            key = "stddev" if name == "GaussianNoise" else "rate"
            yield name, {key: 0.5}, shape
    for axis in (1, [1, 2]):
        for name in "LayerNormalization UnitNormalization Softmax".split():
            yield name, dict(axis=axis), SEQUENCE
    for activation in "softmax sparsemax gelu silu log_softmax hard_silu selu".split():
        yield "Dense", dict(units=2, activation=activation), SEQUENCE
    yield "EinsumDense", dict(equation="abc,cd->abd", output_shape=(4, 2)), SEQUENCE
    yield "GroupNormalization", dict(groups=2), SEQUENCE
    yield "GroupNormalization", dict(groups=-1), IMAGE
    yield "Reshape", dict(target_shape=(-1, 3)), SEQUENCE
    yield "Permute", dict(dims=(2, 1)), SEQUENCE
    yield "RepeatVector", dict(n=2), VECTOR
    yield "TimeDistributed", dict(layer=layers.Dense(2)), SEQUENCE


def recurrent():
    for name in "LSTM GRU SimpleRNN".split():
        yield name, dict(units=2, return_sequences=True), SEQUENCE
        yield name, dict(units=2, go_backwards=True), SEQUENCE
        yield name, dict(units=2, unroll=True), SEQUENCE
        yield name, dict(units=2, trainable=False), SEQUENCE
        cell = getattr(layers, f"{name}Cell")
        yield "RNN", dict(cell=cell(2)), SEQUENCE
        yield "Bidirectional", dict(layer=getattr(layers, name)(2)), SEQUENCE
    yield "ConvLSTM2D", dict(filters=2, kernel_size=2), LINE_OF_IMAGES


def images():
    yield "Rescaling", dict(scale=2.0), IMAGE
    yield "Resizing", dict(height=3, width=5), IMAGE
    yield "CenterCrop", dict(height=2, width=2), IMAGE
    yield "RandomCrop", dict(height=2, width=2), IMAGE
    yield "RandomFlip", {}, IMAGE
    yield "RandomRotation", dict(factor=0.1), IMAGE
    yield "RandomZoom", dict(height_factor=0.1), IMAGE
    yield "RandomTranslation", dict(height_factor=0.1, width_factor=0.1), IMAGE
    yield "RandomContrast", dict(factor=0.1), IMAGE
    yield "RandomBrightness", dict(factor=0.1), IMAGE


def of_one(items):
    """Branches of a model: a layer on one input each."""
    for name, arguments, shape in items:
        layer = getattr(layers, name)(**arguments)
        inputs = keras.Input(shape)
        yield name, inputs, layer(layers.Dense(shape[-1])(inputs))


def masked():
    for make in (
        lambda x: layers.LSTM(2)(x),
        lambda x: layers.GRU(2, return_sequences=True, zero_output_for_mask=True)(x),
        lambda x: layers.Bidirectional(layers.SimpleRNN(2))(x),
        lambda x: layers.GlobalAveragePooling1D()(x),
        lambda x: layers.MultiHeadAttention(2, 2)(x, x, use_causal_mask=True),
        lambda x: layers.GroupQueryAttention(2, 2, 1)(x, x),
        lambda x: layers.Attention(dropout=0.1)([x, x]),
        lambda x: layers.AdditiveAttention()([x, x], use_causal_mask=True),
        lambda x: layers.TimeDistributed(layers.Dense(2))(x),
        lambda x: layers.Concatenate()([x, x]),
    ):
        inputs = keras.Input(VECTOR, dtype="int32")
        x = layers.Embedding(9, 2, mask_zero=True)(inputs)
        yield "mask", inputs, make(x)
        inputs = keras.Input(SEQUENCE)
        yield "mask", inputs, make(layers.Masking()(layers.Dense(2)(inputs)))


def of_two():
    for name in "Add Subtract Multiply Average Maximum Minimum Concatenate".split():
        inputs = keras.Input(SEQUENCE)
        yield name, inputs, getattr(layers, name)()([inputs, layers.Dense(6)(inputs)])
    for axes in (1, 2, (1, 2)):
        inputs = keras.Input((6, 6))
        yield "Dot", inputs, layers.Dot(axes=axes)([inputs, layers.Dense(6)(inputs)])
    inputs = keras.Input((3, *SEQUENCE))
    x = layers.Dense(6)(inputs)
    yield (
        "attention",
        inputs,
        layers.MultiHeadAttention(1, 2, attention_axes=(2,))(x, x),
    )


GROUPS = {
    "lines": lambda: of_one(spatial(1, SEQUENCE)),
    "pictures": lambda: of_one(spatial(2, IMAGE)),
    "volumes": lambda: of_one(spatial(3, VOLUME)),
    "entries": lambda: of_one(entries()),
    "recurrent": lambda: of_one(recurrent()),
    "images": lambda: of_one(images()),
    "masked": masked,
    "several inputs": of_two,
}


@pytest.mark.slow_cases(but=["several inputs"])
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.invariant(16)
def test_layers_of_keras_run_for_the_whole_batch(group):
    keras.utils.set_random_seed(1)
    inputs, outputs = [], []
    for _, given, output in GROUPS[group]():
        inputs.append(given)
        outputs.append(layers.Dense(2)(layers.Flatten()(output)))
    model = keras.Model(inputs, layers.Add()(outputs))
    model.compile(loss="mse")
    x = [np.ones((3, *one.shape[1:]), one.dtype) for one in inputs]
    assert cases.executed_alone(model, x, np.ones((3, 2), "f4")) == ()


def dilated(function):
    """A function of the rows that a dilated convolution cuts an image into."""

    def call(x):
        cut = tf.space_to_batch(x, [2], [[0, 1]])
        return x + tf.batch_to_space(function(cut), [2], [[0, 1]])

    return call


CUT = {
    "another number of rows": lambda x: (
        x
        + tf.batch_to_space(tf.space_to_batch(x, [4], [[0, 1]]), [2], [[0, 1]])[
            : tf.shape(x)[0]
        ]
    ),
    "rows that were not cut": lambda x: (
        x + tf.batch_to_space(tf.repeat(x, 2, axis=0), [2], [[0, 3]])
    ),
    "sum": dilated(lambda cut: cut - tf.reduce_mean(cut, axis=0)),
    "rows of the batch": dilated(
        lambda cut: tf.reshape(
            tf.cumsum(tf.reshape(cut, [-1, 2, 2, cases.WIDTH]), axis=1), tf.shape(cut)
        )
    ),
    "a constant of each place": lambda x: tf.batch_to_space(
        tf.space_to_batch(x, [1], [[0, 0]])
        + tf.range(cases.BATCH - 1, dtype=x.dtype)[: tf.shape(x)[0], None, None],
        [1],
        [[0, 0]],
    ),
}


@pytest.mark.slow_cases(but=["sum", "a constant of each place"])
@pytest.mark.parametrize("name", CUT)
@pytest.mark.invariant(16)
def test_rows_that_a_dilated_convolution_cuts_do_not_meet(name):
    model = cases.model_with(cases.Custom(CUT[name]))
    try:
        assert cases.executed_alone(model) != ()
    except (UnsupportedModelError, ValueError):
        pass
