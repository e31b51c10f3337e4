"""Builds models around a layer or loss, and measures one record's effect on the sum."""

import clipping_reference as reference
import keras
import numpy as np
from small_models import Custom

from tf_bandmf.keras.clipping.tensors.errors import UnsupportedModelError
from tf_bandmf.keras.compat.optimizing import optimized

layers = keras.layers
CLIP = 0.5
LENGTH, WIDTH, BATCH = 3, 4, 5


class Weighted(Custom):
    """A layer that applies a function to its input and scales the result."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones")

    def call(self, x):
        return self.function(x) * self.scale


def examples(batch=BATCH, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(batch, LENGTH, WIDTH)).astype("f4")
    return x, rng.normal(size=(batch, 2)).astype("f4")


def model_with(*inner, loss="mse"):
    """Builds a model that contains the layers and maps [LENGTH, WIDTH] to [2]."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input((LENGTH, WIDTH))
    x = layers.Dense(WIDTH, activation="tanh")(inputs)
    for layer in inner:
        x = layer(x)
    outputs = layers.Dense(2)(layers.Flatten()(x))
    model = keras.Model(inputs, outputs)
    model.compile(loss=loss)
    reference.randomize(model)
    return model


def clipping_of(model):
    """Returns a function for clipped sums that has one graph for all batch sizes."""
    x, y = examples()
    step = reference.step_of(model, {"x": x, "y": y}, l2_norm_clip=CLIP)

    # Like `fit`, optimize the graph only once. A second round of TensorFlow's graph
    # optimizations breaks nested loops: there, `tf.reverse(v, [0])` or `v[:1]` would
    # return nothing.
    def run(x, y):
        with optimized():
            return step({"x": x, "y": y}).sums

    return run


def distance(first, second):
    return reference.norm([np.subtract(*pair) for pair in zip(first, second)])


def largest_change(model):
    """Returns the largest change of the clipped sum due to one record, in clip norms.

    The record is either removed or replaced by NaN.
    """
    x, y = examples()
    x[-1] *= 30
    step = clipping_of(model)
    whole = step(x, y)
    changes = []
    for index in (0, BATCH - 1):
        rest = [i for i in range(BATCH) if i != index]
        changes.append(distance(whole, step(x[rest], y[rest])))
        bad = x.copy()
        bad[index] = np.nan
        changes.append(distance(whole, step(bad, y)))
    assert max(changes) > 0
    return max(changes) / CLIP


def assert_harmless(make):
    """Asserts that a layer is refused, or lets a record add at most the clip norm."""
    try:
        assert largest_change(model_with(make())) <= 1 + 1e-3
    except (UnsupportedModelError, ValueError):
        pass


def executed_alone(model, x=None, y=None):
    """Returns the layers of a model that run on one example at a time."""
    return reference.layers_alone(model, examples()[0] if x is None else x)
