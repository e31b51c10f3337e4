"""Tests that examples larger than a layer's declared shape are not clipped in parts."""

import clipping_reference as reference
import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers as L

CLIP = reference.CLIP


class Claims(L.Layer):
    """A layer that declares a static output shape, which may be wrong."""

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


CLAIMED = {
    "positions": ((4, 5), lambda: L.Dense(300, use_bias=False)),
    "grid": ((2, 2, 5), lambda: L.Dense(300, use_bias=False)),
    "points": ((10, 10, 5), lambda: L.Conv2D(6, 1, use_bias=False)),
    "few_positions": (
        (10, 10, 5),
        lambda: L.Conv2D(6, 3, strides=2, padding="same", use_bias=False),
    ),
    "groups": ((10, 10, 5), lambda: L.Conv2D(6, 3, padding="same", use_bias=False)),
    "some_positions": (
        (10, 10, 5),
        lambda: L.Conv2D(900, 3, padding="same", use_bias=False),
    ),
    "valid": ((10, 10, 5), lambda: L.Conv2D(900, 2, use_bias=False)),
}


@pytest.mark.parametrize("microbatch_size", [None, 1])
@pytest.mark.parametrize("name", CLAIMED)
@pytest.mark.slow_cases("*-1", "some_positions-*")
@pytest.mark.invariant(17)
def test_positions_of_an_example_are_no_examples(name, microbatch_size):
    """Asserts that an input with twice the declared positions is refused, not split."""
    (*size, width), make = CLAIMED[name]
    keras.utils.set_random_seed(0)
    inputs = keras.Input((*[None] * len(size), width))
    x = make()(Claims((*size, width))(inputs))
    axes = tuple(range(1, len(size) + 2))
    outputs = L.Lambda(lambda t: keras.ops.mean(t, axis=axes)[:, None])(x)
    model = keras.Model(inputs, outputs)
    model.compile(loss="mse")
    options = {"l2_norm_clip": CLIP, "microbatch_size": microbatch_size}
    example = {"x": np.ones((1, *size, width), "f4"), "y": np.ones((1, 1), "f4")}
    step = reference.step_of(model, example, **options)

    def total(count, *size):
        x = np.ones((count, *size, width), "f4")
        return step({"x": x, "y": np.full((count, 1), 100.0, "f4")}).sums[0]

    assert np.linalg.norm(total(1, *size)) == pytest.approx(CLIP, rel=1e-3)
    height, *rest = size
    others = [(1, 2 * height, *rest), (2, 2 * height, *rest)]
    if rest:
        others += [(1, height, 2 * rest[0]), (2, height // 2, *rest)]
    for other in others:
        with pytest.raises(tf.errors.InvalidArgumentError):
            total(*other)
    if rest:
        # The model may accept an image with equally many pixels in another shape, but
        # must clip it as one example.
        try:
            turned = total(1, height // 2, 2 * rest[0])
        except tf.errors.InvalidArgumentError:
            return
        assert np.linalg.norm(turned) <= CLIP * (1 + 1e-6)
