"""Tests private counts of clipped, zero and bad records, released with a step's sum.

A bad record has, for example, a loss that is not finite.
"""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from same_weights import assert_same
from small_models import data, make_plan, make_private_model

import tf_bandmf
import tf_bandmf.keras
from tf_bandmf.keras.clipping.tensors.batches import OUTCOMES
from tf_bandmf.keras.metrics.counts import Counts, PrivateCounts


@pytest.mark.slow_cases("nothing clipped")
@pytest.mark.parametrize("clip", [1.0, 1e4], ids=["clipped", "nothing clipped"])
def test_it_counts_what_became_of_examples(clip):
    plan = make_plan("identity", epsilon=None, noise_multiplier=0.02, l2_norm_clip=clip)
    plan = plan.reserve(counts=0.5)
    x, y = data[0].copy(), data[1].copy()
    x[:5] = np.nan
    y[5:7] = 99
    weights = np.ones(len(y), np.float32)
    weights[7:11] = 0.0
    model = make_private_model(plan, keras.optimizers.SGD(0.0))
    with pytest.warns(UserWarning, match="contributed nothing to the 8 steps"):
        model.fit(plan.batches(x, y, weights), epochs=2, verbose=0)
    actual = model.private_counts()
    # In an epoch, 4 batches of 5 or 6 examples contain all 22 examples.
    per_epoch = plan.expected_batch_size * plan.num_steps / 2
    close = pytest.approx
    assert actual.bad * per_epoch == close(7, abs=5 * actual.noise * per_epoch)
    assert actual.zero * per_epoch == close(4, abs=5 * actual.noise * per_epoch)
    clipped = actual.clipped * per_epoch
    assert actual.noise * per_epoch < 0.3
    if clip > 1.0:
        assert clipped == close(0, abs=5 * actual.noise * per_epoch)
    else:
        assert 2 < clipped < 11.5


@pytest.mark.invariant(3)
@pytest.mark.parametrize("counts", [0.001, 0.02, 0.5])
def test_gradient_and_count_have_the_norm_that_the_noise_is_for(counts):
    plan = make_plan(l2_norm_clip=0.3).reserve(counts=counts)
    clip = float(np.float32(0.3))
    of_noise = plan.noise_stddev / plan.unit_noise_stddev
    for place in range(len(OUTCOMES)):
        (added,) = Counts(plan).coordinates(tf.constant([place]))
        norm = math.hypot(clip, float(tf.norm(tf.cast(added, tf.float64))))
        assert norm <= of_noise
        assert place == 0 or norm > of_noise * (1 - 1e-6)


@pytest.mark.invariant(3)
def test_a_neighbor_moves_the_sum_of_an_epoch_by_one_for_each_participation():
    """Asserts that a record that becomes bad moves a count by at most 1 per epoch."""
    plan = make_plan("identity", test_seed=5).reserve(counts=0.1)

    def sums(x):
        tf_bandmf.keras.run.admission.forget()
        model = make_private_model(plan, keras.optimizers.SGD(0.0))
        model.fit(plan.batches(x, data[1]), epochs=2, verbose=0)
        actual = model.private_counts()
        shares = np.array([actual.clipped, actual.zero, actual.bad])
        return shares * plan.expected_batch_size * plan.num_steps

    ordinary = sums(data[0])
    x = data[0].copy()
    x[21] = np.nan
    moved = sums(x) - ordinary
    # In each of the two epochs, the record was counted as used or clipped in the first
    # run, and is counted as bad in the second run.
    assert moved[1:] == pytest.approx([0.0, 2.0], abs=1e-2)
    assert abs(moved[0] + 1.0) == pytest.approx(1.0, abs=1e-2)


@pytest.mark.slow
def test_a_resumed_run_counts_as_the_straight_one(train_from_files):
    plan = make_plan("bsr:2").reserve(counts=0.1)
    straight, _, split = (
        train_from_files(make_private_model(plan), name, epochs)
        for name, epochs in (("straight", 2), ("split", 1), ("split", 2))
    )
    assert split.private_counts() == straight.private_counts()
    assert_same(split, straight)


