# ruff: noqa: E501
"""Layers of the closed table keep examples apart."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers as L

from tf_bandmf.keras.clipping.independence.layers import LAYERS, knows

rng = np.random.default_rng(0)
IMAGES = rng.uniform(0, 255, (5, 6, 6, 3)).astype("f4")
VOLUMES = rng.normal(size=(5, 3, 3, 3, 2)).astype("f4")
NUMBERS = rng.uniform(-2, 2, (5, 3)).astype("f4")
WHOLE = rng.integers(0, 6, (5, 3))
WORDS = np.array([["a b"], ["c"], ["b"], ["a a c"], ["d"]])
R = {"seed": 1}
# Constructor arguments of image layers, by layer name.
IMAGE_LAYERS = {
    "AutoContrast": dict(value_range=(0, 255)),
    "CenterCrop": dict(height=4, width=3),
    "RandomBrightness": dict(factor=0.3, **R),
    "RandomColorDegeneration": dict(factor=0.5, **R),
    "RandomColorJitter": dict(brightness_factor=0.2, contrast_factor=0.2, **R),
    "RandomContrast": dict(factor=0.3, **R),
    "RandomCrop": dict(height=4, width=3, **R),
    "RandomElasticTransform": dict(**R),
    "RandomErasing": dict(**R),
    "RandomFlip": dict(**R),
    "RandomGaussianBlur": dict(kernel_size=3, **R),
    "RandomGrayscale": dict(factor=0.5, **R),
    "RandomHue": dict(factor=0.3, value_range=(0, 255), **R),
    "RandomInvert": dict(factor=0.5, value_range=(0, 255), **R),
    "RandomPerspective": dict(**R),
    "RandomPosterization": dict(factor=4, **R),
    "RandomRotation": dict(factor=0.2, **R),
    "RandomSaturation": dict(factor=0.5, value_range=(0, 255), **R),
    "RandomSharpness": dict(factor=0.5, value_range=(0, 255), **R),
    "RandomShear": dict(x_factor=0.2, y_factor=0.2, **R),
    "RandomTranslation": dict(height_factor=0.2, width_factor=0.2, **R),
    "RandomZoom": dict(height_factor=0.3, **R),
    "Resizing": dict(height=4, width=9),
    "Solarization": dict(value_range=(0, 255)),
}
KNOWN = {
    **{
        name: (lambda n=name, a=arguments: getattr(L, n)(**a), IMAGES, [0 * IMAGES[2], IMAGES[2] / 9])
        for name, arguments in IMAGE_LAYERS.items()
        if hasattr(L, name)
    },
    **{
        name: (lambda n=name: getattr(L, n)(2), VOLUMES[(slice(None), *[0] * (3 - int(name[-2])))], [0.0, 9.0])
        for name in dir(L) if name.startswith("Adaptive")
    },
    "CategoryEncoding": (lambda: L.CategoryEncoding(6), WHOLE, [0, 5]),
    "CategoryEncoding counts": (lambda: L.CategoryEncoding(6, "count"), WHOLE, [0, 5]),
    "CategoryEncoding of vectors": (lambda: L.CategoryEncoding(6, "one_hot"), WHOLE[:, :1], [0, 5]),
    "Discretization": (lambda: L.Discretization([-1.0, 1.0]), NUMBERS, [0.0, 9.0]),
    "Discretization sets": (lambda: L.Discretization([-1.0, 1.0], output_mode="multi_hot"), NUMBERS, [0.0, 9.0]),
    "Hashing": (lambda: L.Hashing(7), WHOLE, [0, 5]),
    "Hashing sets": (lambda: L.Hashing(7, output_mode="multi_hot"), WHOLE, [0, 5]),
    "IntegerLookup": (lambda: L.IntegerLookup(vocabulary=[1, 2, 3]), WHOLE, [0, 5]),
    "IntegerLookup counts": (lambda: L.IntegerLookup(vocabulary=[1, 2, 3], output_mode="count"), WHOLE, [0, 5]),
    "StringLookup": (lambda: L.StringLookup(vocabulary=["a b", "c"]), WORDS, ["c", "z"]),
    "TextVectorization": (lambda: L.TextVectorization(vocabulary=["a", "b"], output_sequence_length=4), WORDS, ["c c", ""]),
    "TextVectorization counts": (lambda: L.TextVectorization(vocabulary=["a", "b"], output_mode="count"), WORDS, ["c c", ""]),
    "Rescaling": (lambda: L.Rescaling(2.0, offset=[1.0, 2.0, 3.0]), NUMBERS, [0.0, 9.0]),
}  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.invariant(16)
def test_a_known_layer_moves_no_other_example(name):
    make, batch, replaced = KNOWN[name]

    def run(x):
        keras.utils.set_random_seed(1)
        layer = make()
        actual = layer(tf.constant(x), training=True)
        assert knows(layer, [x.shape])
        return np.asarray(actual)

    before = run(batch)
    assert len(before) == len(batch)
    moved = 0.0
    for value in replaced:
        other = batch.copy()
        other[2] = value
        after = run(other)
        others = np.arange(len(batch)) != 2
        np.testing.assert_array_equal(before[others], after[others])
        moved += np.abs(before[2].astype("f8") - after[2]).sum()
    assert moved > 0


def test_each_known_layer_was_tried():
    tried = {type(make()).__name__ for make, *_ in KNOWN.values()}
    assert {kind.__name__ for kind in LAYERS} - tried == {"HashedCrossing"}


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (L.Rescaling(np.ones((1, 1, 1))), (5, 3)),
        (L.Resizing(2, 2), (5, 6, 3)),
        (L.CategoryEncoding(6), (5,)),
        (L.TextVectorization(vocabulary=["a"]), (5, 1)),
        (L.Dense(2), (5, 3)),
    ],
    ids=["more axes", "one image", "one set", "as long as the longest", "opened"],
)
@pytest.mark.invariant(16)
def test_a_layer_is_known_only_as_it_is_configured(layer, shape):
    assert not knows(layer, [shape])
