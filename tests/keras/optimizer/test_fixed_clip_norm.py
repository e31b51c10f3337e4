"""Tests that the clip norm is fixed for a whole run, as all noise is scaled to it."""

import dataclasses

import pytest
from same_weights import refused
from small_models import data, make_private_model, plan_and_model


@pytest.mark.invariant(13)
def test_plan_optimizer_and_run_keep_the_clip_norm(tmp_path):
    plan, model = plan_and_model(batch_size=22)
    other, path = dataclasses.replace(plan, l2_norm_clip=2.0), tmp_path / "run.private"
    assert other.plan_id != plan.plan_id
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.l2_norm_clip = 2.0
    with pytest.raises(AttributeError):
        model.optimizer.plan = other
    with refused(model, ValueError, "another plan"):
        model.fit(other.batches(*data), epochs=1, verbose=0)
    model.begin_run(plan.batches(*data), path)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="another plan"):
        make_private_model(other).begin_run(other.batches(*data), path)
    assert path.read_bytes() == before
