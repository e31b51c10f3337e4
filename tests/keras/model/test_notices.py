"""What takes long says so."""

import time

import keras
import numpy as np
import pytest

from tf_bandmf.keras.clipping.sums import clipped_sums
from tf_bandmf.keras.model import preparation
from tf_bandmf.keras.model.programs import Programs


@pytest.mark.parametrize("quiet", [False, True])
@pytest.mark.parametrize("patience", [0.05, 600.0])
def test_only_what_takes_long_is_announced(quiet, patience, monkeypatch, capsys):
    monkeypatch.setattr(preparation, "PATIENCE", patience)
    expected = "tf_bandmf: counting.\n" if patience < 1.0 and not quiet else ""
    printed = ""
    with preparation.announced("counting.", quiet):
        time.sleep(0.1)
        give_up = time.monotonic() + 60.0
        while expected and not printed and time.monotonic() < give_up:
            time.sleep(0.01)
            printed += capsys.readouterr().err
    assert printed + capsys.readouterr().err == expected


def test_training_announces_its_trace_once(
    data, plan_and_model, make_private_model, monkeypatch, capsys
):
    monkeypatch.setattr(preparation, "PATIENCE", 0.0)
    plan, model = plan_and_model(epochs=1, hidden=False)
    model.fit(plan.batches(*data), verbose=2)
    assert capsys.readouterr().err.count("tracing") == 1
    again = make_private_model(plan, additional_run=True, hidden=False)
    again.fit(plan.batches(*data), verbose=0)
    assert "tf_bandmf" not in capsys.readouterr().err


METRICS = {
    "name": lambda: "accuracy",
    "object": keras.metrics.SparseCategoricalAccuracy,
    # Makes its variables in its first update.
    "late": lambda: LateMean(),
}


class LateMean(keras.metrics.Metric):
    total = None

    def update_state(self, y_true, y_pred, sample_weight=None):
        if self.total is None:
            self.total = self.add_variable((), "zeros", name="late_total")
        self.total.assign_add(keras.ops.mean(y_pred))

    def result(self):
        return self.total


@pytest.mark.on_cpu
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.slow_cases("name", "late")
def test_the_step_and_its_pass_are_traced_once(
    metric, data, make_plan, make_private_model, monkeypatch
):
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
    plan = make_plan(epochs=1, batch_size=11)
    options = {"metrics": [METRICS[metric]()]}
    model = make_private_model(plan, **options)
    history = model.fit(plan.batches(*data), verbose=0).history
    assert len(history) == 2 and np.all(np.isfinite(list(history.values())))
    assert len(steps) == len(passes) == 1
