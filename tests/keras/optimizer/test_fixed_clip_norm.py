"""The clip norm is a constant of a run: earlier noise was scaled for it."""

import dataclasses

import keras
import pytest


def with_clip_norm(plan, l2_norm_clip):
    return dataclasses.replace(plan, l2_norm_clip=l2_norm_clip)


@pytest.mark.invariant(13)
def test_a_plan_keeps_its_clip_norm(make_plan):
    plan = make_plan()
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.l2_norm_clip = 2.0
    assert with_clip_norm(plan, 2.0).plan_id != plan.plan_id


@pytest.mark.invariant(13)
def test_batches_of_a_plan_with_another_clip_norm(plan_and_model, data):
    plan, model = plan_and_model()
    with pytest.raises(ValueError, match="another plan"):
        model.fit(with_clip_norm(plan, 2.0).batches(*data), epochs=2, verbose=0)
    assert model.optimizer.steps_taken == 0


@pytest.mark.invariant(13)
def test_an_optimizer_keeps_its_plan(plan_and_model):
    plan, model = plan_and_model()
    with pytest.raises(AttributeError):
        model.optimizer.plan = with_clip_norm(plan, 2.0)


@pytest.mark.invariant(13)
def test_a_run_is_not_resumed_with_another_clip_norm(
    make_plan, make_private_model, data, tmp_path
):
    plan = make_plan(batch_size=22)

    def fit(plan, epochs):
        model = make_private_model(plan)
        model.build((None, data[0].shape[1]))
        model.fit(
            plan.batches(*data),
            epochs=epochs,
            private_state=tmp_path / "run.private",
            callbacks=[
                keras.callbacks.BackupAndRestore(
                    tmp_path / "backup", delete_checkpoint=False
                )
            ],
            verbose=0,
        )
        return model

    assert fit(plan, 1).optimizer.steps_taken == plan.num_steps // 2
    before = (tmp_path / "run.private").read_bytes()
    with pytest.raises(ValueError, match="plan"):
        fit(with_clip_norm(plan, 2.0), 2)
    assert (tmp_path / "run.private").read_bytes() == before


@pytest.mark.invariant(13)
def test_each_step_clips_to_the_norm_of_the_plan(make_plan, make_private_model, data):
    """A callback that reaches for the clip norm changes nothing."""

    class Reach(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.l2_norm_clip = 100.0
            self.model.optimizer.l2_norm_clip = 100.0

    plan = make_plan(l2_norm_clip=1e-3)
    plain, reached = make_private_model(plan), make_private_model(plan)
    plain.fit(plan.batches(*data), epochs=2, verbose=0)
    reached.fit(plan.batches(*data), epochs=2, verbose=0, callbacks=[Reach()])
    for a, b in zip(plain.get_weights(), reached.get_weights(), strict=True):
        assert (a == b).all()
