"""A record of which `map` or `parse` fails becomes a row of weight 0; no run ends."""

import numpy as np
import pytest
import tensorflow as tf

import tf_bandmf
from tf_bandmf.sampling import IndexedExamples, TFRecordExamples
from tf_bandmf.sampling.mapped import MappedExamples
from tf_bandmf.sampling.sources import ArrayExamples

M = 6
TEXTS = np.array(["1.5", "2", "n/a", "4", "", "6"])
BROKEN = TEXTS == "n/a"
BROKEN[4] = True
X = np.ones([M, 2], "f4")


def plan(batch_size=3):
    return tf_bandmf.plan(
        "identity",
        epsilon=4.0,
        delta=1e-3,
        num_examples=M,
        batch_size=batch_size,
        epochs=1,
        test_seed=0,
    )


def number(text):
    return tf.strings.to_number(text)[None]


def rows(schedule):
    found = list(schedule.dataset(0).as_numpy_iterator())
    return {
        key: np.concatenate([batch[key] for batch in found])
        for key in ("x", "sample_weight")
    }


def files(tmp_path, records):
    path = str(tmp_path / "a.tfrecord")
    with tf.io.TFRecordWriter(path) as writer:
        for record in records:
            writer.write(record)
    return [path]


def images():
    picture = tf.zeros([2, 2, 1], tf.uint8) + 7
    whole = tf.io.encode_png(picture).numpy()
    return [whole, whole[: len(whole) // 2], whole, b"", whole, b"GIF89a"]


def decoded(record):
    return tf.ensure_shape(tf.io.decode_png(record, 1), [2, 2, 1])


def examples():
    feature = tf.train.Feature(float_list=tf.train.FloatList(value=[1.0]))
    whole = tf.train.Example(features=tf.train.Features(feature={"x": feature}))
    return [whole.SerializeToString(), b"\xff", whole.SerializeToString()] * 2


def parsed_at_once(records):
    spec = {"x": tf.io.FixedLenFeature([1], tf.float32)}
    return tf.io.parse_example(records, spec)["x"]


@pytest.mark.attack(
    "A record that cannot be read",
    tried="Texts that are no numbers, a damaged PNG, bytes that are no example, in map and "
    "in parse: each would end the run, and that it ended would tell about the record.",
    area="inputs",
    invariants=[5, 18],
)
@pytest.mark.invariant(18)
def test_a_record_that_map_fails_for_has_weight_zero():
    found = rows(plan().batches(TEXTS, map=number))
    np.testing.assert_array_equal(np.sort(found["x"].ravel()), [0, 0, 1.5, 2, 4, 6])
    np.testing.assert_array_equal(found["sample_weight"] == 0, found["x"].ravel() == 0)


def test_failed_records_are_counted_once():
    source = MappedExamples(ArrayExamples(TEXTS, None, None, M), number)
    draw = tf_bandmf.sampling.sources.Draw(tf.constant(1, tf.int64), np.zeros(2, "i8"))
    for _ in range(2):
        source.drawn(tf.range(M, dtype=tf.int64), draw)
    assert source.failed.count() == BROKEN.sum()


@pytest.mark.parametrize("batch_size", [1, 3, 6])
@pytest.mark.invariant(18)
def test_a_damaged_image_has_weight_zero(tmp_path, batch_size):
    source = TFRecordExamples(files(tmp_path, images()), decoded)
    found = rows(plan(batch_size).batches(source))
    assert found["x"].sum() == 3 * 4 * 7
    assert found["sample_weight"].sum() == 3
    assert source.failed.count() == 3


@pytest.mark.invariant(18)
def test_a_parse_of_many_records_keeps_the_whole_ones(tmp_path):
    source = TFRecordExamples(files(tmp_path, examples()), parsed_at_once, batched=True)
    found = rows(plan().batches(source))
    assert found["x"].sum() == found["sample_weight"].sum() == 4


def test_what_is_total_has_no_weights():
    batches = plan().batches(X, map=lambda x: x * 2)
    assert "sample_weight" not in next(iter(batches.dataset(0)))


def until_small(x):
    return tf.while_loop(lambda v: v[0] > 1e-3, lambda v: [v * 0.5], [x])[0]


def until_small_or_long(x):
    return tf.while_loop(
        lambda v: v[0] > 1e-3, lambda v: [v * 0.5], [x], maximum_iterations=20
    )[0]


@pytest.mark.invariant(18)
def test_a_loop_that_may_not_end_is_refused():
    x = np.ones([M, 1], "f4")
    with pytest.raises(ValueError, match="maximum_iterations"):
        plan().batches(x, map=until_small)
    plan().batches(x, map=until_small_or_long)


@pytest.mark.invariant(16)
def test_a_map_reads_no_files():
    with pytest.raises(ValueError, match="ReadFile"):
        plan().batches(np.array([__file__] * M), map=tf.io.read_file)


def test_a_function_that_always_fails_is_an_error():
    with pytest.raises(ValueError, match="fails for all"):
        plan().batches(np.array(["a"] * M), map=number)


@pytest.mark.attack(
    "An example that cannot be fetched",
    tried="The function that fetches by index raises for a record, or returns another "
    "shape: the row is NaN, or has weight 0; the others are as they were.",
    area="inputs",
    invariants=[18],
)
@pytest.mark.parametrize("shape", [False, True], ids=["raises", "shape"])
@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.invariant(18)
def test_an_example_that_cannot_be_fetched_ends_no_run(dtype, shape, figure):
    x = np.arange(2 * M).reshape(M, 2).astype(dtype)
    bad = {0, 4}

    def fetch(indices):
        if bad & set(indices.tolist()):
            if not shape or len(indices) > 1:
                raise OSError("a damaged file")
            return x[indices, :1]
        return x[indices]

    source = IndexedExamples(fetch, M)
    batches = list(plan().batches(source).dataset(0).as_numpy_iterator())
    found = np.concatenate([batch["x"] for batch in batches])
    works = np.isin(np.arange(M), list(bad), invert=True)
    if dtype == "float32":
        assert np.isnan(found).all(axis=1).sum() == 2
        assert "sample_weight" not in batches[0]
        kept = found[~np.isnan(found[:, 0])]
    else:
        weights = np.concatenate([batch["sample_weight"] for batch in batches])
        assert sorted(weights) == [0, 0, 1, 1, 1, 1]
        kept = found[weights > 0]
    np.testing.assert_array_equal(np.sort(kept, axis=0), x[works])
    assert source.failed.count() == 2
    figure("2 of 6")


def test_a_fetch_that_fails_for_no_example_but_for_several_is_refused():
    def fetch(indices):
        if len(indices) > 1:
            raise OSError("one at a time")
        return X[indices]

    with pytest.raises(OSError, match="one at a time"):
        IndexedExamples(fetch, M)
