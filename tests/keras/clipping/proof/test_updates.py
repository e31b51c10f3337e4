"""Updates see noisy gradients, variables and constants, never data."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_bandmf.keras.clipping import (
    UnsupportedModelError,
    update_is_released,
    update_runs_no_host_code,
)
from tf_bandmf.keras.clipping.forward.weight_reads import ReadLog

SGD = keras.optimizers.SGD
kept = []


class KeepingSchedule(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        return 1.0 + tf.reduce_mean(kept[-1])


class KeepingOptimizer(SGD):
    def update_step(self, gradient, variable, learning_rate):
        super().update_step(
            gradient + tf.reduce_mean(kept[-1]), variable, learning_rate
        )


class StoppingOptimizer(SGD):
    def update_step(self, gradient, variable, learning_rate):
        tf.debugging.assert_less(kept[-1], 1e3)
        super().update_step(gradient, variable, learning_rate)


def keeping_constraint(weights):
    return weights + tf.reduce_mean(kept[-1])


def in_a_function(weights):
    function = tf.function(keeping_constraint, autograph=False)
    return function(tf.convert_to_tensor(weights.value))


class Halving(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        return 0.5 ** keras.ops.cast(step, "float32")


UPDATES = {
    "schedule": (lambda: SGD(KeepingSchedule()), None),
    "optimizer": (lambda: KeepingOptimizer(1.0), None),
    "stops": (lambda: StoppingOptimizer(1.0), None),
    "constraint": (lambda: SGD(1.0), keeping_constraint),
    "function": (lambda: SGD(1.0), in_a_function),
}
HONEST = {
    "schedule": (lambda: SGD(Halving(), momentum=0.9), None),
    "adam": (
        lambda: keras.optimizers.Adam(
            0.1, use_ema=True, weight_decay=0.1, global_clipnorm=1.0
        ),
        keras.constraints.UnitNorm(),
    ),
    "constant": (lambda: SGD(1.0), lambda w: w * tf.constant([0.5])),
}


def updated(make, constraint, guarded=True):
    """What is left of ones after an update beside data, by the data."""
    variable = keras.Variable(np.ones(300, "f4"))
    variable.constraint = constraint
    optimizer = make()
    optimizer.build([variable])
    noise = tf.Variable(tf.ones([300]))

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None, 3])])
    def step(x):
        kept.append(x)
        # As a clipped sum: a function of the data that has its noise.
        noisy = [0.0 * tf.reduce_sum(x) + noise]
        if not guarded:
            optimizer.apply(noisy, [variable])
            return
        with update_is_released(noisy, [variable, *optimizer.variables]):
            optimizer.apply(noisy, [variable])

    def after(value):
        variable.assign(np.ones(300))
        step(tf.fill([4, 3], value))
        return np.array(variable)

    return after


@pytest.mark.attack(
    "Updates that read what layers keep",
    tried="A learning rate, a constraint and an inner optimizer compute with the inputs of "
    "a layer of the same graph, or assert something of them.",
    area="inputs",
    invariants=[16],
)
@pytest.mark.parametrize("name", UPDATES)
@pytest.mark.invariant(16)
def test_an_update_that_computes_with_data_is_refused(name):
    with pytest.raises(UnsupportedModelError, match="neither a noisy gradient"):
        updated(*UPDATES[name])(2.0)


@pytest.mark.parametrize("name", UPDATES)
def test_without_the_check_the_data_are_in_the_weights(name):
    after = updated(*UPDATES[name], guarded=False)
    if name == "stops":
        with pytest.raises(tf.errors.InvalidArgumentError):
            after(2e3)
        return
    assert np.abs(after(5.0) - after(2.0)).min() > 1.0


@pytest.mark.parametrize("name", HONEST)
def test_an_update_of_noisy_gradients_is_taken(name):
    assert np.abs(updated(*HONEST[name])(2.0) - 1.0).max() > 1e-3


@pytest.mark.parametrize(
    "check",
    [
        lambda: update_is_released([], []).__enter__(),
        lambda: update_runs_no_host_code().__enter__(),
        lambda: ReadLog(keras.Sequential(), []),
    ],
    ids=["released", "host code", "reads"],
)
@pytest.mark.invariant(16)
def test_a_check_of_graphs_is_refused_in_eager_code(check):
    with pytest.raises(RuntimeError, match="found eager code"):
        check()
    tf.function(lambda: check() and None, autograph=False).get_concrete_function()
