"""Tests that layers in the table of known layers do not mix the batch's examples."""

import inspect

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
# Constructor arguments by name. Each layer gets the arguments that it accepts.
USUAL = {
    **dict.fromkeys(("height", "width", "kernel_size"), 3),
    **dict.fromkeys(("height_factor", "width_factor", "x_factor", "y_factor"), 0.2),
    **dict.fromkeys(("factor", "brightness_factor", "contrast_factor"), 0.3),
    **{"seed": 1, "value_range": (0, 255), "output_size": 2, "num_bins": 7},
    **{"num_tokens": 6, "vocabulary": ["a b", "c"]},
}
# Inputs of the layers that do not take images: a batch, and two values that replace one
# of its examples.
OTHERS = {
    "CategoryEncoding": (WHOLE, [0, 5]),
    "Discretization": (NUMBERS, [0.0, 9.0]),
    "Hashing": (WHOLE, [0, 5]),
    "IntegerLookup": (WHOLE, [0, 5]),
    "StringLookup": (WORDS, ["c", "z"]),
    "TextVectorization": (WORDS, ["c c", ""]),
}
MORE = {
    "RandomPosterization": {"factor": 4},
    "Discretization": {"num_bins": None, "bin_boundaries": [-1.0, 1.0]},
    "IntegerLookup": {"vocabulary": [1, 2, 3]},
    "TextVectorization": {"output_sequence_length": 4},
}
# The tests run each layer in its default mode, and some layers also in a mode that
# combines all entries of an example into a set or into counts.
KINDS = [kind for kind in LAYERS if isinstance(kind, type)]
CASES = [(kind, None) for kind in KINDS if kind is not L.HashedCrossing]
CASES += [(L.CategoryEncoding, "count"), (L.Discretization, "multi_hot")]
CASES += [(L.Hashing, "multi_hot"), (L.IntegerLookup, "count")]
CASES += [(L.TextVectorization, "count")]


def data_of(kind):
    """Returns a batch for a layer class, and two replacement values for one example."""
    if kind.__name__.startswith("Adaptive"):
        rank = int(kind.__name__[-2])
        return VOLUMES[(slice(None), *[0] * (3 - rank))], [0.0, 9.0]
    return OTHERS.get(kind.__name__, (IMAGES, [0 * IMAGES[2], IMAGES[2] / 9]))


@pytest.mark.parametrize(
    ("kind", "mode"), CASES, ids=lambda part: getattr(part, "__name__", part or "")
)
@pytest.mark.invariant(16)
def test_a_known_layer_moves_no_other_example(kind, mode):
    arguments = {**USUAL, **MORE.get(kind.__name__, {})}
    if mode is not None:
        arguments |= {"output_mode": mode, "output_sequence_length": None}
    names = inspect.signature(kind).parameters
    arguments = {name: value for name, value in arguments.items() if name in names}

    def run(x):
        keras.utils.set_random_seed(1)
        layer = kind(**arguments)
        actual = layer(tf.constant(x), training=True)
        assert knows(layer, [x.shape])
        return np.asarray(actual)

    batch, replaced = data_of(kind)
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


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (L.Resizing(2, 2), (5, 6, 3)),
        (L.CategoryEncoding(6), (5,)),
        (L.TextVectorization(vocabulary=["a"]), (5, 1)),
        (L.Dense(2), (5, 3)),
    ],
    ids=["one image", "one set", "as long as the longest", "opened"],
)
@pytest.mark.invariant(16)
def test_a_layer_is_known_only_as_it_is_configured(layer, shape):
    assert not knows(layer, [shape])
