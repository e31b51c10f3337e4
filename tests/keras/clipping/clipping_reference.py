"""Slow, obviously right per-example clipping, and tools of the tests."""

import math

import keras
import numpy as np
import tensorflow as tf

from tf_bandmf.keras.clipping import clipped_gradient_sums

CLIP = 0.7


class Scale(keras.layers.Layer):
    """A custom layer with a weight of its own."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones")

    def call(self, x):
        return x * self.scale + self.scale**2


def one(structure, index):
    """Cuts one example out of nested arrays [B, ...], as a batch of one."""
    return keras.tree.map_structure(
        lambda a: None if a is None else tf.convert_to_tensor(a)[index : index + 1],
        structure,
    )


def example_gradients(model, x, y, sample_weight=None):
    """Per-example losses and gradients from one tape per example."""
    count = len(keras.tree.flatten(x)[0])
    losses, gradients = [], []
    variables = [v._value for v in model.trainable_variables]
    for index in range(count):
        with tf.GradientTape() as tape:
            y_pred = model(one(x, index), training=True)
            weight = None if sample_weight is None else one(sample_weight, index)
            loss = model.compute_loss(one(x, index), one(y, index), y_pred, weight)
        grads = tape.gradient(loss, variables, unconnected_gradients="zero")
        gradients.append([np.asarray(tf.convert_to_tensor(g), "f8") for g in grads])
        losses.append(float(loss))
    return np.array(losses), gradients


def norms_of(gradients):
    return np.array([np.sqrt(sum((g**2).sum() for g in gs)) for gs in gradients])


def clipped_sums(gradients, clip):
    total = [np.zeros_like(g) for g in gradients[0]]
    for norm, grads in zip(norms_of(gradients), gradients, strict=True):
        scale = min(1.0, clip / norm) if norm > 0 else 1.0
        total = [t + scale * g for t, g in zip(total, grads, strict=True)]
    return total


def group_sums(gradients, members, clips, gamma=None):
    """Brute force: the norm of each group of each example, one after the other."""
    totals = [np.zeros_like(g) for g in gradients[0]]
    for of_example in gradients:
        for group, clip in enumerate(clips):
            places = [i for i, member in enumerate(members) if member == group]
            norm = math.sqrt(sum(float((of_example[i] ** 2).sum()) for i in places))
            scale = min(1.0, clip / norm) if gamma is None else clip / (norm + gamma)
            for i in places:
                totals[i] = totals[i] + scale * of_example[i]
    return totals


def median_clip(gradients):
    """A clipping norm that clips about half of the examples."""
    return float(np.median(norms_of(gradients))) or 1.0


def dynamic_batch(structure):
    """Input signature of nested arrays with an unknown batch size."""
    return keras.tree.map_structure(
        lambda a: tf.TensorSpec([None, *np.shape(a)[1:]], tf.as_dtype(a.dtype)),
        structure,
    )


def traced(model, x, y, sample_weight=None, clip=CLIP, **kwargs):
    """Clipped sums from a graph with an unknown batch size."""
    data = (x, y) if sample_weight is None else (x, y, sample_weight)

    @tf.function(autograph=False, input_signature=[dynamic_batch(data)])
    def step(batch):
        return clipped_gradient_sums(model, *batch, l2_norm_clip=clip, **kwargs)

    return step(keras.tree.map_structure(tf.convert_to_tensor, data))


def assert_sums_close(actual, expected, rtol=1e-4):
    scale = np.sqrt(sum((e**2).sum() for e in expected))
    for got, want in zip(actual, expected, strict=True):
        assert got.dtype == tf.float32
        assert tuple(got.shape) == want.shape
        np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol * scale + 1e-7)


def assert_exact(model, x, y, sample_weight=None, rtol=1e-4, **kwargs):
    """Compares clipped sums of a batch with gradients of the examples one by one."""
    losses, gradients = example_gradients(model, x, y, sample_weight)
    clip = median_clip(gradients)
    result = traced(model, x, y, sample_weight, clip=clip, **kwargs)
    np.testing.assert_allclose(result.norms, norms_of(gradients), rtol=rtol, atol=1e-6)
    np.testing.assert_allclose(result.losses, losses, rtol=1e-4, atol=1e-6)
    assert_sums_close(result.sums, clipped_sums(gradients, clip), rtol)
    return result


def images(seed=0, batch=5, size=8, channels=3):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(batch, size, size, channels)).astype("f4")


def sequences(seed=0, batch=5, length=6, width=4):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(batch, length, width)).astype("f4")


def tokens(seed=0, batch=5, length=7, vocabulary=5):
    rng = np.random.default_rng(seed)
    return rng.integers(0, vocabulary, size=(batch, length)).astype("i4")


def labels(seed=1, batch=5, classes=3):
    return np.random.default_rng(seed).integers(0, classes, size=batch)


def classifier(*layers, inputs, dtype=None):
    """A compiled classifier into 3 classes."""
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [keras.Input(inputs, dtype=dtype), *layers, keras.layers.Flatten()]
    )
    model.add(keras.layers.Dense(3, activation="softmax"))
    model.compile(loss="sparse_categorical_crossentropy")
    randomize(model)
    return model


def randomize(model, seed=5):
    """Moves zero biases and unit scales away from where gradients are special."""
    rng = np.random.default_rng(seed)
    for variable in model.trainable_variables:
        noise = 0.1 * rng.normal(size=tuple(variable.shape))
        variable.assign(np.asarray(variable) + noise)
