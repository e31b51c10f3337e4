"""What cannot learn is refused before the first step, or named, from a look at the data."""

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
    **options,
):
    x, y = data
    plan = make_plan("identity", test_seed=None)
    model = keras.Sequential([layers.Input((5,), dtype=dtype), *first, last])
    model = tf_bandmf.keras.make_private(model)
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
        fit(data, make_plan, last, loss, **options)
    assert "Nothing was trained" in str(refusal.value)


@pytest.mark.parametrize("classes", [3, 4])
def test_labels_without_an_output_are_named(data, make_plan, classes):
    x, _ = data
    labels = np.arange(len(x)) % 4
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(
            (x, labels),
            make_plan,
            layers.Dense(classes, "softmax"),
            "sparse_categorical_crossentropy",
        )
    named = [str(one.message) for one in caught if "none of the classes" in str(one)]
    assert len(named) == (classes == 3)
    if named:
        share = 100 * np.mean(labels == 3)
        assert named[0].startswith(f"{share:.2g}% of {len(x)} examples")
