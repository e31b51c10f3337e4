"""The core's noise inside of TensorFlow Federated's computations."""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import tf_bandmf
from tf_bandmf import noise
from tf_bandmf.noise.keys import NoiseKey

NUM_STEPS, NUM_PARAMETERS = 6, 10


def make_plan(mechanism):
    return tf_bandmf.plan(
        mechanism if mechanism == "lambda_cgd" else f"{mechanism}:3",
        epsilon=4.0,
        delta=1e-5,
        num_steps=NUM_STEPS,
        participation=tf_bandmf.MinSep(3),
    )


def test_noise_in_a_server_computation_is_that_of_the_core():
    for mechanism in ("lambda_cgd", "bsr", "bisr"):
        generator = noise.NoiseGenerator(make_plan(mechanism).strategy, NUM_PARAMETERS)
        state = generator.initial_state(NoiseKey.for_testing(0))
        state_type = collections.OrderedDict(
            step_keys=tff.TensorType(np.uint64, [NUM_STEPS, 2]),
            buffer=tff.TensorType(np.float32, list(state.buffer.shape)),
        )

        @tff.tensorflow.computation(state_type, np.int64)
        def server_noise(state, step):
            output, new = generator.next(noise.NoiseState(**state), step)  # noqa: B023
            return output, collections.OrderedDict(new._asdict())

        remote = collections.OrderedDict(
            (name, value.numpy()) for name, value in state._asdict().items()
        )
        for step in range(NUM_STEPS):
            expected, state = generator.next(state, tf.constant(step))
            found, remote = server_noise(remote, step)
            # The worker is another build of TensorFlow: logarithms differ by one ulp.
            np.testing.assert_allclose(found, expected, atol=2e-6)


def test_plans_are_the_same_on_both_stacks():
    plan = make_plan("lambda_cgd")
    # As computed on TensorFlow 2.21, NumPy 2.
    np.testing.assert_allclose(plan.noise_multiplier, 1.0811618495, rtol=1e-9)
    rmse = plan.strategy.rmse(plan.workload, plan.participation)
    np.testing.assert_allclose(rmse, 2.186916456541762, rtol=1e-6)
