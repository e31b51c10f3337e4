"""Compares all clipping options on several kinds of models with brute force."""

import types

import clipping_reference as reference
import keras
import numpy as np
import pytest
import tensorflow as tf
from clipping_reference import classifier, labels, norm, normal, traced
from keras import layers as L
from small_models import dtype_policy, make_plan

from tf_bandmf.keras import PrivateOptimizer
from tf_bandmf.keras.clipping.rules import convolution
from tf_bandmf.keras.clipping.sums.clipped_sums import (
    ClippedGradients,
    clipped_gradient_sums,
)
from tf_bandmf.keras.clipping.sums.settings import Clipping
from tf_bandmf.keras.clipping.tensors.errors import UnsupportedModelError

BATCH, ROWS = 6, 3


def dense():
    return classifier(L.Dense(7, "tanh"), inputs=(5,)), normal(BATCH, ROWS, 5)


def images():
    stack = [L.Conv2D(4, 3, activation="relu"), L.GroupNormalization(2), L.PReLU()]
    # These layers are too large to form per-example gradients, so norms are computed
    # from inner products.
    stack += [L.Flatten(), L.Dense(200), L.Dense(201)]
    return classifier(*stack, inputs=(8, 8, 3)), normal(BATCH, ROWS, 8, 8, 3)


def convolutions():
    stack = [L.Conv2D(4, 1, activation="tanh"), L.Conv2D(4, 1, strides=2)]
    stack += [L.DepthwiseConv2D(2), L.Conv2D(4, 2, groups=2)]
    return classifier(*stack, inputs=(9, 9, 3)), normal(BATCH, ROWS, 9, 9, 3)


def texts():
    stack = [L.Embedding(11, 6), L.EinsumDense("btd,de->bte", (5, 4))]
    stack += [L.LayerNormalization(), L.GRU(4)]
    model = classifier(*stack, inputs=(5,), dtype="int32")
    x = reference.tokens(batch=BATCH * ROWS, length=5, vocabulary=11)
    return model, x.reshape(BATCH, ROWS, 5)


def many_channels():
    # One row has 64 terms, for which inner products are cheaper. A privacy unit of
    # three rows has 192 terms, for which forming the gradient is cheaper.
    stack = [L.Conv2D(80, 3, padding="same"), L.GlobalAveragePooling2D()]
    return classifier(*stack, inputs=(8, 8, 64)), normal(BATCH, ROWS, 8, 8, 64)


# Marks the rows that are present in each privacy unit. One unit has no rows.
PRESENT = np.array(
    [[1, 1, 1], [1, 0, 0], [0, 0, 0], [1, 1, 1], [0, 0, 1], [1, 0, 1]], bool
)
LAYERS = Clipping(groups="layers")
SHARES = {"kernel": 3.0, "embed": 1.0, ".*": 2.0}
OPTIONS = {
    "one at a time": {"microbatch_size": 1},
    "microbatches": {"microbatch_size": 4},
    "one microbatch": {"microbatch_size": 100},
    "automatic": {"clipping": Clipping("automatic")},
    "layers": {"clipping": LAYERS},
    "shares": {"clipping": Clipping(groups=SHARES)},
    "automatic shares": {"clipping": Clipping("automatic", SHARES)},
    "microbatches of groups": {"clipping": LAYERS, "microbatch_size": 2},
    "loss scale": {"loss_scale_factor": 1024.0},
    "scales": {"scales": True},
    "scaled groups": {"scales": True, "clipping": LAYERS, "microbatch_size": 2},
    "scaled automatic": {"scales": True, "clipping": Clipping("automatic")},
    "scaled losses": {"scales": True, "loss_scale_factor": 8.0},
    "units": {"rows": True},
    "weighted units": {"rows": True, "weights": True},
    "microbatches of units": {"rows": True, "microbatch_size": 7},
    "scaled units": {"rows": True, "scales": True},
    "automatic units": {
        "rows": True,
        "weights": True,
        "clipping": Clipping("automatic"),
    },
}


def random_scales(model, seed=0):
    rng = np.random.default_rng(seed)
    return [
        tf.constant(10.0 ** rng.uniform(-2, 1, tuple(v.shape)), tf.float32)
        for v in model.trainable_variables
    ]


FAST = ["dense-*", "images-loss scale", "images-layers"]


@pytest.mark.slow_cases(but=FAST)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("make", [dense, images, convolutions, texts])
@pytest.mark.invariant(5, 16, 17)
def test_sums_are_those_of_examples_one_by_one(make, options):
    options = dict(OPTIONS[options])
    model, x = make()
    y = labels(batch=BATCH * ROWS).reshape(BATCH, ROWS)
    weights = np.random.default_rng(2).random((BATCH, ROWS)).astype("f4")
    if options.get("scales"):
        options["scales"] = random_scales(model)
    if options.get("rows"):
        options["rows"] = PRESENT
        # The values in absent rows must not affect the sums.
        x[~options["rows"]] = 9
    else:
        x, y, weights = x[:, 0], y[:, 0], weights[:, 0]
    weights = weights if options.pop("weights", False) else None
    result = reference.assert_exact(model, x, y, weights, **options)
    assert isinstance(result, ClippedGradients)
    assert result.norms.dtype == result.losses.dtype == tf.float32
    assert result.outputs.shape == (*y.shape, 3)


