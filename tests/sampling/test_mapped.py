"""Augmentation by `map` is random and reproducible, and does not mix examples."""

import numpy as np
import pytest
import tensorflow as tf
from small_plans import small_plan

from tf_bandmf.noise.keys import NoiseKey

M = 12


def make_plan(sampling=None):
    return small_plan("identity", M, 4, 2, test_seed=0, sampling=sampling)


def data():
    x = np.random.default_rng(0).normal(size=(M, 4, 4, 1)).astype(np.float32)
    return x, np.arange(M)


def flip(x, seed):
    return tf.image.stateless_random_flip_left_right(x, seed)


def jitter(x, y, seed):
    return x + tf.random.stateless_normal(tf.shape(x), seed), y + 1


def contents(schedule, first_step=0):
    return list(schedule.dataset(first_step).as_numpy_iterator())


@pytest.mark.slow_cases("balls-in-bins", "poisson")
@pytest.mark.parametrize("sampling", ["fixed-order", "balls-in-bins", "poisson"])
@pytest.mark.invariant(11)
def test_augmented_batches_are_the_same_after_a_restart(sampling):
    plan = make_plan(sampling)
    seed = NoiseKey.for_testing(0).sampler_seed()
    schedule = plan.batches(*data(), map=jitter).join(seed)
    straight = contents(schedule)
    again = plan.batches(*data(), map=jitter).join(seed)
    resumed = contents(again, first_step=2)
    assert again.schedule_id == schedule.schedule_id
    for a, b in zip(straight[2:], resumed, strict=True):
        np.testing.assert_array_equal(a["x"], b["x"])
        np.testing.assert_array_equal(a["y"], b["y"])


def test_every_epoch_and_every_example_has_its_own_random_numbers():
    x = np.zeros((M, 4, 4, 1), np.float32)
    batches = contents(make_plan().batches(x, np.arange(M), map=jitter))
    noise = np.concatenate([b["x"] for b in batches]).reshape(2 * M, -1)
    assert len(np.unique(noise[:, 0])) == 2 * M
    # The mean and standard deviation of the 384 added numbers are about 0 and 1.
    assert abs(noise.mean()) < 0.2 and 0.8 < noise.std() < 1.2
    np.testing.assert_array_equal(
        np.sort(np.concatenate([b["y"] for b in batches])),
        np.repeat(np.arange(M), 2) + 1,
    )


def test_what_an_example_becomes_does_not_depend_on_others():
    x, y = data()
    other = x.copy()
    other[1:] = np.nan
    for a, b in zip(
        contents(make_plan().batches(x, y, map=jitter)),
        contents(make_plan().batches(other, y, map=jitter)),
        strict=True,
    ):
        mine = a["y"] == 1
        np.testing.assert_array_equal(a["x"][mine], b["x"][mine])
        assert np.isnan(b["x"][~mine]).all()


def test_another_function_is_another_schedule():
    plan = make_plan()
    ids = {
        plan.batches(*data(), map=function).schedule_id
        for function in (None, flip, lambda x: x, lambda x: 2.0 * x)
    }
    assert len(ids) == 4
    assert plan.batches(*data(), map=flip).schedule_id in ids


@pytest.mark.parametrize(
    ("function", "error", "match"),
    [
        (lambda x, y: x, TypeError, "must return the tuple"),
        (lambda x: tf.boolean_mask(x, x > 0), ValueError, "one shape"),
        (lambda x: tf.RaggedTensor.from_row_splits([1.0], [0, 1]), TypeError, "dense"),
    ],
)
def test_what_makes_no_tensors_of_one_shape_is_refused(function, error, match):
    with pytest.raises(error, match=match):
        make_plan().batches(*data(), map=function)


def test_views_are_neighbors_and_differ():
    x = np.zeros((M, 2), np.float32)
    schedule = make_plan().batches(x, np.arange(M), map=jitter, views=3)
    seen = contents(schedule)
    assert seen[0]["x"].shape == (4, 3, 2) and seen[0]["rows"].all()
    assert len(np.unique([b["x"][..., 0] for b in seen])) == 2 * M * 3
    for batch in seen:
        assert (batch["y"] == batch["y"][:, :1]).all()


def test_what_a_function_makes_is_the_same_to_the_bit():
    x = np.array([0.0, -0.0, np.nan, -1.5] * (M // 4), np.float32)
    schedule = make_plan().batches(x, map=lambda x: tf.stack([-x, x]))
    for step, batch in enumerate(contents(schedule)):
        drawn = x[schedule.example_indices(step)]
        expected = np.stack([-drawn, drawn], axis=1)
        np.testing.assert_array_equal(batch["x"].view("i4"), expected.view("i4"))
