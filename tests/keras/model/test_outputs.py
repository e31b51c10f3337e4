"""What cannot learn is refused before the first step, without a look at the data."""

import warnings

import keras
import numpy as np
import pytest

import tf_bandmf
import tf_bandmf.keras

layers = keras.layers


def fit(
    data,
    make_plan,
    last,
    loss,
    dtype="float32",
    first=(),
    ranges=None,
    self_check=False,
    **options,
):
    x, y = data
    plan = make_plan("identity", test_seed=None)
    model = keras.Sequential([layers.Input((5,), dtype=dtype), *first, last])
    model = tf_bandmf.keras.make_private(model, self_check=self_check)
    optimizer = tf_bandmf.keras.PrivateOptimizer(keras.optimizers.SGD(0.1), plan)
    model.compile(optimizer, loss)
    batches = plan.batches(x.astype(dtype), y, ranges=ranges)
    model.fit(batches, epochs=1, verbose=0, **options)
    return model


@pytest.mark.parametrize(
    ("last", "loss", "options", "message"),
    [
        (layers.Dense(1, "softmax"), "binary_crossentropy", {}, "always 1"),
        (
            layers.Dense(1),
            "sparse_categorical_crossentropy",
            {},
            "one output per class",
        ),
        (
            layers.Dense(3, "softmax"),
            keras.losses.SparseCategoricalCrossentropy(),
            {"class_weight": {0: 1.0, 7: 0.5}},
            "weight for class 7",
        ),
        (
            layers.Dense(3, "softmax"),
            keras.losses.SparseCategoricalCrossentropy(
                reduction="mean_with_sample_weight"
            ),
            {"class_weight": {0: 0.5}},
            "divides by the weights again",
        ),
        (
            layers.Dense(3, "softmax"),
            "sparse_categorical_crossentropy",
            {"ranges": {"y": (0, 9)}},
            "declared to be from 0 to 9",
        ),
    ],
)
def test_what_learns_nothing_is_refused(data, make_plan, last, loss, options, message):
    with pytest.raises(ValueError, match=message) as refusal:
        # Before the self-check, where TensorFlow would refuse labels in words of its own.
        fit(data, make_plan, last, loss, self_check=True, **options)
    assert "Nothing was trained" in str(refusal.value)


@pytest.mark.slow
def test_what_may_learn_little_is_said(data, make_plan):
    loss = "sparse_categorical_crossentropy"
    with pytest.warns(UserWarning, match="from_logits=True"):
        fit(data, make_plan, layers.Dense(3), loss)
    last = layers.Dense(3, "softmax")
    x = np.abs(data[0] * 50), data[1]
    with pytest.warns(UserWarning, match="Divide by 255"):
        fit(x, make_plan, last, loss, dtype="uint8")
    x, last = (data[0] * 3, data[1]), layers.Dense(3, "softmax")
    with pytest.warns(UserWarning, match="Divide by 1000"):
        fit(x, make_plan, last, loss, ranges={"x": (-1e3, 10)})


@pytest.mark.slow_cases("loss1")
@pytest.mark.parametrize("loss", ["mse", keras.losses.Huber()])
def test_one_number_for_several_is_said(data, make_plan, loss):
    targets = np.zeros((len(data[0]), 2), "float32")
    with pytest.warns(
        UserWarning, match=r"shape \(1,\), and its targets have .*\(2,\)"
    ):
        fit((data[0], targets), make_plan, layers.Dense(1, "sigmoid"), loss)


@pytest.mark.slow_cases("shape0")
@pytest.mark.parametrize("shape", [(), (1,)])
def test_a_last_axis_of_one_number_is_no_other_shape(data, make_plan, shape):
    targets = np.zeros((len(data[0]), *shape), "float32")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*compares each with each")
        fit((data[0], targets), make_plan, layers.Dense(1), "mse")


def test_rows_of_users_are_no_numbers_of_an_output(data, make_plan):
    x, _ = data
    plan = make_plan(num_examples=len(x) // 2, unit="one user", batch_size=2, epochs=1)
    model = keras.Sequential([layers.Input((5,)), layers.Dense(1)])
    tf_bandmf.keras.make_private(model, self_check=False)
    model.compile(tf_bandmf.keras.PrivateOptimizer("sgd", plan), "mse")
    users = np.arange(len(x)) // 2
    targets = np.zeros(len(x), "float32")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*compares each with each")
        model.fit(
            plan.batches(x, targets, users=users, rows_per_user=2), epochs=1, verbose=0
        )


@pytest.mark.slow
def test_what_is_right_is_not_warned_of(data, make_plan):
    logits = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "The plan's noise is shaped")
        warnings.filterwarnings("ignore", "The noise in a weight")
        fit(data, make_plan, layers.Dense(3), logits)
        x = np.abs(data[0] * 50), data[1]
        first = [layers.Rescaling(1 / 255)]
        fit(x, make_plan, layers.Dense(3), logits, dtype="uint8", first=first)
