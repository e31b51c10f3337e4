"""Tests how a model is split into preprocessing without weights and a private model."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_models import make_plan, make_private_model, plan_and_model

import tf_bandmf
import tf_bandmf.keras
from tf_bandmf.keras.clipping.sums.clipped_sums import clipped_gradient_sums

M = 24
_RNG = np.random.default_rng(0)
CATEGORIES = np.array(["x", "y", "z"])[_RNG.integers(0, 3, M)]
NUMBERS = _RNG.normal(size=(M, 2)).astype(np.float32)
LABELS = _RNG.integers(0, 2, M).astype(np.int32)


def _text():
    texts = np.array(["a b", "b c d", "c"])[_RNG.integers(0, 3, M)]
    vectors = keras.layers.TextVectorization(max_tokens=20, output_sequence_length=4)
    vectors.adapt(texts)
    layers = [vectors, keras.layers.Embedding(20, 4), keras.layers.Flatten()]
    inputs = keras.Input((), dtype="string")
    return keras.Sequential([inputs, *layers, keras.layers.Dense(2)]), texts


def _feature_space():
    space = keras.utils.FeatureSpace(
        features={
            "c": keras.utils.FeatureSpace.string_categorical(output_mode="one_hot"),
            "n": keras.utils.FeatureSpace.float_normalized(),
            "d": keras.utils.FeatureSpace.float_discretized(num_bins=4),
        },
        crosses=[keras.utils.FeatureSpace.cross(("c", "d"), crossing_dim=8)],
    )
    rows = {"c": CATEGORIES, "n": NUMBERS[:, 0], "d": NUMBERS[:, 1]}
    space.adapt(tf.data.Dataset.from_tensor_slices(rows).batch(8))
    encoded = space.get_encoded_features()
    model = keras.Model(space.get_inputs(), keras.layers.Dense(2)(encoded))
    return model, {name: value[:, None] for name, value in rows.items()}


@pytest.mark.slow
@pytest.mark.parametrize("make", [_text, _feature_space])
def test_a_model_with_preprocessing_trains_in_two_parts(make):
    model, x = make()
    raw = tf.nest.map_structure(tf.convert_to_tensor, x)
    before = np.array(model(raw))
    encode, core = tf_bandmf.keras.split_preprocessing(model)
    np.testing.assert_allclose(core(encode(raw)), before, rtol=1e-5)
    assert not encode.trainable_variables
    plan = make_plan(num_examples=M, epochs=1)
    make_private_model(plan, model=core)
    core.fit(plan.batches(x, LABELS, map=encode), verbose=0)
    after = np.array(model(raw))
    assert np.abs(after - before).max() > 0
    plain = tf_bandmf.keras.to_plain(core)
    np.testing.assert_allclose(plain(encode(raw)), after, rtol=1e-4, atol=1e-5)


def test_a_layer_that_reads_texts_may_stay_in_the_model():
    model, x = _text()
    plan, _ = plan_and_model(num_examples=M, model=model)
    model.fit(plan.batches(x, LABELS), verbose=0, epochs=1)
    sums = [
        clipped_gradient_sums(model, x[rows], LABELS[rows], l2_norm_clip=0.1).sums
        for rows in (slice(6), *(slice(i, i + 1) for i in range(6)))
    ]
    for together, *alone in zip(*sums):
        total = sum(map(tf.convert_to_tensor, alone))
        np.testing.assert_allclose(together, total, atol=1e-6)


def test_what_cannot_be_cut_is_refused():
    inputs = keras.Input((3,))
    with pytest.raises(ValueError, match="does not begin with"):
        cut = keras.Model(inputs, keras.layers.Dense(1)(inputs))
        tf_bandmf.keras.split_preprocessing(cut)
    scaled = keras.layers.Rescaling(0.5)(inputs)
    with pytest.raises(ValueError, match="outputs preprocessed inputs"):
        outputs = [keras.layers.Dense(1)(scaled), scaled]
        tf_bandmf.keras.split_preprocessing(keras.Model(inputs, outputs))
