"""Tests that built-in Keras layers run on the whole batch, not on single examples."""

import independence_cases as cases
import keras
import numpy as np
import pytest

layers, ops = keras.layers, keras.ops
VECTOR, SEQUENCE, IMAGE, VOLUME = (6,), (4, 6), (4, 4, 2), (4, 4, 4, 2)


def spatial(rank, shape):
    for name, arguments in {
        "Conv": dict(filters=2, kernel_size=2, padding="same", strides=2),
        "SpatialDropout": dict(rate=0.5),
        "UpSampling": {},
        "MaxPooling": dict(pool_size=2),
        "AveragePooling": dict(pool_size=2, padding="same"),
        "Cropping": {},
        "ZeroPadding": {},
        "GlobalMaxPooling": {},
        "GlobalAveragePooling": dict(keepdims=True),
        "AdaptiveMaxPooling": dict(output_size=2),
        "AdaptiveAveragePooling": dict(output_size=2),
    }.items():
        if not hasattr(layers, f"{name}{rank}D"):
            continue
        yield f"{name}{rank}D", arguments, shape
    convolved = dict(filters=2, kernel_size=2)
    yield f"Conv{rank}D", dict(padding="same", dilation_rate=2, **convolved), shape
    yield f"Conv{rank}DTranspose", convolved, shape
    if rank < 3:
        yield f"DepthwiseConv{rank}D", dict(kernel_size=2, dilation_rate=2), shape
        yield f"SeparableConv{rank}D", convolved, shape


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
        yield name, dict(units=2, return_sequences=True, go_backwards=True), SEQUENCE
        yield name, dict(units=2, unroll=True, recurrent_dropout=0.2), SEQUENCE
        yield name, dict(units=2, trainable=False), SEQUENCE
        yield "RNN", dict(cell=getattr(layers, f"{name}Cell")(2)), SEQUENCE
        yield "Bidirectional", dict(layer=getattr(layers, name)(2)), SEQUENCE
    yield "ConvLSTM2D", dict(filters=2, kernel_size=2), (2, *IMAGE)


def of_one(items):
    """Yields the input and output tensors of a model's branches, one for each layer.

    Each item consists of the name of the layer, its arguments and its input shape.
    """
    for name, arguments, shape in items:
        layer = getattr(layers, name)(**arguments)
        inputs = keras.Input(shape)
        yield inputs, layer(layers.Dense(shape[-1])(inputs))


def masked():
    for make in (
        lambda x: layers.GlobalAveragePooling1D()(x),
        lambda x: layers.MultiHeadAttention(2, 2)(x, x, use_causal_mask=True),
        lambda x: layers.GroupQueryAttention(2, 2, 1)(x, x),
        lambda x: layers.Attention(dropout=0.1)([x, x]),
        lambda x: layers.AdditiveAttention()([x, x], use_causal_mask=True),
    ):
        inputs = keras.Input(VECTOR, dtype="int32")
        yield inputs, make(layers.Embedding(9, 2, mask_zero=True)(inputs))
        inputs = keras.Input(SEQUENCE)
        yield inputs, make(layers.Masking()(layers.Dense(2)(inputs)))


def of_two():
    for name in "Add Subtract Multiply Average Maximum Minimum Concatenate".split():
        inputs = keras.Input(SEQUENCE)
        yield inputs, getattr(layers, name)()([inputs, layers.Dense(6)(inputs)])
    for axes in (1, 2, (1, 2)):
        inputs = keras.Input((6, 6))
        yield inputs, layers.Dot(axes=axes)([inputs, layers.Dense(6)(inputs)])
    inputs = keras.Input((3, *SEQUENCE))
    x = layers.Dense(6)(inputs)
    yield inputs, layers.MultiHeadAttention(1, 2, attention_axes=(2,))(x, x)


GROUPS = {
    "lines": lambda: of_one(spatial(1, SEQUENCE)),
    "pictures": lambda: of_one(spatial(2, IMAGE)),
    "volumes": lambda: of_one(spatial(3, VOLUME)),
    "entries": lambda: of_one(entries()),
    "recurrent": lambda: of_one(recurrent()),
    "masked": masked,
    "several inputs": of_two,
}


@pytest.mark.slow_cases(but=["several inputs"])
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.invariant(16)
def test_layers_of_keras_run_for_the_whole_batch(group):
    keras.utils.set_random_seed(1)
    inputs, outputs = [], []
    for given, output in GROUPS[group]():
        inputs.append(given)
        outputs.append(layers.Dense(2)(layers.Flatten()(output)))
    model = keras.Model(inputs, layers.Add()(outputs))
    model.compile(loss="mse")
    x = [np.ones((3, *one.shape[1:]), one.dtype) for one in inputs]
    assert cases.executed_alone(model, x, np.ones((3, 2), "f4")) == ()
