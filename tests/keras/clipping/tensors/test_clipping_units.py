"""Units of several rows: gradients of the mean loss of a unit, clipped once."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from clipping_reference import assert_sums_close, clipped_sums, norms_of

from tf_bandmf.keras.clipping import (
    Clipping,
    UnsupportedModelError,
    clipped_gradient_sums,
)
from tf_bandmf.keras.clipping.rules import convolution

U, K = 4, 3


def dense():
    return keras.Sequential(
        [keras.Input((5,)), keras.layers.Dense(7, "tanh"), keras.layers.Dense(3)]
    ), (5,)


def wide():
    # More parameters than are formed: inner products of terms.
    return keras.Sequential(
        [keras.Input((220,)), keras.layers.Dense(220, "tanh"), keras.layers.Dense(3)]
    ), (220,)


def convolutional():
    layers = [
        keras.layers.Conv2D(4, 3, padding="same", activation="relu"),
        keras.layers.GroupNormalization(2),
        keras.layers.DepthwiseConv2D(2),
        keras.layers.Conv2D(4, 2, groups=2),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(3),
    ]
    return keras.Sequential([keras.Input((6, 6, 3)), *layers]), (6, 6, 3)


def points():
    layers = [
        keras.layers.Conv2D(4, 1, activation="tanh"),
        keras.layers.Conv2D(5, 1, strides=2),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(3),
    ]
    return keras.Sequential([keras.Input((5, 5, 3)), *layers]), (5, 5, 3)


def tokens():
    layers = [
        keras.layers.Embedding(11, 6),
        keras.layers.EinsumDense("btd,de->bte", (5, 4)),
        keras.layers.LayerNormalization(),
        keras.layers.GRU(4),
        keras.layers.Dense(3),
    ]
    return keras.Sequential([keras.Input((5,), dtype="int32"), *layers]), None


MODELS = [dense, wide, convolutional, points, tokens]


def batch(shape, seed=0):
    rng = np.random.default_rng(seed)
    if shape is None:
        x = rng.integers(0, 11, (U, K, 5)).astype(np.int32)
    else:
        x = rng.normal(size=(U, K, *shape)).astype(np.float32)
    rows = np.array([[1, 1, 1], [1, 0, 0], [1, 1, 0], [1, 1, 1]], bool)
    return x, rng.integers(0, 3, (U, K)).astype(np.int32), rows


def unit_gradients(model, x, y, rows, weights=None):
    """Gradients of the mean of the losses of a unit's rows, each row alone."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    variables = [v.value for v in model.trainable_variables]
    losses, gradients = [], []
    for unit in range(len(x)):
        places = np.flatnonzero(rows[unit])
        with tf.GradientTape() as tape:
            of_rows = [
                (1.0 if weights is None else weights[unit, k])
                * loss(y[unit, k : k + 1], model(x[unit, k : k + 1], training=True))
                for k in places
            ]
            mean = tf.add_n(of_rows) / len(places)
        actual = tape.gradient(mean, variables, unconnected_gradients="zero")
        gradients.append([np.asarray(tf.convert_to_tensor(g), "f8") for g in actual])
        losses.append(float(mean))
    return np.array(losses), gradients


def clipped(model, x, y, rows, weights=None, **changes):
    specs = [
        tf.TensorSpec([None, *np.shape(a)[1:]], tf.as_dtype(a.dtype))
        for a in (x, y, rows)
    ]

    @tf.function(autograph=False, input_signature=specs)
    def step(x, y, rows):
        options = {"l2_norm_clip": 0.5, "rows": rows, **changes}
        return clipped_gradient_sums(model, x, y, weights, **options)

    return step(x, y, rows)


def compiled(make):
    keras.utils.set_random_seed(1)
    model, shape = make()
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model, shape


@pytest.mark.parametrize("make", MODELS)
@pytest.mark.slow_cases("convolutional", "points", "wide", "tokens")
def test_norms_and_sums_are_those_of_the_mean_loss(make):
    model, shape = compiled(make)
    x, y, rows = batch(shape)
    losses, gradients = unit_gradients(model, x, y, rows)
    actual = clipped(model, x, y, rows)
    np.testing.assert_allclose(actual.losses, losses, rtol=1e-5)
    np.testing.assert_allclose(actual.norms, norms_of(gradients), rtol=5e-6)
    assert_sums_close(actual.sums, clipped_sums(gradients, 0.5), rtol=1e-3)
    assert actual.outputs.shape == (U, K, 3)


def many_channels():
    # A row's 64 terms are cheaper as inner products, the 192 of three rows formed.
    layers = [
        keras.layers.Conv2D(80, 3, padding="same"),
        keras.layers.GlobalAveragePooling2D(),
    ]
    return keras.Sequential([keras.Input((8, 8, 64)), *layers]), (8, 8, 64)


@pytest.mark.on_cpu
def test_units_of_a_convolution_are_formed_without_patches(monkeypatch):
    model, shape = compiled(many_channels)
    x, y, rows = batch(shape)
    losses, gradients = unit_gradients(model, x, y, rows)

    def refused(*arguments):
        raise AssertionError("Patches were made.")

    monkeypatch.setattr(convolution, "shifted_inputs", refused)
    actual = clipped(model, x, y, rows)
    np.testing.assert_allclose(actual.losses, losses, rtol=1e-5)
    np.testing.assert_allclose(actual.norms, norms_of(gradients), rtol=5e-6)
    assert_sums_close(actual.sums, clipped_sums(gradients, 0.5), rtol=1e-3)


