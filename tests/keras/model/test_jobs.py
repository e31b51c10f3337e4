"""Typical jobs, from plain Keras code to predictions of a private model.

Other jobs are tested as example programs (digits, growing data, language model
adapters, early stopping, a recommender) or as code in the docs (a GAN, tuning).
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
    plan = small_plan("bisr:8", 4000, 200, 10, epsilon=8, delta=1e-4, test_seed=0)
    plan = plan.reserve(counts=0.01)
    tf_bandmf.keras.make_private(core)
    optimizer = tf_bandmf.keras.PrivateOptimizer(keras.optimizers.SGD(0.5), plan)
    core.compile(optimizer, "binary_crossentropy")
    x = {name: column[:4000] for name, column in columns.items()}
    batches = plan.batches(x, leaves[:4000], map=encode)
    core.fit(batches, epochs=10, verbose=0, class_weight={0: 1.0, 1: 6.0})
    counts = core.private_counts()
    assert abs(counts.bad) < 6 * counts.noise
    test = {name: tf.constant(column[4000:]) for name, column in columns.items()}
    actual, labels = model.predict(test, verbose=0)[:, 0], leaves[4000:]
    assert keras.metrics.AUC()(labels, actual) > 0.7
    right = (actual > 0.5) == labels
    assert right[labels == 0].mean() + right[labels == 1].mean() > 2 * 0.62
