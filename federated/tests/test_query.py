"""The query of TensorFlow Privacy, run by itself."""

import dp_accounting
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_privacy as tfp
from tensorflow_privacy.privacy.dp_query import test_utils

import tf_bandmf
from tf_bandmf import noise
from tf_bandmf.noise.keys import NoiseKey
from tf_bandmf_federated import CorrelatedNoiseSumQuery

N, SEED = 5, 3
SPECS = {"a": tf.TensorSpec([2]), "b": tf.TensorSpec([])}


def make_plan(mechanism="bsr", **options):
    arguments = dict(noise_multiplier=1.0, delta=1e-5, num_steps=N, test_seed=SEED)
    if mechanism == "bsr":
        mechanism = "bsr:3"
    arguments.update(options)
    return tf_bandmf.plan(mechanism, participation=tf_bandmf.MinSep(3, 2), **arguments)


def record(a, b):
    return {"a": tf.constant(a, tf.float32), "b": tf.constant(b, tf.float32)}


@pytest.mark.parametrize("mechanism", ["bsr", "lambda_cgd", "blt"])
def test_results_are_sums_with_the_core_s_noise(mechanism):
    plan = make_plan(mechanism)
    query = CorrelatedNoiseSumQuery(plan, SPECS)
    generator = noise.NoiseGenerator(plan.strategy, 3)
    expected_state = generator.initial_state(NoiseKey.for_testing(SEED))
    state = query.initial_global_state()
    records = [record([0.1, 0.2], 0.3), record([30.0, 0.0], 40.0)]
    for step in range(N):
        result, state = test_utils.run_query(query, records, state)
        row, expected_state = generator.next(expected_state, tf.constant(step))
        total = np.array([0.7, 0.2, 1.1]) + plan.noise_stddev * row.numpy()
        np.testing.assert_allclose(result["a"], total[:2], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(result["b"], total[2], rtol=1e-5, atol=1e-6)
    with pytest.raises(tf.errors.InvalidArgumentError, match="5 steps"):
        test_utils.run_query(query, records, state)


def test_it_is_a_sum_query_whose_rounds_are_no_events_of_their_own():
    query = CorrelatedNoiseSumQuery(make_plan(), SPECS)
    assert isinstance(query, tfp.SumAggregationDPQuery)
    state = query.initial_global_state()
    zeros = query.initial_sample_state()
    _, after, event = query.get_noised_result(zeros, state)
    assert event == dp_accounting.UnsupportedDpEvent()
    assert int(after.round) == 1
    # Pure: the same state, the same noise.
    first, _, _ = query.get_noised_result(zeros, state)
    second, _, _ = query.get_noised_result(zeros, state)
    np.testing.assert_array_equal(first["a"], second["a"])


def test_keys_are_fresh_and_clients_see_no_state():
    query = CorrelatedNoiseSumQuery(make_plan(test_seed=None), SPECS)
    traced = tf.function(query.initial_global_state)
    keys = [traced().step_keys.numpy() for _ in range(2)]
    keys.append(query.initial_global_state().step_keys.numpy())
    assert len(np.unique(np.concatenate(keys))) == 6 * N
    params = query.derive_sample_params(query.initial_global_state())
    assert params.shape == [] and float(params) == 1.0


def test_wrong_arguments():
    with pytest.raises(TypeError, match="float32"):
        CorrelatedNoiseSumQuery(make_plan(), tf.TensorSpec([3], tf.float64))
    with pytest.raises(TypeError, match="static shape"):
        CorrelatedNoiseSumQuery(make_plan(), tf.TensorSpec([None]))
    with pytest.raises(ValueError, match="MinSep"):
        plan = tf_bandmf.plan(
            "identity", noise_multiplier=1.0, delta=1e-5, num_examples=100,
            batch_size=20, epochs=1,
        )  # fmt: skip
        CorrelatedNoiseSumQuery(plan, SPECS)
    with pytest.raises(ValueError, match="zeroing_norm"):
        CorrelatedNoiseSumQuery(make_plan(), SPECS, zeroing_norm=0.1)
