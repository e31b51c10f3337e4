"""Jobs that users bring, from plain code to what they serve: each learns, privately.

Others are examples (growing data, adapters of a language model, early stopping) or code on
pages (a GAN, tuning); those of texts and tables have a file of their own.
"""

import jobs
import keras
import numpy as np
import pytest
import sklearn.datasets
import tensorflow as tf

import tf_bandmf
import tf_bandmf.keras

layers = keras.layers
pytestmark = pytest.mark.slow


def digits():
    """Handwritten digits of 8 x 8, in [0, 1], and their classes; in random order."""
    actual = sklearn.datasets.load_digits()
    order = np.random.default_rng(0).permutation(len(actual.target))
    images = (actual.images[order, :, :, None] / 16).astype(np.float32)
    return images, actual.target[order].astype(np.int32)


def test_digits_with_a_convolutional_network():
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(16, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dropout(0.1),
            layers.Dense(10, activation="softmax"),
        ]
    )
    x, y = digits()
    jobs.trained(model, x[:1440], y[:1440], "sparse_categorical_crossentropy", 0.5)
    assert np.mean(model.predict(x[1440:], verbose=0).argmax(1) == y[1440:]) > 0.85


@keras.saving.register_keras_serializable("tests")
class Code(layers.Layer):
    """A random code, and its divergence from the standard normal."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seeds = keras.random.SeedGenerator(1)

    def call(self, mean, log_variance):
        noise = keras.random.normal(keras.ops.shape(mean), seed=self.seeds)
        code = mean + keras.ops.exp(0.5 * log_variance) * noise
        parts = 1 + log_variance - mean**2 - keras.ops.exp(log_variance)
        return code, -0.5 * keras.ops.sum(parts, axis=-1)


def test_a_variational_autoencoder_of_digits():
    keras.utils.set_random_seed(0)
    x = digits()[0].reshape(-1, 64)
    pixels = keras.Input((64,))
    hidden = layers.Dense(64, activation="relu")(pixels)
    mean, log_variance = layers.Dense(4)(hidden), layers.Dense(4)(hidden)
    code, divergence = Code()(mean, log_variance)
    decoder = keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(64, activation="relu"),
            layers.Dense(64, activation="sigmoid"),
        ]
    )
    vae = keras.Model(pixels, {"image": decoder(code), "divergence": divergence})

    def distance(image, decoded):
        return keras.ops.sum((image - decoded) ** 2, axis=-1)

    jobs.trained(
        vae,
        x[:1500],
        {"image": x[:1500], "divergence": np.zeros(1500, np.float32)},
        {"image": distance, "divergence": lambda nothing, actual: actual},
        2.0,
        20,
        75,
        loss_weights={"image": 1.0, "divergence": 0.1},
    )
    codes = keras.Model(pixels, mean).predict(x[1500:], verbose=0)
    errors = distance(x[1500:], decoder.predict(codes, verbose=0))
    of_mean = distance(x[1500:], x[:1500].mean(axis=0))
    assert np.mean(errors) < 0.85 * np.mean(of_mean)
    drawn = decoder.predict(np.random.default_rng(0).normal(size=(99, 4)), verbose=0)
    assert drawn.std(axis=0).max() > 0.1  # images differ


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
    jobs.trained(unet, x, y, "binary_crossentropy", 1.0, batches={"map": flipped})
    x, y = squares(128, 1)
    actual = unet.predict(x, verbose=0) > 0.5
    both, either = (actual & (y > 0)).sum(), (actual | (y > 0)).sum()
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
    jobs.trained(model, *sentences(2048), "binary_crossentropy", 4.0, 12, 128)
    x, y = sentences(512)
    assert np.mean((model.predict(x, verbose=0)[:, 0] > 0.5) == y) > 0.8


def test_several_inputs_and_outputs_with_adam_and_what_is_served(tmp_path):
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    x = [rng.normal(size=(2048, size)).astype(np.float32) for size in (6, 4)]
    y = [(x[0][:, 0] + x[1][:, 0] > 0).astype(np.int32), x[0][:, 1:2] - x[1][:, 1:2]]
    inputs = [keras.Input((6,)), keras.Input((4,))]
    hidden = layers.Dense(16, activation="relu")(layers.Concatenate()(inputs))
    sign = layers.Dense(2, activation="softmax", name="sign")(hidden)
    model = keras.Model(inputs, [sign, layers.Dense(1, name="difference")(hidden)])
    rates = keras.optimizers.schedules.CosineDecay(2e-2, 160)
    average = {"use_ema": True, "ema_momentum": 0.9}
    adam = keras.optimizers.AdamW(rates, 1e-4, clipnorm=1.0, **average)
    test = [part[1800:] for part in x], [part[1800:] for part in y]
    callbacks = [
        keras.callbacks.EarlyStopping("val_loss", patience=3),
        keras.callbacks.ModelCheckpoint(tmp_path / "best.keras", save_best_only=True),
    ]
    jobs.trained(
        model,
        [part[:1800] for part in x],
        [part[:1800] for part in y],
        ["sparse_categorical_crossentropy", "mse"],
        adam,
        batch_size=100,
        fit={"validation_data": test, "callbacks": callbacks},
        loss_weights=[1.0, 0.5],
    )
    released = tf_bandmf.keras.to_plain(model)
    actual = released.predict(test[0], verbose=0)
    assert np.mean(actual[0].argmax(1) == test[1][0]) > 0.9
    assert np.corrcoef(actual[1][:, 0], test[1][1][:, 0])[0, 1] > 0.9
    released.export(str(tmp_path / "served"), verbose=False)
    loaded = tf.saved_model.load(str(tmp_path / "served"))
    for served, wanted in zip(loaded.serve(test[0]), actual):
        np.testing.assert_allclose(served, wanted, atol=1e-5)
    best = keras.saving.load_model(tmp_path / "best.keras").predict(test[0], verbose=0)
    assert np.mean(best[0].argmax(1) == test[1][0]) > 0.9


def test_windows_of_a_series_that_are_read_in_their_order():
    keras.utils.set_random_seed(0)
    rng, hours, width = np.random.default_rng(0), np.arange(2000), 24
    series = np.sin(hours / 4) + 0.1 * rng.normal(size=2000)
    series = series.astype(np.float32)[:, None]
    windows = [
        keras.utils.timeseries_dataset_from_array(
            part[:-width], part[width:, 0], width, batch_size=64, shuffle=False
        )
        for part in (series[:1600], series[1600:])
    ]
    model = keras.Sequential([keras.Input((width, 1)), layers.LSTM(8), layers.Dense(1)])
    plan = {"unit": "one window", "num_examples": 1600 - 2 * width + 1}
    jobs.trained(model, windows[0], None, "mse", 0.2, 5, plan=plan)
    assert model.evaluate(windows[1], verbose=0) < 0.1 < series.var() / 4


def test_a_model_each_week_under_one_budget(tmp_path):
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    ledger = tf_bandmf.Ledger(f"sqlite:///{tmp_path}/weekly.db")
    # A click is in one week: each week's clicks are a data set of their own.
    weeks = ["W1", "W2", "W3"]
    for week in weeks:
        ledger.add_dataset(week, unit="one click", epsilon=2, delta=1e-5)
    model = keras.Sequential([keras.Input((8,)), layers.Dense(1, activation="sigmoid")])
    for week in weeks:
        x = rng.normal(size=(1000, 8)).astype(np.float32)
        y = (x[:, 0] + x[:, 1] > 0).astype(np.int32)
        if week != "W1":
            # A ledger refuses a test seed: the noise is secret, and the margin wide.
            assert np.mean((model.predict(x, verbose=0)[:, 0] > 0.5) == y) > 0.75
        plan = tf_bandmf.plan(
            "bisr:8",
            epsilon=2,
            delta=1e-5,
            num_examples=1000,
            batch_size=50,
            epochs=1,
            unit="one click",
        )
        plan = ledger.bind(plan, week)
        tf_bandmf.keras.make_private(model)
        optimizer = tf_bandmf.keras.PrivateOptimizer(
            keras.optimizers.SGD(1.0), plan, additional_run=True
        )
        model.compile(optimizer, "binary_crossentropy")
        model.fit(plan.batches(x, y), epochs=1, verbose=0)
        model = tf_bandmf.keras.to_plain(model)
    spent = [ledger.balance(week).spent for week in weeks]
    np.testing.assert_allclose(spent, 2.0, rtol=1e-6)
    with pytest.raises(tf_bandmf.ledger.BudgetExceededError, match="'W1'"):
        ledger.bind(plan, "W1")
