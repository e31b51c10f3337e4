"""Digests: equal exactly if names, dtypes, shapes, values and their order are."""

import collections

import numpy as np
import pytest
import tensorflow as tf

from tf_bandmf_federated.digests import digest_of, digest_of_data


def dataset(*rows):
    return tf.data.Dataset.from_tensor_slices(np.array(rows, np.float32))


def test_equal_values_have_equal_digests():
    first = collections.OrderedDict(x=np.arange(3), y=[1.5, b"text"])
    second = collections.OrderedDict(x=tf.range(3, dtype=tf.int64), y=[1.5, b"text"])
    assert digest_of(first) == digest_of(second)


@pytest.mark.parametrize(
    "other",
    [
        {"z": np.arange(4)},
        {"x": np.arange(4).astype(np.int32)},
        {"x": np.arange(4).reshape(2, 2)},
        {"x": np.array([0, 1, 3, 2])},
        {"x": [np.arange(4)]},
        {"x": np.arange(4), "y": np.zeros(0)},
    ],
)
def test_any_difference_changes_it(other):
    assert digest_of(other) != digest_of({"x": np.arange(4)})


def test_texts_are_told_apart():
    assert digest_of(tf.constant(["ab", "c"])) != digest_of(tf.constant(["a", "bc"]))
    with pytest.raises(TypeError, match="Only arrays"):
        digest_of({"x": object()})


def test_data_are_digested_with_the_client_they_belong_to():
    reference = digest_of_data([dataset(1, 2), dataset(3)])
    assert reference == digest_of_data([dataset(1, 2), dataset(3)])
    for other in (
        [dataset(1), dataset(2, 3)],
        [dataset(2, 1), dataset(3)],
        [dataset(3), dataset(1, 2)],
        [dataset(1, 2, 3)],
        [dataset(1, 2)],
    ):
        assert digest_of_data(other) != reference
