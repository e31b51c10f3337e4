"""Tests that updates may use noisy gradients, variables and constants, but no data."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_bandmf.keras.clipping.tensors.errors import UnsupportedModelError
from tf_bandmf.keras.run.programs import Update

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


def keeping_constraint(weights):
    return weights + tf.reduce_mean(kept[-1])


def in_a_function(weights):
    function = tf.function(keeping_constraint, autograph=False)
    return function(tf.convert_to_tensor(weights.value))


def host_in_a_function(weights):
    def host():
        return tf.numpy_function(lambda: np.float32(1.0), [], tf.float32)

    return weights * tf.ensure_shape(tf.function(host, autograph=False)(), [])


class Halving(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        return 0.5 ** keras.ops.cast(step, "float32")


def of_another_program():
    """Appends a tensor of another traced program to the list `kept`, as a layer could."""
    tf.function(kept.append, autograph=False).get_concrete_function(tf.ones([4, 3]))


def of_the_host():
    """Appends an eager batch to the list `kept`, as Python code could."""
    kept.append(tf.ones([400, 3]))


REFUSED = {
    "schedule": (of_another_program, lambda: SGD(KeepingSchedule()), None),
    "optimizer": (of_another_program, lambda: KeepingOptimizer(1.0), None),
    "constraint": (of_another_program, lambda: SGD(1.0), keeping_constraint),
    "function": (of_another_program, lambda: SGD(1.0), in_a_function),
    "batch": (of_the_host, lambda: SGD(KeepingSchedule()), None),
    "batch in a function": (of_the_host, lambda: SGD(1.0), in_a_function),
    "host in a function": (None, lambda: SGD(1.0), host_in_a_function),
}
HONEST = {
    "schedule": (None, lambda: SGD(Halving(), momentum=0.9), None),
    "adam": (
        None,
        lambda: keras.optimizers.Adam(
            0.1, use_ema=True, weight_decay=0.1, global_clipnorm=1.0
        ),
        keras.constraints.UnitNorm(),
    ),
    "constant": (None, lambda: SGD(1.0), lambda w: w * tf.constant([0.5])),
}


def updated(keep, make, constraint):
    """Applies one private update to a variable of ones, and returns its values.

    Asserts that the variable does not change if the update is refused.
    """
    if keep is not None:
        keep()
    variable = keras.Variable(np.ones(300, "f4"))
    variable.constraint = constraint
    optimizer = make()
    optimizer.build([variable])
    update = Update(lambda noisy: optimizer.apply(noisy, [variable]))
    before = variable.numpy()
    try:
        update([tf.ones([300])])
    except (UnsupportedModelError, TypeError):
        np.testing.assert_array_equal(variable, before)
        raise
    return variable.numpy()


@pytest.mark.attack(
    "Updates that read what layers keep",
    tried="A learning rate, a constraint or an inner optimizer reads a batch that a "
    "layer or the user's program has stored, or runs Python code.",
    area="inputs",
)
@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.invariant(16)
def test_an_update_that_computes_with_data_is_refused(name):
    said = "The update of the weights|out of scope"
    with pytest.raises((UnsupportedModelError, TypeError), match=said):
        updated(*REFUSED[name])


@pytest.mark.parametrize("name", HONEST)
def test_an_update_of_noisy_gradients_is_taken(name):
    assert np.abs(updated(*HONEST[name]) - 1.0).max() > 1e-3
