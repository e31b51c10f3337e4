"""Data sets that can only be read in order are divided into batches, or refused."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import scipy.sparse
import tensorflow as tf
from rows import ByIndex, InBatches

import tf_bandmf
from tf_bandmf.sampling.streamed import StreamedExamples

M, BATCH, EPOCHS = 22, 4, 3
X = np.arange(M * 3, dtype=np.float32).reshape(M, 3)
Y = np.arange(M, dtype=np.int32) % 2


def _plan(**settings):
    chosen = {"num_examples": M, "batch_size": BATCH, "epochs": EPOCHS, **settings}
    return tf_bandmf.plan("identity", noise_multiplier=1.0, delta=1e-5, **chosen)


def _dataset(size=M):
    return tf.data.Dataset.from_tensor_slices((X[:size], Y[:size]))


def _generator():
    yield from zip(X, Y)


@pytest.mark.slow_cases("interleaved", "examples")
@pytest.mark.parametrize(
    "data",
    [
        _dataset(),
        _dataset().batch(5),
        _dataset().batch(11, drop_remainder=True),
        InBatches((X, Y), 5),
        _generator,
        _dataset().interleave(
            lambda x, y: tf.data.Dataset.from_tensors((x, y)), num_parallel_calls=2
        ),
    ],
    ids=["examples", "batches", "static", "PyDataset", "generator", "interleaved"],
)
def test_each_epoch_has_the_order_of_the_data(data):
    batches = list(_plan().batches(data))
    steps = -(-M // BATCH)
    assert len(batches) == EPOCHS * steps
    for epoch in range(EPOCHS):
        parts = batches[epoch * steps : (epoch + 1) * steps]
        np.testing.assert_array_equal(np.concatenate([b["x"] for b in parts]), X)
        np.testing.assert_array_equal(np.concatenate([b["y"] for b in parts]), Y)
    sizes = [len(batch["x"]) for batch in batches]
    assert sizes == [M * (p + 1) // steps - M * p // steps for p in range(steps)] * 3


@pytest.mark.slow
def test_a_run_goes_on_where_it_was():
    schedule = _plan().batches(_dataset())
    whole = list(schedule)
    for first in (0, 3, 6, 17):
        for batch, expected in zip(schedule.dataset(first), whole[first:], strict=True):
            np.testing.assert_array_equal(batch["x"], expected["x"])
            assert int(batch["step"]) == int(expected["step"])
    assert _plan().batches(_dataset()).schedule_id == schedule.schedule_id
    swapped = _dataset().take(1).concatenate(_dataset().skip(1))
    assert _plan().batches(swapped).schedule_id == schedule.schedule_id
    other = _dataset().skip(1).concatenate(_dataset().take(1))
    assert _plan().batches(other).schedule_id != schedule.schedule_id


@pytest.mark.invariant(2)
def test_a_shuffled_data_set_is_refused_before_the_run():
    with pytest.raises(ValueError, match="reshuffle_each_iteration=False"):
        _plan().batches(_dataset().shuffle(M))
    once = _dataset().shuffle(M, seed=1, reshuffle_each_iteration=False)
    assert len(list(_plan().batches(once))) == 18


@pytest.mark.invariant(20)
def test_an_example_that_changes_stops_the_pass():
    changes = []

    def changing():
        for place, (x, y) in enumerate(zip(X, Y)):
            yield (x + 1 if changes and place == 9 else x), y

    batches = iter(_plan().batches(changing))
    for _ in range(6):
        next(batches)
    changes.append(None)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="another example at place"
    ):
        list(batches)


def test_a_later_pass_that_ends_early_is_noticed():
    ends = []

    def ending():
        yield from list(zip(X, Y))[: 7 if ends else M]

    schedule = _plan().batches(ending)
    ends.append(None)
    with pytest.raises(tf.errors.InvalidArgumentError, match="place 7"):
        list(schedule)


def test_data_of_another_size_are_refused():
    with pytest.raises(ValueError, match=r"but the data set has 21, .* Make a plan"):
        _plan().batches(_dataset(21))
    with pytest.raises(ValueError, match="has more"):
        _plan(num_examples=21).batches(_dataset())
    with pytest.raises(ValueError, match="infinite"):
        _plan().batches(_dataset().repeat())


@pytest.mark.invariant(2)
@pytest.mark.parametrize(
    "data, said",
    [
        ((np.tile(X, [2, 1]), np.tile(Y, 2)), "22 of 44 examples"),
        ((_dataset().concatenate(_dataset(1)),), "1 of 23 examples"),
    ],
    ids=["all, arrays", "one, stream"],
)
def test_a_record_in_several_rows_is_warned_of(data, said):
    """`batches` warns about copies of records, as one person may own all copies.

    For example, four copies of a record can change a sum by 2.45 clip norms.
    """
    plan = _plan(num_examples=int(said.split()[2]))
    with pytest.warns(UserWarning, match=said):
        assert plan.batches(*data).num_steps == plan.num_steps


def test_other_targets_are_no_repetition(recwarn):
    _plan(num_examples=2 * M).batches(np.tile(X, [2, 1]), np.append(Y, Y + 2))
    users = np.tile(np.arange(M), 2)
    _plan(unit="one user").batches(
        np.tile(X, [2, 1]), np.tile(Y, 2), users=users, rows_per_user=2
    )
    assert not [warning for warning in recwarn if "repeat" in str(warning.message)]


def _centered(x, y):
    return x - tf.reduce_mean(x, axis=0), y


def _added(state, example):
    x, y = example
    return state + x[0], (x + state, y)


@pytest.mark.invariant(4)
@pytest.mark.parametrize(
    "meeting",
    [
        _dataset().batch(11).map(_centered).unbatch(),
        _dataset().padded_batch(11).map(_centered).prefetch(1),
        _dataset().batch(2).filter(lambda x, y: tf.reduce_sum(x) < 1e6).unbatch(),
        _dataset().scan(0.0, _added),
        _dataset().map(lambda x, y: (x, y)).batch(2).unbatch().batch(2).map(_centered),
    ],
    ids=["unbatched", "padded", "filter", "scan", "twice"],
)
def test_a_function_of_a_data_set_that_sees_several_examples_is_refused(meeting):
    """A `tf.data` function of several examples is refused, as it breaks clipping.

    For example, an example in a standardized batch could change a sum by 5.97 clip
    norms.
    """
    with pytest.raises(ValueError, match=r"map before batch.*unbatch\(\)\.map"):
        _plan().batches(meeting)


def test_what_examples_are_made_of_decides():
    twice = lambda x, y: (2.0 * x, y)  # noqa: E731
    sparse = tf.data.Dataset.from_tensor_slices((tf.sparse.from_dense(X), Y))
    made = [
        _dataset().map(twice).batch(11),
        _dataset().batch(11).unbatch().map(twice),
        sparse.batch(2).unbatch().map(lambda x, y: (2.0 * tf.sparse.to_dense(x), y)),
        tf.data.Dataset.from_generator(
            _generator,
            output_signature=(tf.TensorSpec([3]), tf.TensorSpec([], tf.int32)),
        )
        .map(twice)
        .batch(11),
    ]
    for dataset in made:
        first = next(iter(_plan().batches(dataset)))
        np.testing.assert_array_equal(first["x"], 2.0 * X[:3])


def test_examples_of_several_shapes_or_no_tensors_are_refused():
    with pytest.raises(ValueError, match="same structure, shapes"):
        StreamedExamples(lambda: (np.zeros(1 + i % 2) for i in range(M)), M)
    with pytest.raises(TypeError, match="pass the function that makes it"):
        _plan().batches(_generator())


def test_the_call_of_batch_says_that_elements_are_batches():
    rows = tf.data.Dataset.from_tensor_slices((X, X)).filter(lambda x, y: True)
    for data in (rows, rows.batch(256)):
        assert StreamedExamples(data, M).num_examples == M
    with pytest.raises(ValueError, match=r"has more.*: dataset\.batch\(256\)"):
        StreamedExamples(rows.batch(2), M // 2)


def test_sparse_examples_become_dense():
    sparse = scipy.sparse.random(M, 7, density=0.3, random_state=0, dtype=np.float32)
    batches = _plan().batches(sparse, Y)
    order = np.concatenate(
        [batches.example_indices(step) for step in range(batches.steps_per_epoch)]
    )
    rows = np.concatenate([b["x"] for b in batches.dataset(12)])
    np.testing.assert_array_equal(rows, sparse.toarray()[order])
    tensor = tf.sparse.from_dense(X)
    streamed = _plan().batches(tf.data.Dataset.from_tensor_slices((tensor, Y)))
    np.testing.assert_array_equal(next(iter(streamed))["x"], X[:3])
    rows, plan = sparse.tocsr(), _plan()
    for batches in (
        lambda: plan.batches(tensor, Y),
        lambda: plan.batches(ByIndex(lambda i: (rows[i], Y[i]), M)),
        lambda: plan.batches(X, Y, map=lambda x, y: (tf.sparse.from_dense(x), y)),
    ):
        with pytest.raises((TypeError, ValueError), match=r"toarray|to_dense"):
            batches()


@pytest.mark.slow
def test_windows_of_a_time_series_need_no_copy_and_their_unit_is_asked_for():
    series = np.sin(np.arange(60, dtype=np.float32))[:, None]

    def windows(stride):
        return keras.utils.timeseries_dataset_from_array(
            series, series[8:, 0], 8, sequence_stride=stride, batch_size=16
        )

    with pytest.raises(ValueError, match="unit='one window'"):
        _plan(num_examples=18, batch_size=2).batches(windows(3))
    arrays = [np.concatenate(parts) for parts in zip(*windows(1).as_numpy_iterator())]
    with pytest.raises(ValueError, match="unit='one window'"):
        _plan(num_examples=52).batches(*arrays)
    assert _plan(num_examples=7).batches(windows(8)).num_steps == 6
    plan = _plan(num_examples=52, unit="one window")
    first = next(iter(plan.batches(windows(1))))
    assert first["x"].shape[1:] == (8, 1)
    np.testing.assert_array_equal(first["y"], series[8 : 8 + len(first["y"]), 0])
