"""Tests that clipped sums compiled by XLA equal those of TensorFlow's own kernels."""

import clipping_reference as reference
import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from small_models import dtype_policy

from tf_bandmf.keras.clipping.factors import norms
from tf_bandmf.keras.clipping.sums.clipped_sums import clipped_gradient_sums

FILTERS, SIDE, BATCH, CHANNELS = 80, 4, 7, 5


def wide_convolution():
    """Builds a model whose kernel is too large to form per-example gradients."""
    inputs = keras.Input((SIDE, SIDE, 64))
    h = layers.Conv2D(FILTERS, 3, padding="same", activation="relu")(inputs)
    h = layers.Dense(8, activation="gelu")(layers.Flatten()(h))
    return keras.Model(inputs, layers.Dense(3)(h))


def narrow_convolution():
    """Builds a model whose kernels are small, so per-example gradients are formed."""
    inputs = keras.Input((SIDE, SIDE, 64))
    h = layers.Conv2D(CHANNELS, 1, activation="relu")(inputs)
    h = layers.Conv2D(6, 3, padding="same", activation="relu")(h)
    return keras.Model(inputs, layers.Dense(3)(layers.Flatten()(h)))


def attention():
    inputs = keras.Input((SIDE, SIDE, 64))
    h = layers.Reshape((SIDE * SIDE, 64))(inputs)
    h = h + layers.MultiHeadAttention(2, 8)(h, h)
    h = layers.Dense(16, activation="relu")(layers.LayerNormalization()(h))
    return keras.Model(inputs, layers.Dense(3)(layers.Flatten()(h)))


def stepped(make):
    """Returns a function for clipped sums, and a batch with one infinite example."""
    keras.utils.set_random_seed(1)
    model = make()
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x = np.random.default_rng(0).normal(size=(BATCH, SIDE, SIDE, 64)).astype("f4")
    x[2, 1, 1, 1] = np.inf

    def step(x, y):
        actual = clipped_gradient_sums(model, x, y, l2_norm_clip=0.5)
        return (*actual.sums, actual.outcomes)

    return step, (tf.constant(x), tf.constant(reference.labels(batch=BATCH)))


def sums_agree(first, second):
    """Asserts that all examples have equal outcomes; returns whether the sums agree."""
    *first, outcomes = first
    *second, others = second
    assert np.array_equal(outcomes, others) and outcomes[2] == 3
    return all(np.allclose(a, b, atol=1e-5) for a, b in zip(first, second, strict=True))


@pytest.fixture
def traced_for(monkeypatch):
    """Returns a function that sets the device kind for which programs are traced."""
    return lambda kind: monkeypatch.setattr(norms, "device_kind", lambda: kind)


@pytest.mark.parametrize("make", [wide_convolution, narrow_convolution, attention])
@pytest.mark.parametrize("kind", ["CPU", "GPU"])
@pytest.mark.slow_cases(
    "CPU-*",
    "GPU-narrow*",
    "GPU-attention",
    "GPU-wide_convolution",
)
@pytest.mark.invariant(17)
def test_sums_are_equal_and_what_is_not_finite_counts_as_zero(kind, make, traced_for):
    traced_for(kind)
    step, batch = stepped(make)
    plain = tf.function(step, autograph=False)(*batch)
    compiled = tf.function(step, autograph=False, jit_compile=True)
    assert sums_agree(plain, compiled(*batch))
    # Control: the sums of another batch differ.
    other = tf.reverse(batch[0], axis=[1])
    assert not sums_agree(plain, compiled(other, batch[1]))


@pytest.mark.invariant(17)
def test_what_waits_for_the_norms_has_the_bits_of_the_layer(traced_for):
    traced_for("GPU")
    with dtype_policy("mixed_bfloat16"):
        step, batch = stepped(wide_convolution)
    compiled = tf.function(step, autograph=False, jit_compile=True)
    program = compiled.experimental_get_compiler_ir(*batch)(stage="hlo")
    waiting = [line for line in program.splitlines() if " opt-barrier(" in line]
    gradients = f"[{BATCH},{SIDE * SIDE},{FILTERS}]"
    assert any(f"bf16{gradients}" in line for line in waiting)
    assert not any(f"f32{gradients}" in line for line in waiting)
    # Norms are computed from the rounded gradients, so a single clipped example
    # contributes the clip norm.
    *sums, _ = compiled(*(tensor[:1] for tensor in batch))
    norm = np.sqrt(sum(np.sum(np.square(total)) for total in sums))
    assert 0.499 < norm <= 0.5 * 1.001
