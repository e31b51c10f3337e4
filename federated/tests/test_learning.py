"""End-to-end tests of private federated averaging in TensorFlow Federated."""

import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from linear import examples, model_fn
from plans import min_sep_plan

import tf_bandmf
from tf_bandmf import noise
from tf_bandmf.noise.keys import NoiseKey
from tf_bandmf_federated import (
    CorrelatedNoiseFactory,
    build_fed_avg,
    tag_dataset,
)

N, B, D, SEED = 6, 3, 4, 2
OPTIMIZER = tff.learning.optimizers.build_sgdm(0.1)


def make_plan(test_seed=SEED, **options):
    options["noise_multiplier"] = 0.5
    return min_sep_plan("bsr:3", N, B, 2, test_seed=test_seed, **options)


def first_time(*clients, now=0):
    return [tag_dataset(examples(c), -1, 0, now) for c in clients]


def build(plan, **options):
    options.setdefault("clients_per_round", 3)
    return build_fed_avg(model_fn, plan, OPTIMIZER, **options)


def run(process, cohorts, state=None):
    """Runs one round per cohort.

    Returns:
      The flat weights after each round, shape [rounds, D], and the last state.
    """
    state = process.initialize() if state is None else state
    weights = []
    for cohort in cohorts:
        state = process.next(state, cohort).state
        weights.append(weights_of(process, state))
    return np.stack(weights), state


def weights_of(process, state):
    trainable = process.get_model_weights(state).trainable
    return np.concatenate([np.ravel(w) for w in trainable])


@functools.cache
def in_state():
    return build(make_plan())


def means_of_noise(plan):
    generator = noise.NoiseGenerator(plan.strategy, D)
    state, rows = generator.initial_state(NoiseKey.for_testing(SEED)), []
    for step in range(N):
        row, state = generator.next(state, tf.constant(step))
        rows.append(plan.noise_stddev * row.numpy() / 3.0)
    return np.array(rows)


def test_updates_are_the_plan_s_noise_on_clipped_means():
    plan = make_plan()
    none, _ = run(in_state(), [[]] * N)
    # Rounds without clients release only noise, which SGD subtracts from the weights.
    total = -np.cumsum(means_of_noise(plan), axis=0)
    np.testing.assert_allclose(none, total, rtol=1e-4, atol=2e-3)
    some, _ = run(in_state(), [first_time(0, 1)])
    # Both updates are clipped to norm 1, and their sum is divided by 3.
    assert 0.1 < np.linalg.norm(some[0] - none[0]) <= 2.0 / 3.0 + 1e-6


def test_rounds_are_counted_and_skipped():
    process = in_state()
    state = process.initialize()
    assert process.round_number(state) == 0
    state = process.next(state, first_time(0)).state
    before = weights_of(process, state)
    state = process.skip_round(state)
    assert process.round_number(state) == 2
    np.testing.assert_array_equal(weights_of(process, state), before)
    # Round 2 has the same noise as if round 1 had not been skipped.
    state = process.next(state, []).state
    actual = before - weights_of(process, state)
    expected = means_of_noise(make_plan())[2]
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=2e-3)


@pytest.mark.invariant(1)
def test_horizon():
    process = in_state()
    state = process.initialize()
    for _ in range(N):
        state = process.skip_round(state)
    assert process.round_number(state) == N
    with pytest.raises(Exception, match="6 steps"):
        process.next(state, first_time(0, now=N))
    with pytest.raises(ValueError, match="budget is spent"):
        process.prepare(state, "a number")
    with pytest.raises(ValueError, match="6 rounds"):
        process.skip_round(state)


def test_metrics_of_training_are_released_on_demand_only():
    output = in_state().next(in_state().initialize(), first_time(0))
    assert not output.metrics["client_work"]["train"]
    process = build(
        make_plan(), metrics_aggregator=tff.learning.metrics.sum_then_finalize
    )
    output = process.next(process.initialize(), first_time(0))
    assert output.metrics["client_work"]["train"]["num_examples"] == 8


def test_wrong_arguments():
    with pytest.raises(ValueError, match="clients_per_round is missing"):
        build(make_plan(), clients_per_round=None)
    for wrong in (None, "model", lambda: "model"):
        with pytest.raises(TypeError, match=r"not callable|VariableModel"):
            build_fed_avg(wrong, make_plan(), OPTIMIZER, clients_per_round=3)


# The next tests check that the noise of a round is used for only one result.


@pytest.fixture(scope="module")
def secret_process():
    return build(make_plan(test_seed=None))


@pytest.mark.invariant(8)
def test_a_round_has_one_result(secret_process):
    process = secret_process
    first = process.initialize()
    output = process.next(first, first_time(0))
    with pytest.raises(ValueError, match="Round 0 already has a result"):
        process.next(first, first_time(1))
    with pytest.raises(ValueError, match="Round 0 already has a result"):
        process.next(state=first, client_data=first_time(1))
    process.next(output.state, [])
    # A new run may use round 0 again.
    process.next(process.initialize(), first_time(1))


@pytest.mark.invariant(9)
def test_a_round_with_inputs_is_repeated_bit_for_bit(secret_process):
    process = secret_process
    first = process.initialize()
    results = [
        weights_of(process, process.next(process.prepare(first, text), []).state)
        for text in ("a drawn number", "a drawn number", "another")
    ]
    np.testing.assert_array_equal(results[0], results[1])
    assert not np.any(results[0] == results[2])


def test_a_round_that_failed_may_be_called_again(secret_process):
    process = secret_process
    first = process.initialize()
    for wrong in ("data", [1]):
        with pytest.raises(Exception, match=r"."):
            process.next(first, wrong)
    output = process.next(first, first_time(0))
    skipped = process.skip_round(output.state)
    with pytest.raises(ValueError, match="Round 1 already has a result"):
        process.next(output.state, [])
    process.next(skipped, [])


# The next test is about plans that are bound to a budget ledger.


@pytest.mark.invariant(19)
def test_a_bound_plan_reserves_before_its_first_noise(tmp_path):
    pytest.importorskip("sqlalchemy")
    from tf_bandmf.ledger import BudgetExceededError, LedgerError

    made = tf_bandmf.Ledger(f"sqlite:///{tmp_path}/privacy.db")
    made.add_dataset("keyboards", unit="one device", epsilon=100.0, delta=1e-5)
    plan = made.bind(make_plan(test_seed=None, unit="one device"), "keyboards")
    made.set_budget("keyboards", epsilon=1.0, delta=1e-5)
    process = build(plan)
    state = process.initialize()
    with pytest.raises(BudgetExceededError):
        process.next(state, [])
    made.set_budget("keyboards", epsilon=100.0, delta=1e-5)
    for _ in range(2):
        state = process.next(state, []).state
    assert made.balance("keyboards").runs == 1
    with pytest.raises(LedgerError, match="state that the same process returned"):
        process.next("a state", [])
    with pytest.raises(ValueError, match="Use build_fed_avg"):
        CorrelatedNoiseFactory(plan, 3)


# The next test is about data whose tags are for another round.


@pytest.mark.invariant(2)
def test_data_tagged_for_another_round_are_refused():
    _, state = run(in_state(), [first_time(0)])
    for now in (0, 2):
        with pytest.raises(Exception, match="must be tagged for the round"):
            in_state().next(state, first_time(0, now=now))
    with pytest.raises(TypeError, match="round_number"):
        tag_dataset(examples(0), -1, 0)
