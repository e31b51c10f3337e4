"""Jobs that users bring, from plain code to what they serve: each learns, privately.

Others are examples (a rare class, recommenders, growing data, adapters of a language model,
early stopping) or code on pages (a GAN, a variational autoencoder, time series, tuning).
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_bandmf
import tf_bandmf.keras

layers = keras.layers
pytestmark = pytest.mark.slow


def trained(model, x, y, loss, rate, epochs=10, batch_size=64, map=None, **options):
    """A private model, at epsilon = 8, with what a user would hear of its records."""
    plan = tf_bandmf.plan(
        "bisr:8",
        epsilon=8,
        delta=1e-4,
        num_examples=len(tf.nest.flatten(x)[0]),
        batch_size=batch_size,
        epochs=epochs,
    ).reserve(counts=0.01)
    tf_bandmf.keras.make_private(model)
    optimizer = tf_bandmf.keras.PrivateOptimizer(keras.optimizers.SGD(rate), plan)
    model.compile(optimizer, loss, **options)
    model.fit(plan.batches(x, y, map=map), epochs=epochs, verbose=0)
    counts = model.private_counts()
    assert abs(counts.bad) < 6 * counts.noise
    return model


def squares(count, seed):
    """Images of 16 x 16 with a bright square each, and masks of the squares."""
    rng = np.random.default_rng(seed)
    masks = np.zeros((count, 16, 16, 1), np.float32)
    for mask, (a, b) in zip(masks, rng.integers(0, 10, (count, 2))):
        mask[a : a + 6, b : b + 6] = 1.0
    noise = rng.normal(size=masks.shape).astype(np.float32)
    return masks + 0.5 * noise, masks


def test_segmentation_with_augmentation_of_image_and_mask():
    keras.utils.set_random_seed(0)
    inputs = keras.Input((16, 16, 1))
    fine = layers.Conv2D(8, 3, padding="same", activation="relu")(inputs)
    coarse = layers.Conv2D(8, 3, 2, padding="same", activation="relu")(fine)
    back = layers.Conv2DTranspose(8, 2, 2, activation="relu")(coarse)
    both = layers.Concatenate()([fine, back])
    unet = keras.Model(inputs, layers.Conv2D(1, 1, activation="sigmoid")(both))

    def flipped(image, mask, seed):
        pair = tf.concat([image, mask], axis=-1)
        pair = tf.image.stateless_random_flip_left_right(pair, seed)
        return pair[..., :1], pair[..., 1:]

    x, y = squares(512, 0)
    trained(unet, x, y, "binary_crossentropy", 1.0, map=flipped)
    x, y = squares(128, 1)
    found = unet.predict(x, verbose=0) > 0.5
    both, either = (found & (y > 0)).sum(), (found | (y > 0)).sum()
    assert both / either > 0.6  # 0.14 for a mask of everything


def test_sentiment_of_sequences_with_a_bidirectional_lstm():
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)

    def sentences(count):
        y = rng.integers(0, 2, count)
        words = rng.integers(3, 40, (count, 12))
        # A word of the class, somewhere.
        words[np.arange(count), rng.integers(0, 12, count)] = 1 + y
        return words.astype(np.int32), y.astype(np.int32)

    model = keras.Sequential(
        [
            keras.Input((12,), dtype="int32"),
            layers.Embedding(40, 8),
            layers.Bidirectional(layers.LSTM(8, return_sequences=True)),
            layers.GlobalMaxPooling1D(),
            layers.Dense(1, activation="sigmoid"),
        ]
    )
    trained(model, *sentences(2048), "binary_crossentropy", 4.0, 12, 128)
    x, y = sentences(512)
    assert np.mean((model.predict(x, verbose=0)[:, 0] > 0.5) == y) > 0.8


def test_two_outputs_with_weights_and_what_is_served(tmp_path):
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2048, 6)).astype(np.float32)
    y = {
        "sign": (x[:, 0] + x[:, 1] > 0).astype(np.int32),
        "sum": x[:, 2:3] - x[:, 3:4],
    }
    inputs = keras.Input((6,))
    hidden = layers.Dense(16, activation="relu")(inputs)
    outputs = {
        "sign": layers.Dense(2, activation="softmax", name="sign")(hidden),
        "sum": layers.Dense(1, name="sum")(hidden),
    }
    model = trained(
        keras.Model(inputs, outputs),
        x,
        y,
        {"sign": "sparse_categorical_crossentropy", "sum": "mse"},
        0.5,
        batch_size=128,
        loss_weights={"sign": 1.0, "sum": 0.5},
    )
    released = tf_bandmf.keras.to_plain(model)
    found = released.predict(x, verbose=0)
    assert np.mean(found["sign"].argmax(1) == y["sign"]) > 0.9
    assert np.corrcoef(found["sum"][:, 0], y["sum"][:, 0])[0, 1] > 0.8
    released.export(str(tmp_path / "served"), verbose=False)
    loaded = tf.saved_model.load(str(tmp_path / "served"))
    served = loaded.serve(x[:8])
    for name in outputs:
        np.testing.assert_allclose(served[name], found[name][:8], atol=1e-5)