@pytest.mark.attack(
    "Raw counts of bad records in a run's files and attributes",
    tried="Trains with 7 bad records of 22, and searches for their exact count, in "
    "several scalings, in the weights file, in the history, and in the variables of "
    "the run and its optimizer.",
    area="secrets",
)
@pytest.mark.invariant(10)
def test_no_file_and_no_attribute_has_a_raw_count(tmp_path, figure):
    import h5py

    # The test seed fixes the noise. With a random key, one of the many numbers searched
    # could equal a raw count by chance.
    plan = make_plan("identity").reserve(counts=0.1)
    x = data[0].copy()
    x[:7] = np.nan
    model = make_private_model(plan)
    model.build((None, data[0].shape[1]))
    history = model.fit(
        plan.batches(x, data[1]),
        epochs=2,
        verbose=0,
        private_state=tmp_path / "run.private",
        callbacks=[tf_bandmf.keras.PrivacyProgress()],
    ).history
    assert history["private_bad"][-1] == model.private_counts().bad
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")

    numbers = [
        value for name in history for value in history[name] if "private" in name
    ]
    with h5py.File(tmp_path / "model.weights.h5") as file:
        file.visititems(
            lambda _, item: (
                numbers.extend(np.ravel(item[()]).tolist())
                if isinstance(item, h5py.Dataset)
                else None
            )
        )
    seen = [model.optimizer.run, model.optimizer.run.counts, model.optimizer]
    for owner in seen:
        for value in vars(owner).values():
            if isinstance(value, (keras.Variable, tf.Variable)):
                numbers.extend(np.ravel(value.numpy()).tolist())
    weight = model.optimizer.run.counts._weight
    batch, steps = plan.expected_batch_size, plan.num_steps
    raw = {
        count * scale
        for count in (7.0, 14.0)
        for scale in (1.0, weight, 1 / batch, weight / batch, 1 / batch / steps)
    }
    hits = [n for n in numbers for r in raw if abs(n - r) < 1e-6 * r]
    assert not hits
    # Control: the search finds the noisy count.
    noisy = model.private_counts().bad
    control = [n for n in numbers if abs(n - noisy * steps) < 1e-4]
    assert control
    figure(
        f"{len(numbers)} numbers searched: 0 raw counts; control: the noisy one is found"
    )


def test_what_is_said_at_the_end():
    bad = PrivateCounts(0.3, 0.01, 0.88, 0.01, 40).sentence()
    assert bad.startswith("About 89% of the examples (noise 1.4%) contributed nothing")
    assert "88% had a loss" in bad and "1% had weight 0, a failed map" in bad
    # There is no warning if the share of examples that contributed nothing is within
    # the noise, or if it is small.
    assert not PrivateCounts(0.3, 0.2, 0.3, 0.2, 40).sentence()
    assert not PrivateCounts(0.3, 0.0, 0.02, 1e-4, 40).sentence()


def test_the_noise_is_the_strategys():
    """Tests that whitened noise of 48 steps has a normal distribution (p > 10^-9)."""
    from scipy import stats

    plan = make_plan("bisr:3", test_seed=None, epochs=12).reserve(counts=0.5)
    model = make_private_model(plan, keras.optimizers.SGD(0.0))
    sums = []

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            sums.append(model.optimizer.run.counts._variable.numpy().copy())

    model.fit(plan.batches(*data), epochs=12, verbose=0, callbacks=[Watch()])
    # No record is bad or has a zero gradient, so both released counts are pure noise.
    steps = np.diff(np.array(sums), axis=0, prepend=0.0)[:, 1:]
    actual = model.private_counts()
    scale = model.optimizer.run.counts._weight * plan.expected_batch_size
    whitened = plan.strategy.matrix.to_dense() @ (steps * scale) / plan.noise_stddev
    assert whitened.shape == (48, 2)
    assert stats.kstest(np.ravel(whitened), "norm").pvalue > 1e-9
    # The reported noise is the standard deviation after summing over all steps.
    row = np.ones(48) @ np.linalg.inv(plan.strategy.matrix.to_dense())
    noise = plan.noise_stddev * np.linalg.norm(row) / scale / 48
    assert actual.noise == pytest.approx(noise, rel=1e-5)
