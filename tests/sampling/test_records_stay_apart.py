"""Data sets must return the same examples each time, independently of each other."""

import numpy as np
import pytest
import tensorflow as tf
from rows import ByIndex, record_file
from small_plans import small_plan

from tf_bandmf.sampling import TFRecordExamples

M, WIDTH = 12, 3
X = np.arange(M * WIDTH, dtype="f4").reshape(M, WIDTH)


@pytest.fixture
def plan():
    return small_plan("identity", M, 4, 2, delta=1e-3)


@pytest.fixture
def records(tmp_path):
    return [record_file(tmp_path / "a.tfrecord", (row.tobytes() for row in X))]


def memory_mapped(tmp_path):
    np.save(tmp_path / "x.npy", X)
    array = np.load(tmp_path / "x.npy", mmap_mode="r+")
    return array, array


def in_memory(tmp_path):
    array = X.copy()
    return array, array


def by_index(tmp_path):
    array = X.copy()
    return array, ByIndex(array.__getitem__, M)


@pytest.mark.attack(
    "Arrays that are shuffled in place",
    tried="Permutes the rows of a memmap, or of an array in memory, between two "
    "epochs: an example would be used again too early.",
    area="inputs",
)
@pytest.mark.parametrize("kind", [memory_mapped, in_memory, by_index])
@pytest.mark.invariant(20)
def test_rows_that_change_after_the_schedule_was_made(kind, plan, tmp_path):
    array, given = kind(tmp_path)
    schedule = plan.batches(given)
    drawn = [batch["x"].numpy() for batch in schedule]
    array[:] = array[::-1].copy()
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"ha(ve|s) changed since"):
        list(schedule)
    array[:] = array[::-1].copy()
    for first, second in zip(drawn, schedule, strict=True):
        np.testing.assert_array_equal(first, second["x"])


def parsed(record):
    return tf.ensure_shape(tf.io.decode_raw(record, tf.float32), [WIDTH])


def impure():
    mean = tf.Variable(tf.zeros([WIDTH]))

    def centered(record):
        mean.assign(0.9 * mean + 0.1 * parsed(record))
        return parsed(record) - mean

    def on_the_host(record):
        copied = tf.numpy_function(np.copy, [parsed(record)], tf.float32)
        return tf.ensure_shape(copied, [WIDTH])

    return {
        "AssignVariableOp": centered,
        "RandomUniform": lambda record: parsed(record) * tf.random.uniform([]),
        "PyFunc": on_the_host,
    }


@pytest.mark.attack(
    "A parse function that combines records",
    tried="A running mean in a variable, random numbers, and Python code are refused.",
    area="inputs",
)
@pytest.mark.parametrize("operation", ["AssignVariableOp", "RandomUniform", "PyFunc"])
@pytest.mark.invariant(16)
def test_parse_is_a_function_of_one_record(operation, records, plan):
    with pytest.raises(ValueError, match=f"not a pure function .* {operation}"):
        plan.batches(TFRecordExamples(records, impure()[operation]))


@pytest.mark.invariant(20)
def test_another_parse_is_other_data(plan, records):
    first, same, other = (
        plan.batches(TFRecordExamples(records, parse)).schedule_id
        for parse in (parsed, parsed, lambda record: 2.0 * parsed(record))
    )
    assert first == same != other


class Centered(ByIndex):
    """An invalid data set: rows that are read in one call lose their common mean."""

    def __getitems__(self, indices):
        return list(X[indices] - (len(indices) > 1) * X[indices].mean(axis=0))


@pytest.mark.invariant(16)
def test_a_row_is_of_one_example(plan):
    with pytest.raises(ValueError, match="Example 0 of the data set has changed"):
        plan.batches(Centered(X.__getitem__, M))


@pytest.mark.attack(
    "A custom source",
    tried="A source of examples that draws random numbers is refused.",
    area="inputs",
)
@pytest.mark.invariant(16)
def test_a_source_of_ones_own_is_a_function_of_indices(plan):
    drawn = np.random.default_rng()
    with pytest.raises(ValueError, match=r"To augment, use plan\.batches"):
        plan.batches(ByIndex(lambda index: X[index] * drawn.uniform(), M))
