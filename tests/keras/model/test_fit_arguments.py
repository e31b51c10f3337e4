"""Tests `fit` and `plan.batches` with arguments that Keras users would try."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from same_weights import flat, refused
from small_models import (
    data,
    make_plain_model,
    make_plan,
    make_private_model,
    plan_and_model,
)

import tf_bandmf
import tf_bandmf.keras
from tf_bandmf.keras.clipping.sums.clipped_sums import clipped_gradient_sums

SGD = keras.optimizers.SGD


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("sample_weight", np.ones(22)),
        ("validation_split", 0.5),
        ("batch_size", 4),
        ("y", np.ones(22)),
    ],
)
def test_arguments_that_would_change_the_batches_are_named(argument, value):
    plan, model = plan_and_model()
    with refused(model, ValueError, f"not accept {argument}"):
        model.fit(plan.batches(*data), **{argument: value})


def test_epochs_end_where_they_do_with_single_steps():
    plan, model = plan_and_model(steps_per_execution=100)
    ends = []
    count = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: ends.append(model.optimizer.steps_taken)
    )
    model.fit(plan.batches(*data), epochs=2, callbacks=[count], verbose=0)
    # An epoch of 22 examples in batches of 6 has four steps.
    assert ends == [4, 8]


@pytest.mark.parametrize(
    ("class_weight", "clipping", "one_hot", "given"),
    [
        ({0: 0.25, 2: 3.0}, "automatic", True, {}),
        ({1: 0.5}, "flat", False, {}),
        ({0: 0.0, 1: 5}, "flat", True, {}),
        ({0: 0.0, 1: 5}, "flat", True, {"views": 2, "map": lambda x, y: (x, y)}),
    ],
)
@pytest.mark.slow_cases(but=["class_weight0-*", "class_weight3-*"])
def test_class_weights_multiply_what_examples_contribute(
    class_weight, clipping, one_hot, given
):
    x, y = data
    weights = np.array([class_weight.get(c, 1.0) for c in range(3)])
    weights = (weights / max(1.0, weights.max()))[y].astype(np.float32)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    if one_hot:
        y = np.eye(3, dtype=np.float32)[y]
        loss = keras.losses.CategoricalCrossentropy(from_logits=True)
    # All gradients exceed the clip norm, and all runs draw the same noise.
    plan = make_plan(batch_size=22, epochs=1, l2_norm_clip=0.01)
    learned = []
    for options in ({}, {"class_weight": class_weight}):
        model = make_private_model(plan, SGD(1.0), clipping=clipping, loss=loss)
        before = flat(model)
        model.fit(plan.batches(x, y, **given), verbose=0, **options)
        learned.append(flat(model) - before)
    model = make_private_model(plan, loss=loss)

    @tf.function(autograph=False)
    def alone(x, y):
        how = tf_bandmf.keras.Clipping(clipping)
        data = x[None], y[None]
        return clipped_gradient_sums(model, *data, l2_norm_clip=0.01, clipping=how).sums

    rows = [flat(alone(*map(tf.constant, pair))) for pair in zip(x, y)]
    # SGD with learning rate 1 subtracts the sums, divided by the batch size of 22.
    expected = (1.0 - weights) @ np.array(rows) / 22
    grid = 2.0**-10 * plan.noise_stddev / 22
    np.testing.assert_allclose(learned[1] - learned[0], expected, atol=grid)
    assert np.abs(expected).max() > 10 * grid


def test_shares_are_at_most_the_clip_norm():
    x, y = data
    model = make_plain_model()
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    for share, most in ((1e9, 1.0), (np.nan, 0.0), (-1.0, 0.0), (0.5, 0.5)):
        sums = clipped_gradient_sums(
            model, x[:1], y[:1], l2_norm_clip=0.01, shares=np.float32([share])
        ).sums
        assert np.linalg.norm(flat(sums)) == pytest.approx(0.01 * most, rel=1e-3)
    unit = {
        "rows": np.array([[True, False, True]]),
        "shares": np.float32([[0.1, 1.0, 0.5]]),
    }
    sums = clipped_gradient_sums(
        model, x[None, :3], y[None, :3], l2_norm_clip=0.01, **unit
    ).sums
    assert np.linalg.norm(flat(sums)) == pytest.approx(0.005, rel=1e-3)


def test_a_run_keeps_its_class_weights():
    plan, model = plan_and_model(batch_size=22)
    batches = plan.batches(*data)
    model.fit(batches, class_weight={0: 2.0}, verbose=0)
    for weight, said in ((3.0, "other data"), (-1.0, "class_weight")):
        with pytest.raises(ValueError, match=said):
            model.fit(batches, class_weight={0: weight}, verbose=0)
    with pytest.raises(ValueError, match="with_class_weight"):
        model.train_on_batch(next(iter(batches)), class_weight={0: 2.0})


def test_validation_data_that_cannot_be_evaluated_cost_no_epoch():
    plan, model = plan_and_model(epochs=1)
    x, y = data
    wrong = tf.data.Dataset.from_tensor_slices((x[:, :3], y)).batch(5)
    for validation in ((x[:, :3], y), wrong, (x, y[1:]), (x, y.astype(str))):
        with refused(model, ValueError, "incompatible|ambiguous|dtype"):
            model.fit(
                plan.batches(*data), epochs=1, verbose=0, validation_data=validation
            )
    right = tf.data.Dataset.from_tensor_slices((x, y)).batch(5)
    model.fit(plan.batches(*data), epochs=1, verbose=0, validation_data=right)
