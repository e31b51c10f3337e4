"""Jobs whose inputs are texts, columns or identities: each learns, privately."""

import jobs
import keras
import numpy as np
import pytest
import tensorflow as tf

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
    jobs.trained(
        core,
        {name: column[:4000] for name, column in columns.items()},
        leaves[:4000],
        "binary_crossentropy",
        0.5,
        batch_size=200,
        batches={"map": encode},
        fit={"class_weight": {0: 1.0, 1: 6.0}},
    )
    test = {name: tf.constant(column[4000:]) for name, column in columns.items()}
    actual, known = model.predict(test, verbose=0)[:, 0], leaves[4000:]
    assert keras.metrics.AUC()(known, actual) > 0.7
    right = (actual > 0.5) == known
    assert right[known == 0].mean() + right[known == 1].mean() > 2 * 0.62


def opinions(count, seed, length):
    """Texts with one word of their class, somewhere."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, count).astype(np.int32)
    words = np.array([f"w{i}" for i in range(30)])[rng.integers(0, 30, (count, length))]
    places = rng.integers(0, length, count)
    words[np.arange(count), places] = np.array(["bad", "fine"])[y]
    return np.array([" ".join(row) for row in words]), y


VOCABULARY = ["bad", "fine", *(f"w{i}" for i in range(30))]


def test_texts_with_a_convolution_and_attention():
    keras.utils.set_random_seed(0)
    vectors = layers.TextVectorization(output_sequence_length=12, vocabulary=VOCABULARY)
    text = keras.Input((), dtype="string")
    words = layers.Embedding(len(VOCABULARY) + 2, 16)(vectors(text))
    words = layers.Conv1D(16, 3, padding="same", activation="relu")(words)
    words = layers.LayerNormalization()(words + layers.Attention()([words, words]))
    pooled = layers.GlobalMaxPooling1D()(words)
    model = keras.Model(text, layers.Dense(1, activation="sigmoid")(pooled))
    encode, core = tf_bandmf.keras.split_preprocessing(model)
    loss = "binary_crossentropy"
    told = opinions(2000, 0, 12)
    jobs.trained(core, *told, loss, 1.0, 5, 100, batches={"map": encode})
    texts, y = opinions(500, 1, 12)
    actual = model.predict(tf.constant(texts), verbose=0)[:, 0] > 0.5
    assert np.mean(actual == y) > 0.85


def test_adapters_of_a_language_model_on_texts():
    models = pytest.importorskip("keras_hub").models
    keras.utils.set_random_seed(0)
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *VOCABULARY]
    tokenizer = models.BertTokenizer(vocabulary=vocabulary)
    preprocessor = models.BertTextClassifierPreprocessor(tokenizer, sequence_length=8)
    backbone = models.BertBackbone(
        vocabulary_size=len(vocabulary),
        num_layers=1,
        num_heads=2,
        hidden_dim=16,
        intermediate_dim=32,
        max_sequence_length=8,
        dropout=0.0,
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    # Public texts, whose classes are the other way around, make the backbone.
    public = models.BertTextClassifier(backbone, 2, preprocessor=preprocessor)
    public.compile(
        optimizer=keras.optimizers.Adam(1e-2), loss=loss, weighted_metrics=[]
    )
    texts, y = opinions(2000, 2, 6)
    public.fit(texts, 1 - y, epochs=6, batch_size=50, verbose=0)
    task = models.BertTextClassifier(backbone, 2, preprocessor=None, dropout=0.0)
    backbone.enable_lora(4)
    told = opinions(1600, 0, 6)
    batches = {"map": preprocessor}
    jobs.trained(task, *told, loss, 0.5, 4, 80, batches=batches, weighted_metrics=[])
    texts, y = opinions(400, 1, 6)
    released = tf_bandmf.keras.to_plain(task)
    released.preprocessor = preprocessor
    actual = released.predict(texts, verbose=0).argmax(axis=1)
    assert np.mean(actual == y) > 0.85


def test_a_recommender_whose_units_are_users():
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    # Items of five kinds; a user likes one kind. Item 0 is padding.
    users, items, kinds = 1500, 50, 5
    of_kind = np.arange(1, items + 1).reshape(-1, kinds).T
    owned = rng.permuted(of_kind[rng.integers(0, kinds, users)], axis=1)[:, :5]
    owned = owned.astype(np.int32)
    train, held_out = owned[:1200], owned[1200:]
    history = np.concatenate([np.delete(train, k, axis=1) for k in range(3)])
    item, user = train[:, :3].T.ravel(), np.tile(np.arange(1200), 3)

    def with_negatives(x, y, seed):
        drawn = tf.random.stateless_uniform([8], seed, 1, items + 1, tf.int32)
        return {**x, "candidates": tf.concat([y[None], drawn], 0)}, tf.constant(0)

    inputs = {
        "history": keras.Input((4,), dtype="int32", name="history"),
        "candidates": keras.Input((None,), dtype="int32", name="candidates"),
    }
    table = layers.Embedding(items + 1, 8, mask_zero=True)
    query = layers.GlobalAveragePooling1D()(table(inputs["history"]))
    scores = layers.Dot((2, 1))([table(inputs["candidates"]), layers.Dense(8)(query)])
    model = keras.Model(inputs, scores)
    jobs.trained(
        model,
        {"history": history},
        item,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        4.0,
        batch_size=100,
        batches={"map": with_negatives, "users": user, "rows_per_user": 3},
        clipping="automatic",
    )
    every = np.tile(np.arange(1, items + 1, dtype=np.int32), (len(held_out), 1))
    asked = {"history": held_out[:, 1:], "candidates": every}
    scores = model.predict(asked, verbose=0)
    np.put_along_axis(scores, held_out[:, 1:] - 1, -np.inf, axis=1)
    first = np.argsort(-scores, axis=1)[:, :6] + 1
    assert (first == held_out[:, :1]).any(axis=1).mean() > 0.5  # 0.13 by chance


def test_triplets():
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    kind = rng.integers(0, 2, 2000)
    x = rng.normal(size=(2000, 3, 10)).astype(np.float32)
    x[..., 0] += 4 * np.stack([kind, kind, 1 - kind], axis=1)

    def distances(codes):
        return keras.ops.sum((codes[:, :1] - codes[:, 1:]) ** 2, axis=-1)

    def loss(nothing, codes):
        near, far = keras.ops.unstack(distances(codes), axis=1)
        return keras.ops.relu(1 + near - far)

    inputs = keras.Input((3, 10))
    tower = [layers.Dense(16, activation="relu"), layers.Dense(4)]
    model = keras.Model(inputs, tower[1](tower[0](inputs)))

    def right():
        near, far = np.array(distances(model.predict(x, verbose=0))).T
        return np.mean(near < far)

    before = right()
    jobs.trained(model, x, np.zeros(2000, np.float32), loss, 0.5, batch_size=100)
    assert right() > 0.9 > before + 0.2
