"""What clipped sums are, apart from the kind of layer."""

import clipping_reference as reference
import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_bandmf.keras.clipping import (
    ClippedGradients,
    clipped_gradient_sums,
    regularization_gradients,
)

layers = keras.layers
FROM_LOGITS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def small_model(*extra, loss=FROM_LOGITS, **compile_arguments):
    keras.utils.set_random_seed(2)
    model = keras.Sequential(
        [keras.Input((4,)), layers.Dense(6, activation="tanh"), *extra, layers.Dense(3)]
    )
    model.compile(loss=loss, **compile_arguments)
    return model


def features(batch=6, seed=0):
    return np.random.default_rng(seed).normal(size=(batch, 4)).astype("f4")


def assert_same(first, second, rtol=1e-5):
    for a, b in zip(
        tf.nest.flatten(tuple(first)), tf.nest.flatten(tuple(second)), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-6)


def test_result_type_and_outputs():
    model, x, y = small_model(), features(), reference.labels(batch=6)
    result = reference.assert_exact(model, x, y)
    assert isinstance(result, ClippedGradients)
    assert result.norms.dtype == tf.float32 and result.norms.shape == (6,)
    assert result.losses.dtype == tf.float32 and result.losses.shape == (6,)
    np.testing.assert_allclose(result.outputs, model(x), rtol=1e-5)


@pytest.mark.slow
def test_eager_graph_and_xla_agree():
    model, x, y = small_model(), features(), reference.labels(batch=6)
    x, y = tf.constant(x), tf.constant(y)

    def step(x, y):
        return clipped_gradient_sums(model, x, y, l2_norm_clip=0.5)

    eager = step(x, y)
    assert_same(eager, tf.function(step, autograph=False)(x, y))
    assert_same(eager, tf.function(step, autograph=False, jit_compile=True)(x, y))
    assert_same(eager, reference.traced(model, x, y, clip=0.5))


@pytest.mark.slow_cases("column", "vector")
@pytest.mark.parametrize("weights", ["vector", "column", "zero"])
def test_sample_weights(weights):
    model, x, y = small_model(), features(), reference.labels(batch=6)
    weight = np.array([0.0, 1.0, 2.0, 0.5, 0.0, 3.0], "f4")
    if weights == "column":
        weight = weight[:, None]
    if weights == "zero":
        weight = np.zeros_like(weight)
        result = reference.traced(model, x, y, weight)
        assert not np.any(result.norms) and not any(np.any(s) for s in result.sums)
        return
    result = reference.assert_exact(model, x, y, weight)
    assert result.norms[0] == 0.0 and result.losses[0] == 0.0