@pytest.mark.on_cpu
def test_units_of_a_convolution_are_formed_without_patches(monkeypatch):
    def refused(*arguments):
        raise AssertionError("Patches were made.")

    monkeypatch.setattr(convolution.Convolved, "_patches", refused)
    model, x = many_channels()
    y = labels(batch=BATCH * ROWS).reshape(BATCH, ROWS)
    reference.assert_exact(model, x, y, rows=PRESENT)


def test_what_is_infinite_contributes_zero():
    # Three examples have an infinite number: an input, a target (whose gradient is
    # finite), and a sample weight.
    model, x, y = classifier(inputs=(4,)), normal(BATCH, 4), normal(BATCH, 3)
    model.compile(loss="mae")
    x[0, 1], y[1], weights = np.inf, np.inf, np.ones(BATCH, "f4")
    weights[2] = np.inf
    actual = traced(model, x, y, weights).sums
    expected = traced(model, x[3:], y[3:], weights[3:]).sums
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
    assert not any(
        np.any(total) for total in traced(model, x[:3], y[:3], weights[:3]).sums
    )


@pytest.mark.parametrize("groups", [None, {"gamma": 1.0, ".*": 2.0}])
@pytest.mark.invariant(17, 18)
def test_small_variables_that_are_measured_together(groups):
    # Each layer has two small variables, whose norms are computed together.
    stack = [L.LayerNormalization() for _ in range(5 if groups is None else 2)]
    model, clipping = classifier(*stack, inputs=(300,)), Clipping(groups=groups)
    reference.assert_exact(model, normal(5, 300), labels(), clipping=clipping)


@pytest.mark.slow_cases("nan", "3e+38", "0.0")
@pytest.mark.parametrize("value", [0.0, np.nan, np.inf, 3e38])
@pytest.mark.invariant(17)
def test_no_scale_lifts_a_contribution_above_the_clip_norm(value):
    model, x = images()
    scales = random_scales(model)
    scales[0] = tf.fill(scales[0].shape, tf.constant(value, tf.float32))
    sums = traced(model, x[:1, 0], labels(batch=1), clip=1e-2, scales=scales).sums
    assert norm(sums) <= 1e-2
    # With an invalid scale, the example adds exactly zero; a scale of 0 is valid.
    assert (norm(sums) > 0.99e-2) == (value == 0.0)


@pytest.mark.invariant(16)
def test_rows_of_one_unit_are_kept_apart():
    inputs = keras.Input((5,))
    model = keras.Model(inputs, keras.ops.flip(L.Dense(3)(inputs), axis=0))
    model.compile("sgd", "mse")
    y, rows = np.zeros((BATCH, ROWS, 3), "f4"), PRESENT
    with pytest.raises(UnsupportedModelError):
        traced(model, normal(BATCH, ROWS, 5), y, rows=rows)


@pytest.mark.invariant(17)
def test_a_units_contribution_is_within_the_clip_norm():
    # The gradients of these two rows cancel except for rounding errors.
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((256,)), L.Dense(256)])
    model.compile("sgd", "mse")
    x = 1e4 * normal(1, 2, 256)
    x[0, 1] = x[0, 0] * np.float32(1 + 1e-6)
    y = model.predict(x[0], verbose=0)[None]
    y[0] += np.array([[1e3], [-1e3]], "f4")
    sums = traced(model, x, y, clip=0.5, rows=np.ones((1, 2), bool)).sums
    assert 0.0 < norm(sums) <= 0.5 * 1.001


DROPPING = {
    "dropout": lambda: L.Dropout(0.5),
    "lstm": lambda: L.LSTM(2, recurrent_dropout=0.5),
    "gru": lambda: L.GRU(2, dropout=0.5),
    "simple": lambda: L.SimpleRNN(2, dropout=0.5),
}


@pytest.mark.slow_cases(but=["dropout-None"])
@pytest.mark.parametrize("microbatch_size", [None, 3])
@pytest.mark.parametrize("name", DROPPING)
def test_dropout_masks_are_fresh(name, microbatch_size):
    model = classifier(DROPPING[name](), inputs=(6, 4))
    # Equal examples must get different dropout masks.
    data = {"x": np.repeat(normal(1, 6, 4), 6, axis=0), "y": labels(batch=6)}
    step = reference.step_of(
        model, data, l2_norm_clip=1.0, microbatch_size=microbatch_size
    )
    first, second = step(data), step(data)
    assert np.abs(first.outputs - second.outputs).max() > 1e-3
    assert len(np.unique(np.round(first.outputs[:, 0], 5))) > 2
    assert np.ptp(np.asarray(first.norms)) > 1e-6


