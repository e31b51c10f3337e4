"""Tests the epochs, seed and checks of the batch schedule for a fixed order."""

import numpy as np
import pytest
import tensorflow as tf
from small_plans import planned, small_plan

import tf_bandmf


def make_plan(num_examples=20, batch_size=6, epochs=3):
    return small_plan("identity", num_examples, batch_size, epochs)


def test_order_depends_on_its_seed_only():
    def order(seed):
        participation = tf_bandmf.FixedEpochOrder(20, 6, 3, order_seed=seed)
        plan = planned("identity", sampling=participation)
        schedule = plan.batches(np.arange(20))
        return np.concatenate([schedule.example_indices(i) for i in range(4)]).tolist()

    assert order(0) == order(0) != order(1)


def test_wrong_data_are_refused():
    plan = make_plan()
    with pytest.raises(ValueError, match=r"x must have 20 rows .*users="):
        plan.batches(np.zeros((21, 2)))
    with pytest.raises(ValueError, match="y must have 20 rows"):
        plan.batches(np.zeros((20, 2)), np.zeros(19))
    with pytest.raises(ValueError, match="step"):
        plan.batches(np.zeros(20)).example_indices(12)
    x, names = np.zeros((20, 2)), np.array(["cat", "dog"] * 10)
    for given in ((x, names), (lambda: zip(x, names),)):
        with pytest.raises(TypeError, match="numbers, found strings"):
            plan.batches(*given)
    plan.batches(x, names, map=lambda x, name: (x, tf.cast(name == "cat", tf.int32)))
