"""Tests that a private step accepts only the tensors that the schedule drew for it."""

import numpy as np
import pytest
import tensorflow as tf
from same_weights import refused
from small_models import data, make_plan, make_private_model, plan_and_model

EDITS = {
    "other data": lambda b: {**b, "x": tf.random.normal(b["x"].shape)},
    "other targets": lambda b: {**b, "y": (b["y"] + 1) % 3},
    "weighted": lambda b: {**b, "sample_weight": tf.fill(b["y"].shape, 2.0)},
    "cut": lambda b: {**b, "x": b["x"][:2], "y": b["y"][:2]},
    "no fingerprint": lambda b: {k: v for k, v in b.items() if k != "fingerprint"},
}


@pytest.mark.parametrize("changes", [{}, {"jit_compile": True}])
@pytest.mark.slow_cases("changes1")
@pytest.mark.invariant(20)
def test_an_edited_batch_is_refused_before_anything_is_computed(changes):
    # If all batches have the same size, the step is traced only once, which saves time.
    plan, model = plan_and_model(batch_size=11, **changes)
    batches = list(plan.batches(*data))
    model.train_on_batch(batches[0])
    changed = tf.errors.InvalidArgumentError, "not those that"
    for edit in EDITS.values():
        with refused(model, *changed):
            model.train_on_batch(edit(batches[1]))
    # Another batch is refused, even if it is relabeled with this step's number.
    relabelled = {**batches[2], "step": batches[1]["step"]}
    with refused(model, *changed):
        model.train_on_batch(relabelled)
    model.train_on_batch(batches[1])
    assert model.optimizer.steps_taken == 2


@pytest.mark.invariant(20)
def test_weights_of_the_plan_and_padding_cannot_be_changed():
    plan = make_plan()
    weights = np.linspace(0.5, 1.0, len(data[0]), dtype=np.float32)
    model = make_private_model(plan)
    batches = list(plan.batches(*data, weights, padded=True))
    first = batches[0]
    for edited in (
        {**first, "sample_weight": 2.0 * first["sample_weight"]},
        {**first, "sample_weight": tf.ones_like(first["sample_weight"])},
        {**first, "num_examples": first["num_examples"] - 1},
    ):
        with refused(model, tf.errors.InvalidArgumentError, "not those that"):
            model.train_on_batch(edited)
    for batch in batches:
        model.train_on_batch(batch)
