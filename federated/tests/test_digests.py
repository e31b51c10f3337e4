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


def test_every_kind_of_element_counts():
    def of(*values, batch=2):
        rows = {"x": np.array(values, np.int32), "y": [f"t{v}" for v in values]}
        return tf.data.Dataset.from_tensor_slices(rows).batch(batch)

    reference = digest_of_data([of(1, 2, 3)])
    assert reference == digest_of_data([of(1, 2, 3)])
    others = [of(1, 2, 3, batch=3), of(1, 2), of(1, 3, 2)]
    others.append(of(1, 2, 3).map(lambda e: {**e, "x": tf.cast(e["x"], tf.int64)}))
    others.append(of(1, 2, 3).map(lambda e: {"x": e["x"], "z": e["y"]}))
    others.append(of(1, 2, 3).take(0))
    found = {digest_of_data([other]) for other in others}
    assert len(found) == len(others) and reference not in found
    # Nobody's element is taken for a neighbor's.
    none = of(1).take(0)
    assert digest_of_data([of(1), none]) != digest_of_data([none, of(1)])


def test_data_made_by_python_and_ragged_data_have_digests():
    def numbers():
        yield from (1.0, 2.0)

    spec = tf.TensorSpec([], tf.float32)
    made = tf.data.Dataset.from_generator(numbers, output_signature=spec)
    assert digest_of_data([made]) == digest_of_data([made])
    assert digest_of_data([made]) != digest_of_data([made.skip(1)])
    rows = [tf.ragged.constant(values) for values in ([[1], [2, 3]], [[1, 2], [3]])]
    ragged = [tf.data.Dataset.from_tensors(value) for value in rows]
    assert digest_of_data(ragged[:1]) != digest_of_data(ragged[1:])


def test_python_does_not_read_the_elements_one_by_one(monkeypatch):
    """Minutes for a round of a thousand clients, if it did."""
    monkeypatch.setattr(
        type(dataset(1)), "__iter__", lambda self: pytest.fail("read by Python")
    )
    assert digest_of_data([dataset(1, 2)]) != digest_of_data([dataset(2, 1)])
