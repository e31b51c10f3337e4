"""Large logical batches: groups of examples in turn, one noise draw for the batch."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_plans import planned

import tf_bandmf
import tf_bandmf.keras
from tf_bandmf.noise.keys import NoiseKey


def train(model, schedule, **changes):
    model.fit(schedule, verbose=0, **changes)
    return model


def assert_close(a, b, atol=1e-6):
    for x, y in zip(a.get_weights(), b.get_weights(), strict=True):
        np.testing.assert_allclose(x, y, atol=atol)


@pytest.fixture
def make_chunked(make_private_model):
    def make(plan, microbatch_size, **changes):
        model = make_private_model(plan, **changes)
        return tf_bandmf.keras.make_private(model, microbatch_size=microbatch_size)

    return make


# Batches of 5 and 6 examples: groups that fit, do not fit, and are larger.
@pytest.mark.parametrize(
    "microbatch_size, changes",
    [
        (1, {}),
        (4, {}),
        (3, {"jit_compile": True}),
        (3, {"jit_compile": "auto", "steps_per_execution": 3}),
        (64, {}),
    ],
)
@pytest.mark.slow_cases("1-*", "3-changes2", "64-*", "4-changes1")
@pytest.mark.invariant(7)
def test_microbatches_are_the_step_of_the_whole_batch(
    microbatch_size, changes, data, make_plan, make_chunked, straight_weights
):
    run = {"epochs": 1, "l2_norm_clip": 0.5}
    plan, whole = make_plan("bsr:2", **run), straight_weights("bsr:2", **run)
    model = make_chunked(plan, microbatch_size, **changes)
    chunked = train(model, plan.batches(*data))
    # One noise draw for each logical step, whatever the number of groups.
    assert chunked.optimizer.steps_taken == plan.num_steps
    for a, b in zip(chunked.get_weights(), whole, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


@pytest.mark.slow
def test_poisson_batches_of_any_size_are_traced_once(
    data, make_chunked, make_private_model
):
    plan = planned(
        "identity",
        noise_multiplier=1.0,
        delta=1e-5,
        sampling=tf_bandmf.Poisson(len(data[0]), 3),
        num_steps=12,
        test_seed=0,
    )
    seed = NoiseKey.for_testing(0).sampler_seed()
    schedule = plan.batches(*data).join(seed)
    assert len({len(batch.indices) for batch in schedule.indices()}) > 2
    traces = []

    class Counted(keras.layers.Layer):
        def call(self, inputs):
            traces.append(tf.inside_function())
            return inputs

    def make(microbatch_size):
        keras.utils.set_random_seed(0)
        layers = [keras.Input((5,)), Counted(), keras.layers.Dense(3)]
        model = tf_bandmf.keras.make_private(
            keras.Sequential(layers), microbatch_size=microbatch_size
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(tf_bandmf.keras.PrivateOptimizer("sgd", plan), loss)
        return model

    model = make(2)
    model.fit(schedule, epochs=1, steps_per_epoch=4, verbose=0)
    before = len(traces)
    model.fit(schedule, epochs=2, steps_per_epoch=4, verbose=0)
    assert len(traces) == before
    whole = train(make(None), schedule, epochs=3, steps_per_epoch=4)
    assert_close(model, whole)


@pytest.mark.parametrize("size", [0, -1, 2.0])
def test_a_size_that_is_none_is_refused(size, make_plain_model):
    with pytest.raises(ValueError, match="microbatch_size must be"):
        tf_bandmf.keras.make_private(make_plain_model(), microbatch_size=size)


@pytest.mark.invariant(11)
def test_a_run_is_resumed_with_its_microbatches(
    data, make_plan, make_chunked, tmp_path
):
    plan, path = make_plan(), tmp_path / "run.private"
    model = make_chunked(plan, 2)
    model.fit(plan.batches(*data), epochs=1, private_state=path, verbose=0)
    model.save(tmp_path / "m.keras")
    again = keras.models.load_model(tmp_path / "m.keras")
    again.fit(plan.batches(*data), epochs=2, private_state=path, verbose=0)
    assert again.optimizer.steps_taken == plan.num_steps
    train(model, plan.batches(*data), epochs=1)
    for a, b in zip(again.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
