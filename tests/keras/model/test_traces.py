"""A training step and its clipping pass are traced once per `fit`."""

import keras
import numpy as np
import pytest
from small_models import data, plan_and_model

from tf_bandmf.keras.clipping.sums import clipped_sums
from tf_bandmf.keras.model.programs import Programs


class LateMean(keras.metrics.Metric):
    """A metric that creates its variables in its first update."""

    total = None

    def update_state(self, y_true, y_pred, sample_weight=None):
        if self.total is None:
            self.total = self.add_variable((), "zeros", name="late_total")
        self.total.assign_add(keras.ops.mean(y_pred))

    def result(self):
        return self.total


@pytest.mark.on_cpu
def test_the_step_and_its_pass_are_traced_once(monkeypatch):
    steps, passes = [], []
    step, traced = Programs._noised, clipped_sums._pass_in_graph

    def counted_step(self, *args):
        steps.append(args)
        return step(self, *args)

    def counted_pass(*args):
        passes.append(args)
        return traced(*args)

    monkeypatch.setattr(Programs, "_noised", counted_step)
    monkeypatch.setattr(clipped_sums, "_pass_in_graph", counted_pass)
    plan, model = plan_and_model(
        epochs=1, batch_size=11, metrics=["accuracy", LateMean()]
    )
    history = model.fit(plan.batches(*data), verbose=0).history
    assert len(history) == 3 and np.all(np.isfinite(list(history.values())))
    assert len(steps) == len(passes) == 1
