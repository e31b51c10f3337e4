"""A record for which `map` or `parse` fails gets weight 0, and the run continues."""

import traceback

import numpy as np
import pytest
import tensorflow as tf
from rows import ByIndex, record_file
from small_plans import small_plan

from tf_bandmf.sampling import TFRecordExamples

M = 6
TEXTS = np.array(["1.5", "2", "n/a", "4", "", "6"])
BROKEN = TEXTS == "n/a"
BROKEN[4] = True


def plan(batch_size=3):
    return small_plan("identity", M, batch_size, 1, delta=1e-3, test_seed=0)


def number(text):
    return tf.strings.to_number(text)[None]


def rows(schedule):
    batches = list(schedule.dataset(0).as_numpy_iterator())
    return {
        key: np.concatenate([batch[key] for batch in batches])
        for key in ("x", "sample_weight")
    }


def images():
    picture = tf.zeros([2, 2, 1], tf.uint8) + 7
    whole = tf.io.encode_png(picture).numpy()
    return [whole, whole[: len(whole) // 2], whole, b"", whole, b"GIF89a"]


def decoded(record):
    return tf.ensure_shape(tf.io.decode_png(record, 1), [2, 2, 1])


@pytest.mark.attack(
    "A record that cannot be read",
    tried="Texts that are not numbers, a damaged PNG, or wrong bytes, in `map` or "
    "`parse`. An error would end the run, and so reveal something about the record.",
    area="inputs",
)
@pytest.mark.invariant(5, 18)
def test_a_record_that_map_fails_for_has_weight_zero():
    made = rows(plan().batches(TEXTS, map=number))
    np.testing.assert_array_equal(np.sort(made["x"].ravel()), [0, 0, 1.5, 2, 4, 6])
    np.testing.assert_array_equal(made["sample_weight"] == 0, made["x"].ravel() == 0)


@pytest.mark.slow_cases("1")
@pytest.mark.parametrize("batch_size", [1, 3, 6])
@pytest.mark.invariant(18)
def test_a_damaged_image_has_weight_zero(tmp_path, batch_size):
    source = TFRecordExamples([record_file(tmp_path / "a", images())], decoded)
    made = rows(plan(batch_size).batches(source))
    assert made["x"].sum() == 3 * 4 * 7
    assert made["sample_weight"].sum() == 3


@pytest.mark.invariant(16)
def test_a_map_reads_no_files():
    with pytest.raises(ValueError, match="ReadFile"):
        plan().batches(np.array([__file__] * M), map=tf.io.read_file)


PRIVATE = "Anna"


def test_a_function_that_always_fails_is_an_error():
    with pytest.raises(ValueError, match=r"failed on all.*line [0-9]+ of") as caught:
        plan().batches(np.array([PRIVATE] * M), map=number)
    assert PRIVATE not in "".join(traceback.format_exception(caught.value))


def test_no_error_of_a_row_holds_values_of_records():
    """If reading a row fails, the error names the line of code but no record values."""

    def row(index):
        raise ValueError(f"no number: {PRIVATE}")

    said = r"can be read.*of test_failing\.py"
    with pytest.raises(ValueError, match=said) as caught:
        plan().batches(ByIndex(row, M))
    assert PRIVATE not in "".join(traceback.format_exception(caught.value))


def test_what_the_library_says_of_a_row_is_said():
    with pytest.raises(ValueError, match=r"x, \(x, y\).*found a tuple with 4"):
        plan().batches(ByIndex(lambda index: (index,) * 4, M))


@pytest.mark.attack(
    "An example that cannot be fetched",
    tried="A data set that is read by index raises for a record, or returns another "
    "shape: the record gets weight 0, and other records do not change.",
    area="inputs",
)
@pytest.mark.parametrize("shape", [False, True], ids=["raises", "shape"])
@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.invariant(18)
def test_an_example_that_cannot_be_fetched_ends_no_run(dtype, shape, figure):
    x = np.arange(2 * M).reshape(M, 2).astype(dtype)
    bad = {0, 4}

    def row(index):
        if index in bad:
            if not shape:
                raise OSError("a damaged file")
            return x[index, :1]
        return x[index]

    batches = list(plan().batches(ByIndex(row, M)).dataset(0).as_numpy_iterator())
    read = np.concatenate([batch["x"] for batch in batches])
    weights = np.concatenate([batch["sample_weight"] for batch in batches])
    assert sorted(weights) == [0, 0, 1, 1, 1, 1]
    works = np.isin(np.arange(M), list(bad), invert=True)
    kept = read[weights > 0]
    np.testing.assert_array_equal(kept[np.argsort(kept[:, 0])], x[works])
    figure("2 of 6")


def elements():
    return tf.data.Dataset.from_tensor_slices(TEXTS)


def numbers(texts, **options):
    return texts.map(number, **options)


def until_it_raises():
    for text in TEXTS:
        yield np.array([float(text)], "f4")


class Batches:
    """A data set of batches with the interface of `keras.utils.PyDataset`."""

    def __len__(self):
        return 2

    def __getitem__(self, place):
        return TEXTS[3 * place : 3 * place + 3].astype("f4")

    def on_epoch_end(self):
        pass


UNREADABLE = {
    "map": lambda: numbers(elements()),
    "batches": lambda: numbers(elements()).batch(2),
    "function": lambda: until_it_raises,
    "iterator": lambda: lambda: zip(map(np.float32, TEXTS[:, None]), range(M)),
    "PyDataset": Batches,
    "generator": lambda: tf.data.Dataset.from_generator(
        until_it_raises, output_signature=tf.TensorSpec([1], tf.float32)
    ).unbatch(),
    "no file": lambda: tf.data.TextLineDataset("/no/file"),
}


@pytest.mark.attack(
    "An element of a stream that cannot be read",
    tried="A tf.data.Dataset, a generator or a PyDataset raises for a record: the run "
    "does not start, and the error contains no values of records.",
    area="inputs",
)
@pytest.mark.parametrize("name", list(UNREADABLE))
@pytest.mark.invariant(18)
def test_a_stream_that_cannot_be_read_begins_no_run(name):
    with pytest.raises(ValueError, match="positions of later examples") as caught:
        plan().batches(UNREADABLE[name]())
    assert "n/a" not in "".join(traceback.format_exception(caught.value))
