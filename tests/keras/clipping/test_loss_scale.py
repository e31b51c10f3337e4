"""Losses scaled in the backward pass: exact in float32, and what makes float16 work."""

import clipping_reference as reference
import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_bandmf.keras.clipping import (
    UnsupportedModelError,
    clipped_gradient_sums,
)

layers = keras.layers
SCALE = 1024.0


def small_cnn():
    return reference.classifier(
        layers.Conv2D(4, 3, activation="relu"),
        layers.GroupNormalization(2),
        layers.PReLU(),
        inputs=(8, 8, 3),
    )


def small_text():
    return reference.classifier(
        layers.Embedding(5, 8),
        layers.EinsumDense("btc,ch->bth", (7, 4), bias_axes="h"),
        layers.LayerNormalization(),
        layers.Dense(6, activation="tanh"),
        inputs=(7,),
        dtype="int32",
    )


CASES = [(small_cnn, reference.images), (small_text, reference.tokens)]


def pair(make):
    """The same model in float32 and in mixed_float16."""
    keras.config.set_dtype_policy("mixed_float16")
    try:
        half = make()
    finally:
        keras.config.set_dtype_policy("float32")
    full = make()
    half.set_weights(full.get_weights())
    # Keras wraps the optimizer, which these tests do not use.
    half.optimizer = None
    return full, half


def error(got, want):
    """Of a list of arrays, relative to the norm of the second."""
    flat = [np.concatenate([np.ravel(a) for a in arrays]) for arrays in (got, want)]
    return np.linalg.norm(flat[0] - flat[1]) / np.linalg.norm(flat[1])


@pytest.mark.parametrize(("make", "data"), CASES)
@pytest.mark.slow_cases("small_text-*")
def test_scaling_is_exact_in_float32(make, data):
    model, x, y = make(), data(), reference.labels()
    plain = reference.traced(model, x, y)
    scaled = reference.traced(model, x, y, loss_scale_factor=SCALE)
    for a, b in zip(plain.sums, scaled.sums, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(plain.norms, scaled.norms, rtol=1e-6)


@pytest.mark.parametrize("microbatch_size", [None, 2])
@pytest.mark.parametrize(("make", "data"), CASES)
@pytest.mark.slow_cases(but=["small_text-tokens-None"])
def test_float16_gives_the_gradients_of_float32(make, data, microbatch_size):
    full, half = pair(make)
    x, y = data(), reference.labels()
    want = reference.traced(full, x, y)
    got = reference.traced(
        half, x, y, microbatch_size=microbatch_size, loss_scale_factor=SCALE
    )
    assert half.layers[0].compute_dtype == "float16"
    np.testing.assert_allclose(got.norms, want.norms, rtol=1e-2)
    assert error(got.sums, want.sums) < 1e-2
    assert all(total.dtype == tf.float32 for total in got.sums)


@pytest.mark.parametrize(("make", "data"), CASES)
@pytest.mark.slow_cases("small_text-*")
def test_float16_contributions_are_within_the_clip_norm(make, data):
    _, half = pair(make)
    x, y = data(), reference.labels()
    for clip in (1e-3, 0.1, 2.0):

        @tf.function(autograph=False)
        def clipped(x, y, clip=clip):
            return clipped_gradient_sums(
                half, x, y, l2_norm_clip=clip, loss_scale_factor=SCALE
            )

        for index in range(len(x)):
            one = clipped(x[index : index + 1], y[index : index + 1])
            norm = np.sqrt(sum(float(np.sum(np.square(s))) for s in one.sums))
            assert norm <= clip * (1 + 1e-5)
            # And are not smaller than they have to be.
            wanted = min(clip, float(one.norms[0]))
            np.testing.assert_allclose(norm, wanted, rtol=1e-4)


@pytest.mark.slow
def test_small_gradients_survive_by_the_scale_alone():
    full, half = pair(small_cnn)
    x, y, weight = reference.images(), reference.labels(), np.full(5, 1e-7, "f4")
    want = reference.traced(full, x, y, weight)
    actual = {
        scale: error(
            reference.traced(half, x, y, weight, loss_scale_factor=scale).sums,
            want.sums,
        )
        for scale in (1.0, 2.0**15)
    }
    assert actual[1.0] > 0.1
    assert actual[2.0**15] < 1e-2


@pytest.mark.parametrize("microbatch_size", [None, 2])
@pytest.mark.slow_cases("None")
@pytest.mark.invariant(5)
def test_an_example_that_overflows_contributes_zero(microbatch_size):
    _, half = pair(small_cnn)
    x, y = reference.images(), reference.labels()
    weight = np.ones(5, "f4")
    weight[1] = 1e5
    options = {"loss_scale_factor": SCALE, "microbatch_size": microbatch_size}
    got = reference.traced(half, x, y, weight, **options)
    assert not np.isfinite(got.norms[1])
    others = [0, 2, 3, 4]
    assert np.all(np.isfinite(np.asarray(got.norms)[others]))
    want = reference.traced(half, x[others], y[others], weight[others], **options)
    for a, b in zip(got.sums, want.sums, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_float16_without_a_scale_is_refused():
    _, half = pair(small_cnn)
    with pytest.raises(UnsupportedModelError, match="loss_scale_factor=1024"):
        reference.traced(half, reference.images(), reference.labels())


@pytest.mark.parametrize("scale", [0.5, 3.0, -2.0, np.inf, np.nan, True, "dynamic"])
def test_a_scale_that_does_not_cancel_exactly_is_refused(scale):
    model = small_cnn()
    with pytest.raises(ValueError, match="power of two"):
        reference.traced(
            model, reference.images(), reference.labels(), loss_scale_factor=scale
        )
