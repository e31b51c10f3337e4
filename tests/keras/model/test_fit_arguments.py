"""`fit` and `plan.batches` with the arguments that Keras users would try."""

import subprocess
import sys
import traceback

import keras
import numpy as np
import pytest
import tensorflow as tf
from rows import ByIndex
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
from tf_bandmf.keras.clipping import clipped_gradient_sums

SGD = keras.optimizers.SGD


class Pairs(keras.utils.PyDataset):
    """A data set that can only be iterated, and yields batches."""

    def __len__(self):
        return 2


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
    with refused(model, ValueError, f"{argument} cannot"):
        model.fit(plan.batches(*data), **{argument: value})


@pytest.mark.parametrize(
    ("weights", "drawn", "options", "says"),
    [
        (np.full(22, 0.5), {}, {}, True),
        (None, {}, {"class_weight": {0: 0.5}}, False),
        # A `map` that may fail adds sample weights, which the caller did not pass.
        (None, {"map": lambda x: 2.0 * x}, {}, False),
    ],
)
def test_weights_that_clipping_undoes_are_named(weights, drawn, options, says, recwarn):
    plan, model = plan_and_model(epochs=1, batch_size=22)
    model.fit(plan.batches(*data, weights, **drawn), verbose=0, **options)
    said = " ".join(str(each.message) for each in recwarn)
    assert ("before gradients are clipped" in said) == says


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda x, y: tf.data.Dataset.from_tensor_slices((x, y)), "open_memmap"),
        (lambda x, y: Pairs(), "len.source."),
        (lambda x, y: iter([(x, y)]), "makes a generator"),
        (lambda x, y: x, r"plan\.batches\(x, y\)"),
    ],
)
def test_the_first_error_names_the_way(make, match):
    with pytest.raises(TypeError, match=match):
        make_private_model(make_plan()).fit(make(*data))


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda x: {"a": Pairs()}, "not in a structure"),
        (lambda x: iter(x), "can be read only once"),
        (lambda x: [tf.constant(1234.5)] * 22, r"found x of shape \(\)"),
        (lambda x: [np.full(1 + i % 2, 1234.5) for i in range(22)], "pad_sequences"),
        (lambda x: tf.ragged.constant([[1234.5], []] * 11), "to_tensor"),
        (lambda x: tf.sparse.from_dense([[1234.5]] * 22), "csr_matrix"),
        (lambda x: np.array([1234.5, "1234.5", None] * 22, object), "dict"),
    ],
)
def test_what_is_no_array_is_refused_with_the_way(make, match):
    with pytest.raises((TypeError, ValueError), match=match) as caught:
        make_plan().batches(make(data[0]))
    # Error messages get into logs, so they must not contain the values of a record.
    assert "1234" not in "".join(traceback.format_exception(caught.value))


def test_class_weights_by_output_are_refused_with_the_way():
    plan = make_plan()
    with pytest.raises(ValueError, match=r"'kind'.* sample_weight="):
        make_private_model(plan).fit(
            plan.batches(*data), class_weight={"kind": {0: 1.0, 1: 2.0}}
        )


def test_epochs_end_where_they_do_with_single_steps():
    plan, model = plan_and_model(steps_per_execution=100)
    ends = []
    count = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: ends.append(model.optimizer.steps_taken)
    )
    with pytest.warns(UserWarning, match="does not divide the 4 steps"):
        model.fit(plan.batches(*data), epochs=2, callbacks=[count], verbose=0)
    # An epoch of 22 examples in batches of 6 has four steps.
    assert ends == [4, 8]


@pytest.mark.invariant(20)
def test_an_index_means_one_example():
    x, later = data[0], [0.0]
    batches = make_plan().batches(ByIndex(lambda i: x[i] + later[0], len(x)))
    later[0] = 0.01
    with pytest.raises(tf.errors.InvalidArgumentError, match="has changed since"):
        list(batches)


