"""Two rounds that continue from the same TFF state share no noise."""

import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from linear import model_fn
from plans import min_sep_plan

from tf_bandmf_federated import CorrelatedNoiseFactory, build_fed_avg
from tf_bandmf_federated.tff import state_noise

SIZE = 2000


def make_plan(mechanism):
    return min_sep_plan(mechanism, 6, 3, 2, noise_multiplier=5.0, delta=1e-6)


def two_results(plan):
    """Runs a round twice from one state, with two updates; returns both noises."""
    factory = CorrelatedNoiseFactory(plan, 1.0)
    process = factory.create(tff.TensorType(np.float32, [SIZE]))

    state = process.initialize()
    for _ in range(2):
        state = process.next(state, []).state
    actual = []
    for seed in (1, 2):
        update = np.random.default_rng(seed).normal(size=SIZE)
        update = (update / np.linalg.norm(update) * 0.9).astype(np.float32)
        result = process.next(state, [update]).result
        actual.append((result - update) / plan.noise_stddev)
    return actual


@pytest.mark.attack(
    "A run continues from an older state in TensorFlow Federated",
    tried="Runs the third round twice from the same state, with two cohorts, and "
    "subtracts both sums from the difference of the results.",
    area="noise",
)
@pytest.mark.parametrize("mechanism", ["bsr:3", "lambda_cgd"])
@pytest.mark.invariant(8)
def test_two_results_of_one_state_share_no_noise(mechanism, figure):
    first, second = two_results(make_plan(mechanism))
    deviation = np.std(first - second)
    figure(f"{mechanism}: {deviation:.1f} times the noise remains")
    assert 1.25 < deviation < 2.5


def test_the_measure_sees_noise_that_is_reused(monkeypatch):
    # As a control, make the noise depend only on the round.
    monkeypatch.setattr(
        state_noise.digests, "keyed_digest", lambda *_, **__: tf.zeros([2], tf.int32)
    )
    monkeypatch.setattr(state_noise, "_said_or_drawn", lambda inputs: inputs)
    first, second = two_results(make_plan("bsr:3"))
    # Both noises are equal, except for rounding to the grid.
    np.testing.assert_allclose(first, second, atol=3e-3)


def make_process():
    return build_fed_avg(
        functools.partial(model_fn, SIZE, use_bias=False),
        make_plan("bsr:3"),
        tff.learning.optimizers.build_sgdm(0.1),
        clients_per_round=1.0,
    )


def model_after(process, state, inputs):
    """Returns the model after a round without clients, whose sum is zero."""
    if inputs:
        state = process.prepare(state, inputs)
    after = process.next(state, []).state
    return np.ravel(process.get_model_weights(after).trainable[0])


@pytest.mark.attack(
    "Equal sums in TensorFlow Federated",
    tried="Runs a round twice from the same state, both times with a sum of zero: the "
    "releases must differ, so that they do not show that the sums are equal.",
    area="noise",
)
@pytest.mark.parametrize("inputs", [("", ""), ("a drawn number", "another")])
@pytest.mark.invariant(8)
def test_equal_sums_do_not_show(inputs, figure):
    process = make_process()
    state = process.initialize()
    if not inputs[0]:
        # A process object refuses to run a round twice, so use two process objects.
        first, second = (model_after(p, state, "") for p in (process, make_process()))
    else:
        first, second = (model_after(process, state, one) for one in inputs)
    deviation = np.std(first - second) / process.plan.noise_stddev
    figure(f"{deviation:.2f} times the noise remains")
    assert 1.25 < deviation < 2.5


@pytest.mark.invariant(8)
def test_states_that_skip_a_round_share_no_normals():
    rounds = []
    state = make_process().initialize()
    for _ in range(2):
        # Each pass uses a new process, which has no record of the other's rounds.
        process = make_process()
        skipped = process.skip_round(state)
        before = np.ravel(process.get_model_weights(skipped).trainable[0])
        rounds.append(model_after(process, skipped, "") - before)
    actual = np.corrcoef(*rounds)[0, 1]
    # Shared normal variates would give a correlation of 0.2. With independent variates,
    # 1 of 100,000 runs exceeds this bound.
    assert abs(actual) < 4.4 / np.sqrt(SIZE)
