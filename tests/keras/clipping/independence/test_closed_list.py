"""Each class of the closed list acts on each example alone, in numbers too."""

import inspect

import keras
import numpy as np
import pytest
from keras import layers

from tf_bandmf.keras.clipping.independence import closed

BATCH = 3
VECTOR, SEQUENCE, IMAGE, VOLUME = (6,), (4, 6), (4, 4, 2), (4, 4, 4, 2)


def cases():
    """Class -> (layer, shapes of its inputs)."""
    found = {}
    for rank, shape in ((1, SEQUENCE), (2, IMAGE), (3, VOLUME)):
        found |= {
            f"Conv{rank}D": (dict(filters=2, kernel_size=2), [shape]),
            f"Conv{rank}DTranspose": (dict(filters=2, kernel_size=2), [shape]),
            f"DepthwiseConv{rank}D": (dict(kernel_size=2), [shape]),
            f"SeparableConv{rank}D": (dict(filters=2, kernel_size=2), [shape]),
            f"SpatialDropout{rank}D": (dict(rate=0.5), [shape]),
            f"UpSampling{rank}D": ({}, [shape]),
        }
        for name in ("MaxPooling", "AveragePooling"):
            found[f"{name}{rank}D"] = (dict(pool_size=2), [shape])
        for name in ("Cropping", "ZeroPadding"):
            found[f"{name}{rank}D"] = ({}, [shape])
        for name in ("GlobalMaxPooling", "GlobalAveragePooling"):
            found[f"{name}{rank}D"] = ({}, [shape])
    for name in (
        "PReLU ReLU LeakyReLU ELU Identity Masking Flatten Softmax "
        "LayerNormalization RMSNormalization UnitNormalization BatchNormalization "
        "Normalization"
    ).split():
        found[name] = ({}, [SEQUENCE])
    for name in "Dropout GaussianDropout GaussianNoise AlphaDropout".split():
        found[name] = ([0.5], [SEQUENCE])
    for name in "Add Subtract Multiply Average Maximum Minimum Concatenate".split():
        found[name] = ({}, [SEQUENCE, SEQUENCE])
    for name in "LSTM GRU SimpleRNN".split():
        found[name] = (dict(units=2), [SEQUENCE])
        found[f"{name}Cell"] = (dict(units=2), None)
    for name in "Attention AdditiveAttention".split():
        found[name] = ({}, [SEQUENCE, SEQUENCE])
    return found | {
        "BatchNormalization": (dict(trainable=False), [SEQUENCE]),
        "GroupNormalization": (dict(groups=2), [SEQUENCE]),
        "Normalization": (dict(mean=1.0, variance=2.0), [SEQUENCE]),
        "Dense": (dict(units=2), [SEQUENCE]),
        "EinsumDense": (dict(equation="abc,cd->abd", output_shape=(4, 2)), [SEQUENCE]),
        "Embedding": (dict(input_dim=9, output_dim=2), [VECTOR]),
        "ReversibleEmbedding": (dict(input_dim=9, output_dim=2), [VECTOR]),
        "Activation": (dict(activation="softmax"), [SEQUENCE]),
        "Reshape": (dict(target_shape=(6, 4)), [SEQUENCE]),
        "Permute": (dict(dims=(2, 1)), [SEQUENCE]),
        "RepeatVector": (dict(n=2), [VECTOR]),
        "Rescaling": (dict(scale=2.0), [IMAGE]),
        "Resizing": (dict(height=3, width=5), [IMAGE]),
        "CenterCrop": (dict(height=2, width=2), [IMAGE]),
        "RandomCrop": (dict(height=2, width=2), [IMAGE]),
        "RandomFlip": ({}, [IMAGE]),
        "RandomRotation": (dict(factor=0.1), [IMAGE]),
        "RandomZoom": (dict(height_factor=0.1), [IMAGE]),
        "RandomTranslation": (dict(height_factor=0.1, width_factor=0.1), [IMAGE]),
        "RandomContrast": (dict(factor=0.1), [IMAGE]),
        "RandomBrightness": (dict(factor=0.1), [IMAGE]),
        "GroupQueryAttention": (
            dict(head_dim=2, num_query_heads=2, num_key_value_heads=1),
            [SEQUENCE, SEQUENCE],
        ),
        "MultiHeadAttention": (dict(num_heads=2, key_dim=2), [SEQUENCE, SEQUENCE]),
        "Dot": (dict(axes=2), [SEQUENCE, SEQUENCE]),
        "RNN": (dict(cell=layers.LSTMCell(2)), [SEQUENCE]),
        "StackedRNNCells": (dict(cells=[layers.LSTMCell(2)]), None),
        "Bidirectional": (dict(layer=layers.GRU(2)), [SEQUENCE]),
        "TimeDistributed": (dict(layer=layers.Dense(2)), [SEQUENCE]),
    }


CASES = cases()
ATTENTION = ("MultiHeadAttention", "GroupQueryAttention")
TRAINING = {"training": True}
# (The input layer has no call.)
CLASSES = [
    name
    for name in closed._CONDITIONS
    if getattr(layers, name, layers.InputLayer) is not layers.InputLayer
]


def made(name):
    keras.utils.set_random_seed(1)
    arguments, shapes = CASES[name]
    kind = getattr(layers, name)
    layer = kind(*arguments) if isinstance(arguments, list) else kind(**arguments)
    if shapes is None:  # A cell acts within a recurrent layer.
        layer, shapes = layers.RNN(layer), [SEQUENCE]
    return layer, shapes


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.invariant(16)
def test_each_class_of_the_closed_list_acts_on_each_example_alone(name):
    layer, shapes = made(name)
    rng = np.random.default_rng(0)
    whole = [rng.random((BATCH, *shape), "f4") * 8 for shape in shapes]
    if "Embedding" in name:
        whole = [part.astype("i4") for part in whole]

    def called(inputs):
        for generator in generators:  # The same draws each time.
            generator.state.assign([1, 2])
        given = (
            inputs if name in ATTENTION else [inputs[0] if len(inputs) == 1 else inputs]
        )
        parameters = inspect.signature(layer.call).parameters
        return np.array(layer(*given, **(TRAINING if "training" in parameters else {})))

    generators = [
        value
        for part in layer._flatten_layers()
        for value in vars(part).values()
        if isinstance(value, keras.random.SeedGenerator)
    ]
    expected = called(whole)
    assert closed.acts_on_each_example(layer, [part.ndim for part in whole])
    for other in (0.0, 1.0, np.nan, 1e3):
        if np.isnan(other) and "Embedding" in name:
            continue
        changed = [part.copy() for part in whole]
        for part in changed:
            part[1:] = np.nan_to_num(other, nan=0) if part.dtype == "i4" else other
        if "Embedding" in name:
            changed = [np.minimum(part, 8) for part in changed]
        np.testing.assert_allclose(
            called(changed)[0], expected[0], rtol=1e-5, atol=1e-6
        )
    if generators:
        return  # Another number of examples draws other numbers.
    alone = called([part[:1] for part in whole])
    np.testing.assert_allclose(alone[0], expected[0], rtol=1e-5, atol=1e-6)
