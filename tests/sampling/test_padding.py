"""Tests batches that are padded to a constant size, and iteration over indices."""

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
from small_plans import schedule_for

import tf_bandmf
from tf_bandmf.noise.keys import NoiseKey

SEED = NoiseKey.for_testing(0).sampler_seed()
M = 40
PARTICIPATIONS = [
    tf_bandmf.FixedEpochOrder(M, 6, 3),
    tf_bandmf.Shuffled(M, 6, 3),
    tf_bandmf.BallsInBins(M, 6, 3),
    tf_bandmf.Poisson(M, 4),
    tf_bandmf.CyclicPoisson(M, 4, 3),
    tf_bandmf.CyclicFixedSize(M, 4, 3),
]


def make(participation, padded, **arguments):
    steps = participation.num_steps or 21
    x = {"a": np.arange(1.0, M + 1.0), "b": np.array([b"t"] * M)}
    arguments = {"y": np.arange(M), **arguments}
    return schedule_for(participation, steps, 7, x, padded=padded, **arguments).join(
        SEED
    )


@pytest.mark.parametrize("participation", PARTICIPATIONS, ids=lambda p: p.kind)
def test_padded_batches_are_the_batches_and_zeros_of_weight_zero(participation):
    plain, padded = make(participation, False), make(participation, True)
    size = padded.padded_batch_size
    assert padded.schedule_id == plain.schedule_id
    spec = padded.dataset().element_spec
    assert spec["x"]["a"].shape == [size] and spec["sample_weight"].shape == [size]
    for wanted, batch in zip(plain.dataset(), padded.dataset()):
        count = wanted["y"].shape[0]
        np.testing.assert_array_equal(batch["y"][:count], wanted["y"])
        np.testing.assert_array_equal(batch["x"]["a"][:count], wanted["x"]["a"])
        assert not np.any(batch["x"]["a"][count:])
        assert set(batch["x"]["b"][count:].numpy()) <= {b""}
        np.testing.assert_array_equal(batch["sample_weight"], np.arange(size) < count)


def test_weights_of_the_caller_are_kept():
    schedule = make(PARTICIPATIONS[3], True, sample_weight=np.arange(M) + 0.5)
    for batch in schedule.dataset():
        real = batch["sample_weight"].numpy() > 0.0
        expected = batch["y"].numpy()[real] + 0.5
        np.testing.assert_array_equal(batch["sample_weight"].numpy()[real], expected)


def test_the_padded_size_is_exceeded_with_probability_1e_12_at_most():
    poisson = tf_bandmf.CyclicPoisson(100_003, 300, 7)
    size = poisson.largest_batch_size(5000, 1e-12)
    q = poisson.sampling_probability
    part = -(-100_003 // 7)
    assert 5000 * scipy.stats.binom.sf(size, part, q) <= 1e-12
    assert 5000 * scipy.stats.binom.sf(size - 1, part, q) > 1e-12
    assert 300 < size < 500
    bins = tf_bandmf.BallsInBins(60_000, 500, 3)
    size = bins.largest_batch_size(360, 1e-12)
    assert 120 * scipy.stats.binom.sf(size, 60_000, 1 / 120) <= 1e-12
    whole = tf_bandmf.CyclicPoisson(40, 10, 4)
    assert whole.largest_batch_size(9, 1e-12) == 10
    with pytest.raises(TypeError, match="caller must compose the batches"):
        tf_bandmf.MinSep(3).largest_batch_size(9, 1e-12)


def test_parts_of_padded_batches_count_their_own_examples():
    schedule = make(tf_bandmf.Poisson(M, 4), True)
    parts = list(schedule.dataset(0, range(3), 3))
    for step, batch in enumerate(schedule.dataset()):
        of_step = parts[3 * step : 3 * step + 3]
        counts = [int(part["num_examples"]) for part in of_step]
        weights = [int(np.sum(part["sample_weight"])) for part in of_step]
        assert counts == weights and sum(counts) == int(batch["num_examples"])


def test_nothing_is_cut_off():
    schedule = make(PARTICIPATIONS[3], True)
    schedule.padded_batch_size = 1
    with pytest.raises(tf.errors.InvalidArgumentError, match="The batch is not cut"):
        list(schedule.dataset())


def test_a_run_begins_within_its_steps():
    with pytest.raises(ValueError, match="first_step must be in"):
        next(make(PARTICIPATIONS[0], False).indices(first_step=-1))