def float16():
    """Returns two models with equal weights, in mixed_float16 and in float32."""
    models = []
    for policy in ("mixed_float16", "float32"):
        with dtype_policy(policy):
            stack = [L.Conv2D(4, 3, activation="relu"), L.GroupNormalization(2)]
            models.append(classifier(*stack, L.PReLU(), inputs=(8, 8, 3)))
    half, full = models
    assert half.layers[0].compute_dtype == "float16"
    half.set_weights(full.get_weights())
    # Drop the optimizer, which Keras has wrapped, because the tests do not need it.
    half.optimizer = None
    return half, full


def error(got, want):
    """Returns the distance between two lists of arrays, relative to the second list."""
    return norm([np.asarray(a) - b for a, b in zip(got, want)]) / norm(want)


@pytest.mark.parametrize("microbatch_size", [None, 2])
@pytest.mark.slow_cases("2")
@pytest.mark.invariant(5, 17)
def test_float16_gives_the_gradients_of_float32(microbatch_size):
    half, full = float16()
    x, y, weights = reference.images(), labels(), np.ones(5, "f4")
    options = {"microbatch_size": microbatch_size, "loss_scale_factor": 1024.0}
    step = reference.step_of(
        half, {"x": x, "y": y, "sample_weight": weights}, l2_norm_clip=0.1, **options
    )
    want = traced(full, x, y, clip=0.1)
    got = step({"x": x, "y": y, "sample_weight": weights})
    np.testing.assert_allclose(got.norms, want.norms, rtol=1e-2)
    assert error(got.sums, want.sums) < 1e-2
    assert all(total.dtype == tf.float32 for total in got.sums)
    # Each reported norm is that of the gradient that is summed, including its float16
    # rounding errors.
    for index in range(5):
        one = step(
            {"x": x[index:][:1], "y": y[index:][:1], "sample_weight": weights[:1]}
        )
        wanted = min(0.1, float(one.norms[0]))
        np.testing.assert_allclose(norm(one.sums), wanted, rtol=1e-4)
        assert norm(one.sums) <= 0.1 * (1 + 1e-5)
    # An example whose gradients overflow contributes zero.
    weights[1], others = 1e5, np.arange(5) != 1
    got = step({"x": x, "y": y, "sample_weight": weights})
    assert np.all(np.isfinite(got.norms) == others)
    want = step({"x": x[others], "y": y[others], "sample_weight": weights[others]})
    for a, b in zip(got.sums, want.sums, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


WRONG = [
    ({"y": labels(batch=5)}, "same batch size"),
    ({"y": tf.ragged.constant([[1], [1, 2]])}, "dense tensors"),
    ({"rows": np.ones((BATCH, ROWS), bool)}, r"\[U, 3"),
]


@pytest.mark.parametrize("scale", [0.5, 3.0, -2.0, np.inf, np.nan, True, "dynamic"])
def test_a_loss_scale_is_a_power_of_two(scale):
    with pytest.raises(ValueError, match="power of two"):
        PrivateOptimizer("sgd", make_plan(), loss_scale_factor=scale)


@pytest.mark.parametrize(("changes", "message"), WRONG)
def test_argument_errors(changes, message):
    data = {"x": normal(BATCH, 5), "y": labels(batch=BATCH), "l2_norm_clip": 1.0}
    with pytest.raises(ValueError, match=message):
        clipped_gradient_sums(dense()[0], **{**data, **changes})


def test_squares_of_the_clip_norms_add_up():
    paths = "a/kernel", "a/bias", "embed/table", "b/kernel"
    weights = [types.SimpleNamespace(path=path) for path in paths]
    members, clips = Clipping(groups=SHARES).grouping(weights, 2.0)
    assert members == (0, 1, 2, 0)
    np.testing.assert_allclose(clips, 2.0 * np.array([3, 2, 1]) / np.sqrt(14))
    members, clips = LAYERS.grouping(weights, 1.0)
    assert members == (0, 0, 1, 2)
    np.testing.assert_allclose(clips, np.full(3, 1 / np.sqrt(3)))
    assert Clipping().grouping(weights, 1.0) == ((0, 0, 0, 0), (1.0,))
    # A group without weights gets no share of the clip norm.
    _, clips = Clipping(groups={"nothing": 5, ".*": 1}).grouping(weights, 1.0)
    np.testing.assert_allclose(clips, [1.0])


def test_a_weight_without_a_group_is_refused_when_the_run_begins():
    clipping = Clipping(groups={"embed": 1})
    optimizer = PrivateOptimizer("sgd", make_plan(), clipping=clipping)
    with pytest.raises(ValueError, match=r"matches the weight '.*kernel'"):
        optimizer.build(dense()[0].trainable_variables)


@pytest.mark.parametrize("groups", ["layer", {}, {"(": 1}, {"a": 0}, {"a": np.nan}, 3])
def test_what_is_no_grouping_is_refused(groups):
    with pytest.raises(ValueError, match="groups"):
        Clipping(groups=groups)
