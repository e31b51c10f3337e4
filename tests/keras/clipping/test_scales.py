"""Scaled coordinates, beside gradients that are taken, scaled and clipped one by one."""

import math

import clipping_reference as reference
import keras
import numpy as np
import pytest
import tensorflow as tf
from test_groups import group_sums

from tf_bandmf.keras.clipping import clipped_gradient_sums
from tf_bandmf.keras.clipping.sums.settings import Clipping

layers = keras.layers
CLIP = 0.3


def embedding_model():
    return reference.classifier(
        layers.Embedding(9, 5), layers.LSTM(4), inputs=(6,), dtype="int32"
    )


def image_model():
    return reference.classifier(
        layers.Conv2D(4, 3),
        layers.GroupNormalization(2),
        layers.Dense(200),
        layers.Dense(201),
        inputs=(8, 8, 3),
    )


def words(batch=5):
    return reference.tokens(batch=batch, length=6, vocabulary=9)


MODELS = {
    "embedding": (embedding_model, words),
    "images": (image_model, reference.images),
}


def random_scales(model, seed=0):
    rng = np.random.default_rng(seed)
    return [
        tf.constant(10.0 ** rng.uniform(-2, 1, tuple(v.shape)), tf.float32)
        for v in model.trainable_variables
    ]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"microbatch_size": 2},
        {"clipping": Clipping("automatic")},
        {"clipping": Clipping(groups="layers")},
        {"loss_scale_factor": 8.0},
    ],
)
@pytest.mark.parametrize("name", list(MODELS))
@pytest.mark.slow_cases(but=["images-options4"])
def test_norms_and_sums_are_those_of_scaled_gradients(name, options):
    make, inputs = MODELS[name]
    model, x, y = make(), inputs(), reference.labels()
    scales = random_scales(model)
    _, gradients = reference.example_gradients(model, x, y)
    scaled = [
        [g * s.numpy() for g, s in zip(gs, scales, strict=True)] for gs in gradients
    ]
    result = reference.traced(model, x, y, clip=CLIP, scales=scales, **options)
    np.testing.assert_allclose(result.norms, reference.norms_of(scaled), rtol=1e-4)
    clipping = options.get("clipping", Clipping())
    members, clips = clipping.grouping(model.trainable_variables, CLIP)
    expected = group_sums(scaled, members, clips, clipping.automatic)
    reference.assert_sums_close(result.sums, expected)
    for actual, given in zip(result.scales, scales, strict=True):
        np.testing.assert_array_equal(actual, given)


@pytest.mark.slow_cases("images")
@pytest.mark.parametrize("name", list(MODELS))
@pytest.mark.invariant(17)
def test_a_scaled_contribution_has_at_most_the_clip_norm(name):
    make, inputs = MODELS[name]
    model, x, y = make(), inputs(batch=1), reference.labels(batch=1)
    sums = reference.traced(model, x, y, clip=1e-2, scales=random_scales(model)).sums
    norm = math.sqrt(sum(float(np.sum(np.square(s, dtype="f8"))) for s in sums))
    assert 0.99e-2 < norm <= 1e-2


@pytest.mark.slow_cases("nan", "3e+38", "0.0")
@pytest.mark.parametrize("value", [0.0, np.nan, np.inf, 3e38])
@pytest.mark.invariant(17)
def test_no_scale_lifts_a_contribution_above_the_clip_norm(value):
    model, x, y = image_model(), reference.images(batch=1), reference.labels(batch=1)
    scales = random_scales(model)
    scales[0] = tf.fill(scales[0].shape, tf.constant(value, tf.float32))
    sums = reference.traced(model, x, y, clip=1e-2, scales=scales).sums
    norm = math.sqrt(sum(float(np.sum(np.square(s, dtype="f8"))) for s in sums))
    assert norm <= 1e-2
    # What does not count adds exactly zero; the other weights of a scale of zero count.
    assert (norm > 0.99e-2) == (value == 0.0)


def test_units_are_scaled_after_their_rows_are_added():
    model = image_model()
    x, y = reference.images(batch=6), reference.labels(batch=6)
    scales = random_scales(model)
    _, gradients = reference.example_gradients(model, x, y)
    units = [
        [(a + b) / 2 * s.numpy() for a, b, s in zip(first, second, scales, strict=True)]
        for first, second in zip(gradients[::2], gradients[1::2], strict=True)
    ]
    actual = clipped_gradient_sums(
        model,
        x.reshape(3, 2, *x.shape[1:]),
        y.reshape(3, 2),
        l2_norm_clip=CLIP,
        rows=tf.ones([3, 2], tf.bool),
        scales=scales,
    )
    np.testing.assert_allclose(actual.norms, reference.norms_of(units), rtol=1e-4)
    reference.assert_sums_close(actual.sums, reference.clipped_sums(units, CLIP))


def test_scales_have_the_shapes_of_the_weights():
    model = image_model()
    with pytest.raises(ValueError, match="shapes"):
        clipped_gradient_sums(
            model,
            reference.images(),
            reference.labels(),
            l2_norm_clip=1.0,
            scales=random_scales(model)[1:],
        )