@pytest.mark.parametrize(
    ("class_weight", "clipping", "one_hot"),
    [
        ({0: 0.25, 2: 3.0}, "automatic", True),
        ({1: 0.5}, "flat", False),
        ({0: 0.0, 1: 5}, "flat", True),
    ],
)
@pytest.mark.slow_cases(but=["class_weight0-automatic-True"])
def test_class_weights_multiply_what_examples_contribute(
    class_weight, clipping, one_hot
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
        model.fit(plan.batches(x, y), verbose=0, **options)
        learned.append(flat(model) - before)
    model = make_private_model(plan, loss=loss)

    @tf.function(autograph=False)
    def alone(x, y):
        how = tf_bandmf.keras.Clipping(clipping)
        data = x[None], y[None]
        return clipped_gradient_sums(model, *data, l2_norm_clip=0.01, clipping=how).sums

    rows = [flat(alone(*map(tf.constant, pair))) for pair in zip(x, y)]
    # SGD with rate 1 subtracts the sums divided by 22.
    expected = (1.0 - weights) @ np.array(rows) / 22
    grid = 2.0**-10 * plan.noise_stddev / 22
    np.testing.assert_allclose(learned[1] - learned[0], expected, atol=grid)
    assert np.abs(expected).max() > 10 * grid


@pytest.mark.parametrize(
    "reduction, clipping, clip_norm, acts",
    [
        ("sum_over_batch_size", "flat", 100.0, True),
        ("sum_over_batch_size", "flat", 0.01, False),
        ("sum_over_batch_size", "automatic", 100.0, False),
        ("mean_with_sample_weight", "flat", 100.0, False),
    ],
)
def test_where_the_weight_of_an_example_acts(reduction, clipping, clip_norm, acts):
    # docs/loss.md: a weight that scales the loss matters only below the clip norm.
    x, y = data
    model = make_plain_model(hidden=False)
    loss = keras.losses.SparseCategoricalCrossentropy(True, reduction=reduction)
    model.compile(loss=loss)

    def contribution(weight):
        sums = clipped_gradient_sums(
            model,
            x[:1],
            y[:1],
            np.float32([weight]),
            l2_norm_clip=clip_norm,
            clipping=tf_bandmf.keras.Clipping(clipping),
        ).sums
        return np.linalg.norm(flat(sums))

    assert contribution(0.0) == 0.0
    for weight in (0.5, 5.0):
        ratio = contribution(weight) / contribution(1.0)
        assert ratio == pytest.approx(weight if acts else 1.0, rel=0.05)


def test_shares_are_at_most_the_clip_norm():
    x, y = data
    model = make_plain_model()
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    for share, most in ((1e9, 1.0), (np.nan, 0.0), (-1.0, 0.0), (0.5, 0.5)):
        sums = clipped_gradient_sums(
            model, x[:1], y[:1], l2_norm_clip=0.01, shares=np.float32([share])
        ).sums
        assert np.linalg.norm(flat(sums)) == pytest.approx(0.01 * most, rel=1e-3)


def test_a_run_keeps_its_class_weights():
    plan, model = plan_and_model(batch_size=22)
    batches = plan.batches(*data)
    model.fit(batches, class_weight={0: 2.0}, verbose=0)
    with pytest.raises(ValueError, match="other data"):
        model.fit(batches, class_weight={0: 3.0}, verbose=0)
    with pytest.raises(ValueError, match="class_weight"):
        model.fit(batches, class_weight={0: -1.0}, verbose=0)


def test_a_backend_that_is_not_there_is_named_as_the_cause():
    code = (
        "import os, sys; os.environ['KERAS_BACKEND'] = 'jax'; sys.modules['jax'] = None\n"
        "import tf_bandmf.keras"
    )
    actual = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    last = actual.stderr.strip().splitlines()[-1]
    assert actual.returncode == 1
    assert (
        "KERAS_BACKEND" in last and "'jax'" in last and "install tf-bandmf" not in last
    )


def test_keras_layers_augment_one_example_at_a_time():
    # The layer shifts each of the equal examples by a different distance.
    x = np.broadcast_to(np.arange(36, dtype=np.float32).reshape(6, 6, 1), (22, 6, 6, 1))
    layers = keras.Sequential([keras.layers.RandomTranslation(0.3, 0.3)])
    runs = [list(make_plan().batches(x, data[1], map=layers)) for _ in range(2)]
    for a, b in zip(*runs, strict=True):
        np.testing.assert_array_equal(a["x"], b["x"])
        assert len(np.unique(np.reshape(a["x"], (-1, 36)), axis=0)) > 1


def test_targets_that_are_strings_are_refused_with_what_to_do():
    plan, model = plan_and_model()
    names = np.array(["a", "b", "c"])[data[1]]
    with refused(model, TypeError, r"np\.unique"):
        model.fit(plan.batches(data[0], names), verbose=0)


def test_epochs_that_are_left_out_are_named():
    plan, model = plan_and_model(epochs=3)
    with pytest.warns(UserWarning, match=r"epochs is left out: .* Give epochs=3"):
        model.fit(plan.batches(*data), verbose=0)


def test_validation_data_of_another_shape_cost_no_epoch():
    plan, model = plan_and_model(epochs=1)
    x, y = data
    wrong = tf.data.Dataset.from_tensor_slices((x[:, :3], y)).batch(5)
    for validation in ((x[:, :3], y), wrong):
        with refused(model, ValueError, "Nothing was trained"):
            model.fit(
                plan.batches(*data), epochs=1, verbose=0, validation_data=validation
            )
    right = tf.data.Dataset.from_tensor_slices((x, y)).batch(5)
    model.fit(plan.batches(*data), epochs=1, verbose=0, validation_data=right)