@pytest.mark.parametrize("strides", [1, 2])
def test_every_way_forms_the_same_gradients_of_a_convolution(strides):
    rng = np.random.default_rng(0)
    layer = keras.layers.Conv2D(7, (3, 2), strides=strides, padding="same")
    layer.build((None, 9, 8, 5))
    x = rng.normal(size=(U * K, 9, 8, 5)).astype("f4")
    gradient = rng.normal(size=layer(x).shape).astype("f4")
    for rows in (1, K):
        convolved = convolution.Convolved(layer, x, gradient, rows)
        patches, other = convolved.from_patches(), convolved.one_by_one()
        assert patches.shape == (U * K // rows, 3, 2, 5, 7)
        np.testing.assert_allclose(other, patches, rtol=1e-4, atol=1e-4)
        if rows == 1 and convolution.groups_have_gradients():
            groups = convolved.in_groups()
            np.testing.assert_allclose(groups, patches, rtol=1e-4, atol=1e-4)


@pytest.mark.slow_cases("1", "2", "7")
@pytest.mark.parametrize("size", [1, 2, 7, 100])
def test_microbatches_of_units(size):
    model, shape = compiled(dense)
    x, y, rows = batch(shape)
    whole, grouped = (
        clipped(model, x, y, rows, microbatch_size=m) for m in (None, size)
    )
    for a, b in zip(whole.sums, grouped.sums, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(whole.outputs, grouped.outputs, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(whole.losses, grouped.losses, rtol=1e-5)


def test_sample_weights_are_those_of_rows():
    model, shape = compiled(dense)
    x, y, rows = batch(shape)
    weights = np.random.default_rng(2).random((U, K)).astype(np.float32)
    losses, gradients = unit_gradients(model, x, y, rows, weights)
    actual = clipped(model, x, y, rows, tf.constant(weights))
    np.testing.assert_allclose(actual.losses, losses, rtol=1e-5)
    np.testing.assert_allclose(actual.norms, norms_of(gradients), rtol=5e-6)


@pytest.mark.invariant(16)
def test_a_unit_sees_no_other_unit_and_no_absent_row():
    model, shape = compiled(dense)
    x, y, rows = batch(shape)
    before = clipped(model, x, y, rows)
    changed = x.copy()
    changed[0] = np.nan
    changed[3] *= 100.0
    changed[1, 1:] = 7.0  # rows that are not there
    after = clipped(model, changed, y, rows)
    np.testing.assert_array_equal(before.norms[1:3], after.norms[1:3])
    np.testing.assert_array_equal(before.losses[1:3], after.losses[1:3])
    alone = clipped(model, changed[1:4], y[1:4], rows[1:4])
    for a, b in zip(after.sums, alone.sums, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.invariant(16)
def test_rows_of_one_unit_are_kept_apart():
    inputs = keras.Input((5,))
    mixed = keras.ops.flip(keras.layers.Dense(3)(inputs), axis=0)
    model = keras.Model(inputs, mixed)
    model.compile("sgd", "mse")
    x, _, rows = batch((5,))
    with pytest.raises(UnsupportedModelError):
        clipped(model, x, np.zeros((U, K, 3), np.float32), rows)


@pytest.mark.invariant(17)
def test_a_units_contribution_is_within_the_clip_norm():
    # Two rows whose terms cancel all but for rounding.
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((256,)), keras.layers.Dense(256)])
    model.compile("sgd", "mse")
    rng = np.random.default_rng(0)
    x = 1e4 * rng.normal(size=(1, 2, 256)).astype(np.float32)
    x[0, 1] = x[0, 0] * np.float32(1 + 1e-6)
    y = model.predict(x[0], verbose=0)[None]
    y[0, 0] += 1e3
    y[0, 1] -= 1e3
    actual = clipped(model, x, y.astype(np.float32), np.ones((1, 2), bool))
    norm = np.sqrt(sum(np.sum(np.square(s, dtype="f8")) for s in actual.sums))
    assert 0.0 < norm <= 0.5 * 1.001


def test_a_unit_without_rows_contributes_nothing():
    model, shape = compiled(dense)
    x, y, rows = batch(shape)
    rows[2] = False
    actual = clipped(model, x, y, rows)
    others = [0, 1, 3]
    expected = clipped(model, x[others], y[others], rows[others])
    assert actual.norms[2] == 0.0
    for a, b in zip(actual.sums, expected.sums, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_units_of_one_row_are_examples():
    model, shape = compiled(convolutional)
    x, y, _ = batch(shape)
    units = clipped(model, x[:, :1], y[:, :1], np.ones((U, 1), bool))
    examples = clipped_gradient_sums(model, x[:, 0], y[:, 0], l2_norm_clip=0.5)
    np.testing.assert_allclose(units.norms, examples.norms, rtol=1e-5)


def test_contents_of_other_shapes_are_refused():
    model, shape = compiled(dense)
    x, y, rows = batch(shape)
    with pytest.raises(ValueError, match=r"\[U, 3"):
        clipped(model, x[:, :2], y, rows)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_automatic_clipping_is_normalization(scale):
    model, shape = compiled(dense)
    x, y, rows = batch(shape)
    weights = np.full((U, K), scale, np.float32)
    _, gradients = unit_gradients(model, x, y, rows, weights)
    actual = clipped(
        model, x, y, rows, tf.constant(weights), clipping=Clipping("automatic")
    )
    expected = [np.zeros_like(g) for g in gradients[0]]
    for norm, grads in zip(norms_of(gradients), gradients, strict=True):
        factor = 0.5 / (norm + 0.01)
        expected = [e + factor * g for e, g in zip(expected, grads, strict=True)]
    assert_sums_close(actual.sums, expected, rtol=1e-3)
    total = np.sqrt(sum(np.sum(np.square(s)) for s in actual.sums))
    assert total <= 0.5 * U
