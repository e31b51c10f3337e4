"""Jobs that users bring, from plain code to what they serve: each learns, privately.

Others are examples (digits, growing data, adapters of a language model, early stopping, a
recommender) or code on pages (a GAN, tuning).
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_plans import small_plan

import tf_bandmf
import tf_bandmf.keras

layers = keras.layers
pytestmark = pytest.mark.slow


def trained(
    model, x, y, loss, optimizer, batch_size, batches=None, fit=None, **options
):
    """A private model at epsilon = 8, with what a user would hear of its records."""
    plan = small_plan(
        "bisr:8",
        len(tf.nest.flatten(x)[0]),
        batch_size,
        10,
        epsilon=8,
        delta=1e-4,
        test_seed=0,
    ).reserve(counts=0.01)
    tf_bandmf.keras.make_private(model)
    model.compile(tf_bandmf.keras.PrivateOptimizer(optimizer, plan), loss, **options)
    schedule = plan.batches(x, y, **(batches or {}))
    model.fit(schedule, epochs=10, verbose=0, **(fit or {}))
    counts = model.private_counts()
    assert abs(counts.bad) < 6 * counts.noise
    return model


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
    trained(
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


def test_a_table_with_texts_and_a_rare_class():
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    contracts, fees = rng.integers(0, 3, 5000), rng.gamma(3, 20, 5000)
    score = 1.8 * (contracts == 0) + 0.02 * (fees - 60) - 2.6
    leaves = (rng.random(5000) < 1 / (1 + np.exp(-score))).astype(np.int32)
    assert 0.1 < leaves.mean() < 0.2
    columns = {
        "contract": np.array(["month", "year", "two years"])[contracts][:, None],
        "fee": fees[:, None].astype(np.float32),
    }
    inputs = {
        "contract": keras.Input((1,), dtype="string", name="contract"),
        "fee": keras.Input((1,), name="fee"),
    }
    lookup = layers.StringLookup(vocabulary=["month", "year"], output_mode="multi_hot")
    scaled = layers.Normalization(mean=60.0, variance=1200.0)(inputs["fee"])
    features = layers.Concatenate()([lookup(inputs["contract"]), scaled])
    hidden = layers.Dense(8, activation="relu")(features)
    model = keras.Model(inputs, layers.Dense(1, activation="sigmoid")(hidden))

    encode, core = tf_bandmf.keras.split_preprocessing(model)
    trained(
        core,
        {name: column[:4000] for name, column in columns.items()},
        leaves[:4000],
        "binary_crossentropy",
        keras.optimizers.SGD(0.5),
        batch_size=200,
        batches={"map": encode},
        fit={"class_weight": {0: 1.0, 1: 6.0}},
    )
    test = {name: tf.constant(column[4000:]) for name, column in columns.items()}
    actual, known = model.predict(test, verbose=0)[:, 0], leaves[4000:]
    assert keras.metrics.AUC()(known, actual) > 0.7
    right = (actual > 0.5) == known
    assert right[known == 0].mean() + right[known == 1].mean() > 2 * 0.62
