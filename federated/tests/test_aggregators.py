"""Tests of aggregation factories for TFF that add correlated noise."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from linear import examples, model_fn
from plans import min_sep_plan
from tensorflow_privacy.privacy.analysis import tree_aggregation_accountant

import tf_bandmf
from tf_bandmf import noise
from tf_bandmf.noise.keys import NoiseKey
from tf_bandmf.strategies import FAMILIES
from tf_bandmf_federated import CorrelatedNoiseFactory

N, D = 6, 7
SEED = 11
VALUE_TYPE = tff.to_type([(np.float32, [2, 3]), np.float32])


def make_plan(mechanism="lambda_cgd", num_steps=N, test_seed=SEED, **options):
    return min_sep_plan(mechanism, num_steps, 3, 2, test_seed=test_seed, **options)


def value(fill):
    return [np.full([2, 3], fill, np.float32), np.float32(fill)]


def flat(result):
    return np.concatenate([np.ravel(x) for x in tf.nest.flatten(result)])


def normals():
    keys = tf.constant(NoiseKey.for_testing(SEED).step_keys(N))
    return np.stack([noise.standard_normals(keys[i], D) for i in range(N)])


def run_process(process, plan, denominator):
    """Runs all rounds on zeros, and returns the noise of each, shape [N, D].

    The noise is in units of the plan's noise standard deviation.
    """
    state, rows = process.initialize(), []
    for _ in range(N):
        output = process.next(state, [value(0.0)])
        state = output.state
        rows.append(flat(output.result) * denominator / plan.noise_stddev)
    return np.stack(rows)


# The tests use the first example of each registered family except "amplified".
MECHANISMS = [
    FAMILIES[name].examples[0] for name in sorted({*FAMILIES} - {"amplified"})
]


@pytest.mark.slow_cases(but=["bsr:4", "lambda_cgd:0.9", "toeplitz:4"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_noise_of_every_family_is_that_of_the_strategy(mechanism):
    """The strategy matrix C times the noise is the white noise z, except for rounding."""
    plan = make_plan(mechanism, sampling=tf_bandmf.MinSep(4, 2))
    c = plan.strategy.matrix.to_dense()
    factory = CorrelatedNoiseFactory(plan, clients_per_round=4)
    y = run_process(factory.create(VALUE_TYPE), plan, 4.0)
    assert np.abs(c @ y - normals()).max() < 0.01


def test_mean_of_clipped_updates():
    plan = make_plan(noise_multiplier=0.01, l2_norm_clip=2.0)
    process = CorrelatedNoiseFactory(plan, clients_per_round=8).create(VALUE_TYPE)
    small, large = value(0.1), value(100.0)
    output = process.next(process.initialize(), [small, large])
    expected = (0.1 + 2.0 / np.sqrt(D)) / 8
    np.testing.assert_allclose(flat(output.result), expected, atol=0.02)
    assert output.measurements["clipped_clients"] == 1
    assert output.measurements["contributing_clients"] == 2


@pytest.mark.invariant(15)
def test_results_are_multiples_of_a_power_of_two():
    plan = make_plan()
    process = CorrelatedNoiseFactory(plan, clients_per_round=8).create(VALUE_TYPE)
    result = flat(process.next(process.initialize(), [value(0.123)]).result)
    grid = 2.0 ** np.floor(np.log2(plan.noise_stddev / 8) - 10)
    assert np.array_equal(result % grid, np.zeros(D)) and np.any(result)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.invariant(5)
def test_a_client_that_is_not_finite_contributes_zero(bad):
    process = CorrelatedNoiseFactory(make_plan(), 2.0).create(VALUE_TYPE)
    state = process.initialize()
    broken = value(0.2)
    broken[0][1, 1] = bad
    alone = process.next(state, [value(0.3)])
    both = process.next(state, [value(0.3), broken])
    np.testing.assert_array_equal(flat(both.result), flat(alone.result))
    assert both.measurements["non_finite_clients"] == 1
    assert both.measurements["contributing_clients"] == 1


def test_a_state_of_another_plan_is_refused():
    process = CorrelatedNoiseFactory(make_plan("bsr:3"), 1.0).create(VALUE_TYPE)
    other = CorrelatedNoiseFactory(make_plan("bsr:3", noise_multiplier=2.0), 1.0)
    with pytest.raises(Exception, match="another plan"):
        other.create(VALUE_TYPE).next(process.initialize(), [value(0.0)])


@pytest.mark.invariant(8)
def test_keys_are_fresh_in_every_run_and_from_the_operating_system():
    plan = make_plan(test_seed=None)
    process = CorrelatedNoiseFactory(plan, 1.0).create(VALUE_TYPE)
    first, second = (process.initialize()["noise"]["step_keys"] for _ in range(2))
    assert first.shape == (N, 2) and first.dtype == np.uint64
    assert len(np.unique(np.concatenate([first, second]))) == 4 * N


@pytest.mark.parametrize("mechanism", ["bsr:3", "bisr:3"])
def test_a_ring_buffer_too_large_for_the_state_is_refused(mechanism):
    """A ring buffer too large for the state is refused; a suggested mechanism runs."""
    plan, wide = make_plan(mechanism), tff.TensorType(np.float32, [3_000_000])
    factory = CorrelatedNoiseFactory(plan, 1.0)
    if mechanism == "bsr:3":
        with pytest.raises(ValueError, match=r'"bisr".*"bandinv".*"lambda_cgd"'):
            factory.create(wide)
        return
    process = factory.create(wide)
    output = process.next(process.initialize(), [])
    assert np.std(output.result) == pytest.approx(plan.noise_stddev, rel=0.01)
    assert output.state["noise"]["buffer"].shape == (0, 3_000_000)


def test_wrong_plans_are_refused():
    poisson = make_plan(
        "bsr:3", sampling=tf_bandmf.CyclicPoisson(600, 10, 3), noise_multiplier=9.0
    )
    epochs = make_plan(sampling=tf_bandmf.FixedEpochOrder(60, 20, 2))
    for plan in (poisson, epochs):
        with pytest.raises(ValueError, match="MinSep"):
            CorrelatedNoiseFactory(plan, 2.0)
    for bad in (0, -1, np.nan, np.inf):
        with pytest.raises(ValueError, match="clients_per_round"):
            CorrelatedNoiseFactory(make_plan(), bad)
    with pytest.raises(ValueError, match="batch size"):
        CorrelatedNoiseFactory(make_plan(batch_size=5), 6)
    for wrong in (tff.TensorType(np.float64, [3]), tff.TensorType(np.float32, [None])):
        with pytest.raises(TypeError, match="float32"):
            CorrelatedNoiseFactory(make_plan(), 1.0).create(wrong)


def drop_in(mechanism):
    """Returns the weights after 3 rounds of TFF's federated averaging.

    The aggregator adds the correlated noise of `mechanism`.
    """
    plan = make_plan(mechanism, noise_multiplier=0.01)
    aggregator = CorrelatedNoiseFactory(plan, 2.0)
    process = tff.learning.algorithms.build_unweighted_fed_avg(
        model_fn,
        tff.learning.optimizers.build_sgdm(0.1),
        model_aggregator=aggregator,
    )
    state = process.initialize()
    for _ in range(3):
        state = process.next(state, [examples(1), examples(2)]).state
    return flat(process.get_model_weights(state).trainable)


def test_drop_in_of_build_unweighted_fed_avg():
    actual, reference = drop_in("bsr:3"), drop_in("identity")
    assert np.abs(actual).max() > 0.01
    # The noise is negligible, so both runs apply the mean of the clipped updates.
    np.testing.assert_allclose(actual, reference, atol=0.2)


@pytest.mark.parametrize(("rounds", "expected"), [(60, 35), (64, 67)])
def test_a_tree_has_the_sensitivity_of_tff_s(rounds, expected):
    """TensorFlow Privacy's accountant gives a "tree" plan the same sensitivity."""
    plan = make_plan("tree", rounds, sampling=tf_bandmf.MinSep(12, 5))
    rho = tree_aggregation_accountant.compute_zcdp_single_tree(
        noise_multiplier=1.0,
        total_steps=rounds,
        max_participation=5,
        # TensorFlow Privacy counts only the rounds between two participations, which
        # are 11 if the participations are 12 rounds apart.
        min_separation=11,
    )
    assert 2 * rho == pytest.approx(expected)
    assert plan.sensitivity.value**2 == pytest.approx(expected)