def test_zero_weight_equals_absence():
    model, x, y = small_model(), features(), reference.labels(batch=6)
    weight = np.array([1, 1, 1, 1, 0, 0], "f4")
    padded = reference.traced(model, x, y, weight)
    short = reference.traced(model, x[:4], y[:4])
    for a, b in zip(padded.sums, short.sums, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


def two_in_two_out(loss, **compile_arguments):
    keras.utils.set_random_seed(2)
    first, second = keras.Input((4,), name="a"), keras.Input((4,), name="b")
    shared = layers.Dense(5, activation="tanh")
    joined = layers.Concatenate()([shared(first), shared(second)])
    model = keras.Model(
        {"a": first, "b": second},
        {
            "label": layers.Dense(3, name="label", activation="softmax")(joined),
            "value": layers.Dense(1, name="value")(joined),
        },
    )
    model.compile(loss=loss, **compile_arguments)
    return model


def two_in_two_out_data():
    x = {"a": features(), "b": features(seed=1)}
    y = {"label": reference.labels(batch=6), "value": features(seed=2)[:, :1]}
    return x, y


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.slow_cases("False")
def test_dict_inputs_and_outputs(weighted):
    model = two_in_two_out(
        {"label": "sparse_categorical_crossentropy", "value": "mse"},
        loss_weights={"label": 0.5, "value": 2.0} if weighted else None,
    )
    x, y = two_in_two_out_data()
    weight = None
    if weighted:
        weight = {"label": np.arange(6.0, dtype="f4"), "value": np.ones(6, "f4")}
    reference.assert_exact(model, x, y, weight)
    # Trackers of single outputs' losses belong to Keras: they are not touched.
    before = [np.asarray(v) for m in model.metrics for v in m.variables]
    reference.traced(model, x, y, weight)
    after = [np.asarray(v) for m in model.metrics for v in m.variables]
    for old, new in zip(before, after, strict=True):
        np.testing.assert_array_equal(old, new)


def test_list_of_losses():
    keras.utils.set_random_seed(2)
    inputs = keras.Input((4,))
    hidden = layers.Dense(4, activation="tanh")(inputs)
    model = keras.Model(inputs, [layers.Dense(3)(hidden), layers.Dense(2)(hidden)])
    model.compile(loss=[FROM_LOGITS, "mae"], loss_weights=[1.0, 0.3])
    y = [reference.labels(batch=6), features(seed=1)[:, :2]]
    reference.assert_exact(model, features(), y)


def scalar_loss(y_true, y_pred):
    """A loss that is reduced over the batch by its author."""
    return keras.ops.mean((y_true - y_pred) ** 2)


@pytest.mark.slow_cases("weighted_mean", "scalar", "unreduced")
@pytest.mark.parametrize(
    "loss",
    [
        scalar_loss,
        keras.losses.MeanSquaredError(reduction="sum"),
        keras.losses.Huber(reduction="mean_with_sample_weight"),
        lambda y_true, y_pred: keras.ops.abs(y_true - y_pred),
    ],
    ids=["scalar", "sum", "weighted_mean", "unreduced"],
)
def test_custom_losses(loss):
    model = small_model(loss=loss)
    y = np.random.default_rng(4).normal(size=(6, 3)).astype("f4")
    reference.assert_exact(model, features(), y)


def test_saturated_softmax_uses_logits():
    model = reference.classifier(inputs=(4,))
    model.layers[-1].kernel.assign(30 * np.asarray(model.layers[-1].kernel))
    reference.assert_exact(model, 30 * features(), reference.labels(batch=6))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("microbatch_size", [None, 4])
@pytest.mark.slow_cases("4-inf", "None-nan", "4-nan")
def test_non_finite_example_contributes_zero(bad, microbatch_size):
    model = reference.classifier(
        layers.Conv2D(8, 3),
        layers.PReLU(),
        layers.LayerNormalization(),
        inputs=(8, 8, 3),
    )
    x, y = reference.images(batch=6), reference.labels(batch=6)
    broken = x.copy()
    broken[2, 3, 3, 1] = bad
    kept = np.delete(np.arange(6), 2)
    result = reference.traced(model, broken, y, microbatch_size=microbatch_size)
    without = reference.traced(model, x[kept], y[kept])
    assert not np.isfinite(result.norms[2])
    np.testing.assert_allclose(np.delete(result.norms, 2), without.norms, rtol=1e-5)
    for a, b in zip(result.sums, without.sums, strict=True):
        assert np.all(np.isfinite(a))
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_all_examples_non_finite():
    model, y = small_model(), reference.labels(batch=6)
    result = reference.traced(model, features() * np.nan, y)
    assert not any(np.any(s) for s in result.sums)


def test_non_finite_target_of_finite_norm_contributes_zero():
    model = small_model(loss="mse")
    y = np.zeros((6, 3), "f4")
    y[1] = np.inf
    result = reference.traced(model, features(), y)
    assert all(np.all(np.isfinite(s)) for s in result.sums)


@pytest.mark.slow_cases("False-3")
@pytest.mark.parametrize("microbatch_size", [None, 3])
@pytest.mark.parametrize("eager", [False, True])
def test_empty_batch(microbatch_size, eager):
    model = reference.classifier(
        layers.Conv2D(8, 3), layers.LayerNormalization(), inputs=(8, 8, 3)
    )
    x, y = reference.images()[:0], reference.labels()[:0]
    run = clipped_gradient_sums if eager else reference.traced
    clip = {"l2_norm_clip": 1.0} if eager else {"clip": 1.0}
    result = run(model, x, y, microbatch_size=microbatch_size, **clip)
    assert result.norms.shape == (0,) and result.losses.shape == (0,)
    assert result.outputs.shape == (0, 3)
    for total, variable in zip(result.sums, model.trainable_variables, strict=True):
        assert total.shape == variable.shape and not np.any(total)


@pytest.mark.slow
def test_microbatches_are_equal():
    model = two_in_two_out({"label": "sparse_categorical_crossentropy", "value": "mse"})
    x, y = two_in_two_out_data()
    weight = np.arange(6.0, dtype="f4")
    whole = reference.traced(model, x, y, weight)
    for size in (1, 4, 6, 100):
        eager = clipped_gradient_sums(
            model, x, y, weight, l2_norm_clip=reference.CLIP, microbatch_size=size
        )
        assert_same(whole, eager)
    assert_same(whole, reference.traced(model, x, y, weight, microbatch_size=4))


@pytest.mark.slow_cases("3")
@pytest.mark.parametrize("microbatch_size", [None, 3])
def test_dropout_masks_are_fresh(microbatch_size):
    model = small_model(layers.Dropout(0.5))
    x, y = tf.constant(features()), tf.constant(reference.labels(batch=6))
    # The same example over and over: masks differ between examples too.
    x = tf.repeat(x[:1], 6, axis=0)

    @tf.function(autograph=False)
    def step():
        return clipped_gradient_sums(
            model, x, y, l2_norm_clip=1.0, microbatch_size=microbatch_size
        )

    first, second = step(), step()
    assert np.abs(first.outputs - second.outputs).max() > 1e-3
    assert len(np.unique(np.round(first.outputs[:, 0], 5))) > 2


class Noisy(layers.Layer):
    """A layer with a weight that is random inside."""

    def __init__(self):
        super().__init__()
        self.seed = keras.random.SeedGenerator(1)

    def build(self, shape):
        self.w = self.add_weight(shape=(shape[-1],), initializer="ones")

    def call(self, x, training=None):
        return x * self.w + keras.random.normal(keras.ops.shape(x), seed=self.seed) * (
            self.w**2
        )


def test_random_layer_is_differentiated_as_it_was_run():
    # z = x w + e w^2 at w = 1, summed up: dz/dw = x + 2 e, with e = z - x.
    model = keras.Sequential([keras.Input((4,)), Noisy()])
    model.compile(loss=lambda y_true, y_pred: keras.ops.sum(y_pred, axis=-1))
    x = features()
    result = reference.traced(model, x, np.zeros((6, 4), "f4"), clip=1e6)
    noise = np.asarray(result.outputs) - x
    assert np.std(noise) > 0.5
    expected = np.linalg.norm(x + 2 * noise, axis=1)
    np.testing.assert_allclose(result.norms, expected, rtol=1e-5)
    np.testing.assert_allclose(result.sums[0], (x + 2 * noise).sum(0), rtol=1e-4)
    again = reference.traced(model, x, np.zeros((6, 4), "f4"), clip=1e6)
    assert np.abs(again.outputs - result.outputs).min() > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "layer",
    [
        pytest.param(layers.LSTM(2, recurrent_dropout=0.5), id="lstm-recurrent"),
        pytest.param(layers.GRU(2, dropout=0.5), id="gru-inputs"),
        pytest.param(layers.SimpleRNN(2, dropout=0.5), id="simple-rnn-inputs"),
    ],
)
def test_recurrent_dropout_is_drawn_for_each_example(layer):
    model = reference.classifier(layer, inputs=(6, 4))
    x, y = reference.sequences(), reference.labels()
    same = [np.repeat(array[:1], 4, axis=0) for array in (x, y)]
    norms = np.asarray(reference.traced(model, *same).norms)
    assert np.ptp(norms) > 1e-6


