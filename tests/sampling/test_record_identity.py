"""A second run on the same records is detected in any kind of container."""

import numpy as np
import pytest
import tensorflow as tf
from rows import ByIndex, InBatches
from small_plans import small_plan

from tf_bandmf.sampling import identity
from tf_bandmf.sampling.identity import record_hashes
from tf_bandmf.sampling.sources import IndexedExamples

M = 40


def plan():
    return small_plan("identity", M, 8, 2, test_seed=0)


def sketch(batches):
    next(iter(batches.dataset()))
    return identity.records_of(batches.schedule_id)


def structures(values, numbers, y):
    """Returns the same records in containers of many types and structures."""
    named = {"a": values.astype(np.float32), "b": numbers}
    matrix = np.column_stack([values, numbers])
    dataset = tf.data.Dataset.from_tensor_slices((named, y))

    def one_by_one():
        for i in range(M):
            yield {name: leaf[i] for name, leaf in named.items()}, y[i]

    return {
        "names": (named, y),
        "other dtypes": ({"a": values, "b": numbers.astype(np.float64)}, y),
        "tuple": ((values, numbers.astype(np.int64)), y),
        "list": ([values, numbers], y),
        "nested": ({"inner": {"a": values}, "outer": (numbers,)}, y),
        "column": ({"a": values, "b": numbers[:, None]}, y),
        "matrix": (matrix, y),
        "each column": ({f"column {i}": matrix[:, i] for i in range(5)}, y),
        "permuted": (tf.nest.map_structure(lambda leaf: leaf[::-1], named), y[::-1]),
        "other labels": (named, 1 - y),
        "no labels": (named,),
        "tensors": (tf.nest.map_structure(tf.constant, named), y),
        "indexed": (ByIndex(lambda i: ({n: v[i] for n, v in named.items()}, y[i]), M),),
        "tf.data": (dataset,),
        "batches of tf.data": (dataset.batch(8),),
        "PyDataset": (InBatches((named, y), 8),),
        "generator": (one_by_one,),
    }


@pytest.mark.slow_cases("50")
@pytest.mark.attack(
    "The same records, divided among different inputs",
    tried="A second run on the same records: permuted, with other labels, as a dict, a "
    "tuple or a matrix, read by index, from tf.data, a PyDataset or a generator.",
    area="inputs",
)
@pytest.mark.parametrize("most", [50, 2**40])
@pytest.mark.invariant(19)
def test_a_record_is_recognized_in_every_structure(most, figure):
    rng = np.random.default_rng(5)
    values, y = rng.normal(size=(M, 4)), np.arange(M) % 3
    numbers = rng.integers(most, size=M).astype(np.int32 if most == 50 else np.int64)
    sketches = {
        name: sketch(plan().batches(*arguments))
        for name, arguments in structures(values, numbers, y).items()
    }
    for name, first in sketches.items():
        assert identity.share_examples(first, sketches["names"]), name
    figure(f"{len(sketches)} structures, each pair recognized")
    # As a control, records that agree in only some of their values count as different.
    others = sketch(plan().batches((values, numbers + 1), y))
    for name, first in sketches.items():
        assert not identity.share_examples(first, others), name


def test_values_count_and_not_dtypes():
    whole = np.array([[3, 70_000], [2**40, 1], [2**40 + 1, 1]])
    same = [
        record_hashes(tf.constant(whole, dtype)).numpy()
        for dtype in (tf.int64, tf.float64, tf.uint64)
    ]
    for hashes in same[1:]:
        np.testing.assert_array_equal(hashes, same[0])
    # All three records have different hashes, although some are equal in float32.
    assert len(set(same[0].tolist())) == 3
    small = np.array([[0, 1], [1, 0]])
    for dtype in (tf.bool, tf.uint8, tf.float16, tf.bfloat16, tf.float32):
        np.testing.assert_array_equal(
            record_hashes(tf.cast(small, dtype)), record_hashes(small)
        )
    zeros = record_hashes(np.array([[0.0], [-0.0]]))
    assert zeros[0] == zeros[1]
    texts = record_hashes({"a": np.array(["x", "y", "x"]), "b": np.array([1, 1, 2])})
    assert len(set(texts.numpy().tolist())) == 3


def test_what_is_read_later_is_recognized_too():
    """Records of an indexed data set are recognized even if first read during a run.

    Before the run, only some examples of a large indexed data set are read.
    """
    m = 2_000
    x = np.random.default_rng(0).normal(size=(m, 2)).astype(np.float32)
    source = IndexedExamples(ByIndex(lambda i: x[i], m))
    records = source.records
    before = len(records())
    source.gather(tf.range(m, dtype=tf.int64))
    assert before < 300 and len(records()) == m


@pytest.mark.invariant(19)
def test_different_people_with_equal_records_are_not_the_same():
    rng = np.random.default_rng(1)

    def drawn(count, values):
        return rng.integers(values, size=count)

    for count, values in ((64, 8), (64, 10_000), (2_000, 1_024), (50_000, 200_000)):
        pairs = [(drawn(count, values), drawn(count, values)) for _ in range(20)]
        assert not any(identity.share_examples(*pair) for pair in pairs)
        pairs = [(drawn(count, values), drawn(5 * count, values)) for _ in range(5)]
        assert not any(identity.share_examples(*pair) for pair in pairs)
    # Reordered records are recognized even if they have few distinct values. A common
    # subset of the records is recognized, too.
    hashes = rng.integers(8, size=64)
    assert identity.share_examples(hashes, rng.permutation(hashes))
    hashes = rng.integers(2**60, size=1_000)
    new = np.append(hashes[:50], -hashes[50:])
    assert identity.share_examples(hashes, new)
