"""Tests that a second run on the same model or data must be announced.

A second run has a new noise key.
"""

import copy

import numpy as np
import pytest
from same_weights import refused
from small_models import (
    built,
    compile_model,
    data,
    make_min_sep_plan,
    make_plan,
    make_private_model,
)

import tf_bandmf
import tf_bandmf.keras
from tf_bandmf.keras.run import admission

pytestmark = pytest.mark.invariant(19)

SECRET = {"test_seed": None}


def test_a_second_run_on_the_same_data_is_refused():
    plan, (x, y) = make_plan("identity", batch_size=22, **SECRET), data
    first = make_private_model(plan)
    first.fit(plan.batches(x, y), epochs=1, verbose=0)
    second = make_private_model(plan)
    order = np.random.default_rng(1).permutation(len(x))
    half = make_plan("identity", num_examples=len(x) // 2, **SECRET)
    # The same data are recognized in the same order, in another order, and with other
    # targets and weights.
    for batches in (
        plan.batches(x, y),
        plan.batches(x[order], y[order]),
        plan.batches(x, (y + 1) % 3, np.full(len(x), 0.5, np.float32)),
    ):
        with refused(second, RuntimeError, "additional_run=True"):
            second.fit(batches, epochs=1, verbose=0)
    with refused(second, RuntimeError, "second run"):
        second.train_on_batch(next(iter(plan.batches(x, y))))
    fold = make_private_model(half)
    with pytest.raises(RuntimeError, match="examples"):
        fold.fit(half.batches(x[::2], y[::2]), epochs=1, verbose=0)
    # The first run may continue. A run on other data does not count as a second run.
    first.fit(plan.batches(x, y), epochs=1, verbose=0)
    assert first.optimizer.steps_taken == plan.num_steps
    second.fit(plan.batches(x + 1.0, y), epochs=1, verbose=0)
    assert second.optimizer.steps_taken == 1


def test_other_people_with_equal_records_are_no_second_run():
    plan, (x, y) = make_plan("identity", batch_size=22, **SECRET), data
    for seed in (1, 2):
        bits = np.random.default_rng(seed).integers(2, size=x.shape).astype(x.dtype)
        bits[:, 2:] = 0
        model = make_private_model(plan, hidden=False)
        model.fit(plan.batches(bits, y), epochs=1, verbose=0)
        assert model.optimizer.steps_taken == 1


def test_an_additional_run_says_so():
    plan = make_plan("identity", batch_size=22, epochs=1, **SECRET)
    first = make_private_model(plan)
    assert "other run(s)" not in str(first.optimizer.statement())
    first.fit(plan.batches(*data), epochs=1, verbose=0)
    assert "other run(s)" not in str(first.optimizer.statement())
    second = make_private_model(plan, additional_run=True)
    second.fit(plan.batches(*data), epochs=1, verbose=0)
    for model in (first, second):
        points = dict(model.optimizer.statement(unit="one device").points())
        assert points["This run"].startswith("1 other run(s)")
        assert plan.fingerprint[:12] in points["This run"]
        assert points["Unit of privacy"] == "One device."
    # `additional_run` allows one further run, so the config, from which optimizers are
    # copied, must not contain it.
    config = second.optimizer.get_config()
    assert "additional_run" not in config


def test_a_new_key_for_the_same_model():
    plan = make_min_sep_plan(**SECRET)
    x, y = data[0][:4], data[1][:4]
    model = make_private_model(plan)
    # An optimizer whose key was never used does not count as a run.
    unused = tf_bandmf.keras.PrivateOptimizer("sgd", plan)
    unused.build(model.trainable_variables)
    model.train_on_batch(x, y)
    first = model.optimizer
    compile_model(model, tf_bandmf.keras.PrivateOptimizer("sgd", plan))
    # The examples in the caller's own batches are not recognized, but the weights are.
    with refused(model, RuntimeError, "second run"):
        model.train_on_batch(x, y)
    compile_model(model, first)
    model.train_on_batch(x, y)
    assert first.steps_taken == 2


def test_a_run_that_is_resumed_is_the_same_run(tmp_path):
    plan = make_plan("identity", batch_size=22, **SECRET)
    path, weights = tmp_path / "a.private", tmp_path / "a.weights.h5"
    first = make_private_model(plan)
    first.fit(plan.batches(*data), epochs=1, private_state=path, verbose=0)
    first.save_weights(weights)
    resumed = built(make_private_model(plan), weights)
    resumed.fit(plan.batches(*data), epochs=2, private_state=path, verbose=0)
    assert resumed.optimizer.steps_taken == plan.num_steps
    # Another run on the same data in this process makes the resumed run a second run.
    admission.forget()
    other = make_private_model(plan)
    other.fit(plan.batches(*data), epochs=1, verbose=0)
    resumed = built(make_private_model(plan), weights)
    with pytest.raises(RuntimeError, match="second run"):
        resumed.fit(plan.batches(*data), epochs=2, private_state=path, verbose=0)


def test_an_optimizer_is_not_copied():
    optimizer = tf_bandmf.keras.PrivateOptimizer("sgd", make_plan())
    for way in (copy.deepcopy, copy.copy):
        with pytest.raises(TypeError, match="additional_run=True"):
            way(optimizer)