def test_frozen_kernel_and_frozen_layers():
    model = small_model(layers.Dense(6), layers.Dense(6, activation="relu"))
    model.layers[0]._kernel.trainable = False
    model.layers[1].trainable = False
    assert len(model.trainable_variables) == 5
    reference.assert_exact(model, features(), reference.labels(batch=6))


@pytest.mark.slow_cases("2")
@pytest.mark.parametrize("rank", [1, 2])
def test_lora(rank):
    model = small_model()
    model.layers[0].enable_lora(rank)
    reference.randomize(model)
    reference.assert_exact(model, features(), reference.labels(batch=6))


@pytest.mark.slow
def test_lora_on_embedding_and_convolution():
    model = reference.classifier(
        layers.Embedding(5, 4), layers.Conv1D(3, 2), inputs=(7,), dtype="int32"
    )
    model.layers[0].enable_lora(2)
    model.layers[1].enable_lora(2)
    reference.randomize(model)
    reference.assert_exact(model, reference.tokens(), reference.labels())


def test_frozen_batch_normalization():
    model = small_model(layers.BatchNormalization())
    model.layers[1].trainable = False
    before = [np.asarray(v) for v in model.layers[1].variables]
    reference.assert_exact(model, features(), reference.labels(batch=6))
    for old, new in zip(before, model.layers[1].variables, strict=True):
        np.testing.assert_array_equal(old, new)


def test_regularizers_are_separate():
    model = small_model(layers.Dense(6, kernel_regularizer=keras.regularizers.L2(0.1)))
    plain = small_model(layers.Dense(6))
    plain.set_weights(model.get_weights())
    x, y = features(), reference.labels(batch=6)
    assert_same(reference.traced(model, x, y), reference.traced(plain, x, y))
    gradients = regularization_gradients(model)
    np.testing.assert_allclose(
        gradients[2], 0.2 * np.asarray(model.layers[1].kernel), rtol=1e-6
    )
    assert not np.any(gradients[0]) and not np.any(gradients[5])
    assert not any(np.any(g) for g in regularization_gradients(plain))


@pytest.mark.parametrize("clip", [0.0, -1.0, np.nan, np.inf])
def test_clip_must_be_positive(clip):
    with pytest.raises(ValueError, match="l2_norm_clip"):
        clipped_gradient_sums(small_model(), features(), [0] * 6, l2_norm_clip=clip)


def test_argument_errors():
    model, x = small_model(), features()
    y = reference.labels(batch=6)
    with pytest.raises(ValueError, match="microbatch_size"):
        clipped_gradient_sums(model, x, y, l2_norm_clip=1.0, microbatch_size=0)
    with pytest.raises(ValueError, match="same batch size"):
        clipped_gradient_sums(model, x, y[:5], l2_norm_clip=1.0)
    with pytest.raises(ValueError, match="dense tensors"):
        clipped_gradient_sums(
            model, x, tf.ragged.constant([[1], [1, 2]]), l2_norm_clip=1.0
        )
