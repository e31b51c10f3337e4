"""Examples on disk (TFRecords, arrays, rows by index) give the same batches as arrays."""

import numpy as np
import pytest
import tensorflow as tf
from rows import ByIndex, record_file
from small_plans import schedule_for, small_plan

import tf_bandmf
from tf_bandmf.noise.keys import NoiseKey
from tf_bandmf.sampling import TFRecordExamples
from tf_bandmf.sampling.sources import IndexedExamples

SEED = NoiseKey.for_testing(0).sampler_seed()
M = 23
FIXED = tf_bandmf.FixedEpochOrder(M, 4, 3)
SHUFFLED = tf_bandmf.Shuffled(M, 4, 3)
POISSON = tf_bandmf.Poisson(M, 3)


def data():
    x = np.random.default_rng(0).normal(size=(M, 2, 3)).astype(np.float32)
    return x, np.arange(M)


def write(directory, names=("a", "b", "c"), x=None):
    """Writes files with different numbers of records; the records differ in length, too."""
    x, y = (data()[0] if x is None else x), data()[1]
    cuts = np.array_split(np.arange(M), [5, 6][: len(names) - 1])

    def record(i):
        values = {
            "x": tf.train.Feature(float_list=tf.train.FloatList(value=x[i].ravel())),
            "y": tf.train.Feature(int64_list=tf.train.Int64List(value=[y[i]])),
            "filler": tf.train.Feature(
                bytes_list=tf.train.BytesList(value=[b"#" * (7 * int(i))])
            ),
        }
        example = tf.train.Example(features=tf.train.Features(feature=values))
        return example.SerializeToString()

    return [
        record_file(directory / name, map(record, part))
        for name, part in zip(names, cuts)
    ]


FEATURES = {
    "x": tf.io.FixedLenFeature([2, 3], tf.float32),
    "y": tf.io.FixedLenFeature([], tf.int64),
}


def parse(record):
    parsed = tf.io.parse_single_example(record, FEATURES)
    return parsed["x"], parsed["y"]


class AtOnce(ByIndex):
    """A data set that can return several rows per call, like those of Hugging Face."""

    shape = (M, 2)

    def __getitems__(self, indices):
        return [self.row(i) for i in indices]


def rows_of(values, kind=ByIndex):
    def row(index):
        assert isinstance(index, int)
        return values[index]

    return kind(row, len(values))


def on_disk(kind, tmp_path):
    """Returns the arguments with which plan.batches reads examples from disk."""
    x, y = data()
    if kind == "tfrecord":
        return (TFRecordExamples(write(tmp_path), parse),)
    if kind == "indexed":
        return (rows_of(list(zip(x, y))),)
    if kind == "several at once":
        return (rows_of(list(zip(x, y)), AtOnce),)
    np.save(tmp_path / "x.npy", x)
    return np.load(tmp_path / "x.npy", mmap_mode="r"), y


# These samplings differ in the order of examples, and in whether batches may be empty.
CASES = [("tfrecord", FIXED), ("tfrecord", POISSON), ("indexed", POISSON)]
CASES += [("memmap", SHUFFLED), ("several at once", SHUFFLED)]


@pytest.mark.parametrize(
    ("kind", "participation"), CASES, ids=lambda case: getattr(case, "kind", case)
)
@pytest.mark.slow_cases("tfrecord-fixed_epoch_order", "tfrecord-poisson")
def test_batches_from_disk_are_those_from_memory(kind, participation, tmp_path):
    steps = participation.num_steps or 30
    x, y = data()
    inside = schedule_for(participation, steps, 7, x, y).join(SEED)
    outside = schedule_for(participation, steps, 7, *on_disk(kind, tmp_path)).join(SEED)
    spec = outside.dataset().element_spec
    assert spec["x"].shape.as_list()[1:] == [2, 3] and spec["x"].dtype == tf.float32
    for first_step in (0, 11):
        batches = list(outside.dataset(first_step))
        assert len(batches) == steps - first_step
        for wanted, batch in zip(inside.dataset(first_step), batches, strict=True):
            np.testing.assert_array_equal(batch["x"], wanted["x"])
            np.testing.assert_array_equal(batch["y"], wanted["y"])
            assert int(batch["step"]) == int(wanted["step"])


def test_schedule_id_covers_every_byte_and_no_file_names(tmp_path):
    def schedule_id(name, files, x=None):
        directory = tmp_path / name
        directory.mkdir()
        source = TFRecordExamples(write(directory, files, x), parse)
        return schedule_for(FIXED, 18, 7, source).schedule_id

    first = schedule_id("first", ("a", "b", "c"))
    assert schedule_id("second", ("all",)) == first
    changed = data()[0]
    changed[3, 1, 2] = np.nextafter(changed[3, 1, 2], np.float32(9.0))
    assert schedule_id("third", ("a", "b", "c"), changed) != first


@pytest.mark.parametrize("place", [14, -20])
def test_a_file_that_changes_meanwhile_is_found_out(tmp_path, place):
    files = write(tmp_path)
    schedule = schedule_for(FIXED, 18, 7, TFRecordExamples(files, parse))
    with open(files[2], "r+b") as file:
        content = bytearray(file.read())
        content[place] ^= 1
        file.seek(0)
        file.write(content)
    with pytest.raises(tf.errors.InvalidArgumentError, match="changed while it was"):
        list(schedule)
    with pytest.raises(ValueError, match="damaged"):
        TFRecordExamples(files, parse)


def test_unreadable_or_unsuitable_examples_are_refused(tmp_path):
    file = record_file(tmp_path / "z", [b"1" * 100], "GZIP")
    with pytest.raises(ValueError, match="uncompressed"):
        TFRecordExamples([file], parse)
    for function, said in (
        (lambda record: tf.io.decode_raw(record, tf.uint8), "one shape"),
        (lambda record: (record,) * 4, r"x, \(x, y\)"),
    ):
        examples = TFRecordExamples(write(tmp_path), function)
        with pytest.raises(ValueError, match=said):
            schedule_for(FIXED, 18, 7, examples)
    source = TFRecordExamples(write(tmp_path), parse)
    with pytest.raises(ValueError, match="for 22 examples, but the data set has 23"):
        schedule_for(tf_bandmf.FixedEpochOrder(M - 1, 4, 3), 18, 7, source)


@pytest.mark.parametrize("kind", ["U", "S", object])
def test_texts_that_are_fetched_are_the_texts(kind):
    texts = np.array(["a b", "ü", ""])
    given = np.char.encode(texts, "utf-8") if kind == "S" else texts.astype(kind)
    source = IndexedExamples(rows_of(list(given)))
    fetched = source.gather(tf.constant([2, 0, 1], tf.int64))["x"].numpy()
    assert fetched.tolist() == [b"", b"a b", "ü".encode()]


def test_missing_values_are_told(tmp_path, recwarn):
    """`batches` warns about NaN in examples, unless `map` may replace the NaN."""
    x, y = data()
    x[3, 1, 2] = np.nan
    stream = tf.data.Dataset.from_tensor_slices((x, y)).batch(5)
    files = TFRecordExamples(write(tmp_path, x=x), parse)
    plan = small_plan("bsr:2", M, 4, 3)
    for made in ((x, y), (stream,), (lambda: zip(x, y),), (files,)):
        with pytest.warns(UserWarning, match="4.35% of 23 inspected examples contain"):
            plan.batches(*made)
        plan.batches(*made, map=tf.abs)
    assert not [warning for warning in recwarn if "NaN" in str(warning.message)]
