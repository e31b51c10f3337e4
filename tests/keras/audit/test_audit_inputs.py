"""The search for records that add more than the clip norm."""

import keras
import numpy as np
import pytest
from largest_contribution import largest_contribution

import tf_bandmf
import tf_bandmf.keras

layers = keras.layers
MOST = 1.0 + 1e-6


def dense():
    return keras.Sequential(
        [keras.Input((6,)), layers.Dense(5, "relu"), layers.Dense(3)]
    )


def siamese():
    a, b = keras.Input((64,)), keras.Input((64,))
    shared = layers.Dense(32, use_bias=False)
    return keras.Model(
        [a, b], layers.Dense(1)(layers.Subtract()([shared(a), shared(b)]))
    )


def normalized():
    return keras.Sequential(
        [keras.Input((6,)), layers.LayerNormalization(), layers.Dense(1)]
    )


def embedded():
    return keras.Sequential(
        [
            keras.Input((5,), dtype="int32"),
            layers.Embedding(9, 4),
            layers.GlobalAveragePooling1D(),
            layers.Dense(1),
        ]
    )


def convolved():
    return keras.Sequential(
        [
            keras.Input((6, 6, 1)),
            layers.Conv2D(3, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(1),
        ]
    )


def inputs(name, rng):
    if name == "siamese":
        return tuple(rng.normal(size=(2, 8, 64)).astype(np.float32))
    if name == "embedded":
        return rng.integers(0, 9, (8, 5)).astype(np.int32)
    shape = {"convolved": (8, 6, 6, 1)}.get(name, (8, 6))
    return rng.normal(size=shape).astype(np.float32)


MODELS = {f.__name__: f for f in (dense, siamese, normalized, embedded, convolved)}


def private(model, plan, loss="mse", **changes):
    keras.utils.set_random_seed(0)
    tf_bandmf.keras.make_private(model)
    model.compile(tf_bandmf.keras.PrivateOptimizer("sgd", plan, **changes), loss)
    return model


@pytest.mark.attack(
    "Extreme records against clipping",
    tried="Scales from 1e-42 to 3e38, NaN, infinities, near-duplicates, integers out of "
    "range, and a random search: the largest contribution of a record, alone and among "
    "others, divided by the clip norm.",
    area="inputs",
    invariants=[16, 17, 18],
)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.slow_cases("siamese", "normalized", "convolved", "embedded")
def test_no_record_adds_more_than_the_clip_norm(name, make_plan, figure):
    model = private(MODELS[name](), make_plan(l2_norm_clip=0.7))
    rng = np.random.default_rng(0)
    y = rng.normal(size=(8, 3 if name == "dense" else 1)).astype(np.float32)
    actual = largest_contribution(model, inputs(name, rng), y)
    assert actual.num_records > 200
    assert 0.9 < actual.ratio <= MOST
    figure(f"{name}: at most {'1' if actual.ratio <= MOST else actual.ratio}")


@pytest.mark.slow
def test_automatic_clipping_is_searched_too(make_plan):
    model = private(dense(), make_plan(), clipping="automatic")
    rng = np.random.default_rng(0)
    y = rng.normal(size=(8, 3)).astype(np.float32)
    actual = largest_contribution(model, inputs("dense", rng), y)
    assert 0.9 < actual.ratio <= MOST
