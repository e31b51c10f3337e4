"""Tests that the secret sample of a run depends only on the run's key."""

import itertools

import keras
import numpy as np
import pytest
import scipy.stats
from same_weights import refused
from small_models import data, make_plan, make_private_model
from small_plans import small_plan

from tf_bandmf.noise.keys import NoiseKey

MECHANISMS = {
    "poisson": "identity",
    "cyclic-poisson": "bsr:2",
    "cyclic-fixed-size": "bsr:2",
    "b-min-sep": "bsr:2",
    "balls-in-bins": "lambda_cgd",
    "shuffled": "lambda_cgd",
}
SECRET = {"test_seed": None}


def make_model(plan, **changes):
    return make_private_model(plan, **{"hidden": False, **changes})


@pytest.fixture
def drawn(monkeypatch):
    """Makes `fit` only record the targets of batches; returns the list of records."""
    steps = []

    def fit(model, x, **settings):
        steps.extend(batch["y"].numpy().tolist() for batch in x)

    monkeypatch.setattr(keras.Model, "fit", fit)
    return steps


@pytest.mark.parametrize("sampling", MECHANISMS)
@pytest.mark.invariant(8, 11, 19)
def test_two_runs_on_one_object_have_two_samples(sampling, drawn):
    plan = make_plan(MECHANISMS[sampling], sampling=sampling, **SECRET)
    batches, samples = plan.batches(data[0], np.arange(len(data[0]))), []
    for _ in range(2):
        model = make_model(plan, additional_run=True)
        model.fit(batches, epochs=2, verbose=0)
        samples.append(drawn[:])
        drawn.clear()
        run = model.begin_run(batches)
        seen = [batch.indices.tolist() for batch in run.indices()]
        assert seen == samples[-1] and len(seen) == plan.num_steps
        # A new `plan.batches` object on the same data continues the run's sample.
        other = model.begin_run(plan.batches(data[0], np.arange(len(data[0]))))
        assert [batch.indices.tolist() for batch in other.indices(3)] == seen[3:]
        assert other.schedule_id == run.schedule_id
    # The original `plan.batches` object belongs to no run, and has its own sample.
    samples.append([batch.indices.tolist() for batch in batches.indices()])
    assert all(a != b for a, b in itertools.combinations(samples, 2))


@pytest.mark.invariant(19)
def test_a_custom_loop_trains_on_a_sample_that_no_other_run_had(tmp_path):
    plan = make_plan("identity", sampling="poisson", batch_size=11, **SECRET)
    batches = plan.batches(*data)
    first, second = make_model(plan), make_model(plan, additional_run=True)
    # A `plan.batches` object that belongs to no run is assigned to the first run that
    # uses it.
    for batch in itertools.islice(batches, 2):
        first.train_on_batch(batch)
    first.fit(batches, epochs=1, verbose=0)
    with refused(second, RuntimeError, r"model\.begin_run"):
        second.train_on_batch(next(iter(batches)))
    for batch in second.begin_run(plan.batches(*data)):
        second.train_on_batch(batch)
    assert second.optimizer.steps_taken == plan.num_steps
    # The private state file would store only the run's key. This sample does not depend
    # on the key, so a resumed run could not draw it again.
    with pytest.raises(ValueError, match="Begin a custom loop with"):
        first.begin_run(batches, tmp_path / "run.private")


@pytest.mark.invariant(8)
def test_batches_in_flight_keep_their_sample():
    plan = make_plan("identity", sampling="poisson", **SECRET)
    batches = plan.batches(*data)
    expected = [batch.indices.tolist() for batch in batches.indices()]
    flight, dataset = batches.indices(), batches.dataset()
    begun = [next(flight).indices.tolist()]
    other = batches.join(NoiseKey.from_operating_system().sampler_seed())
    assert [*begun, *(batch.indices.tolist() for batch in flight)] == expected
    for batch, indices in zip(dataset, expected, strict=True):
        np.testing.assert_array_equal(batch["y"], data[1][indices])
    assert [batch.indices.tolist() for batch in other.indices()] != expected


@pytest.mark.invariant(19)
def test_samples_of_two_runs_are_independent_as_their_joint_guarantee_assumes():
    plan = small_plan("identity", 400, 20, 20, epsilon=2.0, sampling="poisson")
    x, y = np.zeros([400, 5], np.float32), np.zeros(400, np.int32)
    x[:, 0] = np.arange(400)
    batches, q = plan.batches(x, y), 20 / 400
    pairs = []
    for _ in range(2):
        drawn = make_model(plan, additional_run=True).begin_run(batches)
        pairs.append(np.zeros([plan.num_steps, 400], bool))
        for step, indices in drawn.indices():
            pairs[-1][step, indices] = True
    # If the samples are independent, an example of the first run's sample is in the
    # second run's sample with probability q. The false-alarm rate is 1e-6.
    both, one = int((pairs[0] & pairs[1]).sum()), int(pairs[0].sum())
    share = scipy.stats.binomtest(both, one, q).proportion_ci(1 - 1e-6)
    assert share.low < q < share.high
