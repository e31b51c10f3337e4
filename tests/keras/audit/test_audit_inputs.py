"""Tests that no extreme record adds more than the clip norm to a clipped sum."""

import keras
import numpy as np
import pytest
from largest_contribution import largest_contribution
from small_models import make_plan, make_private_model

layers = keras.layers
MOST = 1.0 + 1e-6


def siamese():
    a, b = keras.Input((64,)), keras.Input((64,))
    shared = layers.Dense(32, use_bias=False)
    return keras.Model(
        [a, b], layers.Dense(1)(layers.Subtract()([shared(a), shared(b)]))
    )


def stacked(*middle, shape=(6,), dtype="float32"):
    return keras.Sequential([keras.Input(shape, dtype=dtype), *middle, layers.Dense(1)])


MODELS = {
    "dense": lambda: stacked(layers.Dense(5, "relu")),
    "automatic": lambda: stacked(layers.Dense(5, "relu")),
    "siamese": siamese,
    "normalized": lambda: stacked(layers.LayerNormalization()),
    "embedded": lambda: stacked(
        layers.Embedding(9, 4),
        layers.GlobalAveragePooling1D(),
        shape=(5,),
        dtype="int32",
    ),
    "convolved": lambda: stacked(
        layers.Conv2D(3, 3, activation="relu"), layers.Flatten(), shape=(6, 6, 1)
    ),
}


def given(model, rng):
    """Returns the inputs of eight random records, from which a search starts."""
    shapes = [(8, *tensor.shape[1:]) for tensor in model.inputs]
    if model.inputs[0].dtype == "int32":
        return rng.integers(0, 9, shapes[0]).astype(np.int32)
    x = tuple(rng.normal(size=shape).astype(np.float32) for shape in shapes)
    return x if len(x) > 1 else x[0]


@pytest.mark.attack(
    "Extreme records against clipping",
    tried="Searches for a record that contributes more than the clip norm, alone in a "
    "batch or among others: with scales from 1e-42 to 3e38, NaN, infinities, almost "
    "equal rows, integers out of range, and random changes.",
    area="inputs",
)
@pytest.mark.invariant(16, 17, 18)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.slow_cases(but=["dense"])
def test_no_record_adds_more_than_the_clip_norm(name, figure):
    keras.utils.set_random_seed(0)
    model, rng = MODELS[name](), np.random.default_rng(0)
    x, y = given(model, rng), rng.normal(size=(8, 1)).astype(np.float32)
    clipping = "automatic" if name == "automatic" else "flat"
    plan = make_plan(l2_norm_clip=0.7)
    make_private_model(plan, model=model, clipping=clipping, loss="mse")
    ratio, kind, num_records = largest_contribution(model, x, y)
    assert num_records > 200
    assert 0.9 < ratio <= MOST, kind
    figure(f"{name}: at most 1")
