"""What takes long says so."""

import time

import keras
import pytest

import tf_bandmf.keras
from tf_bandmf.keras import notices


@pytest.mark.parametrize("quiet", [False, True])
@pytest.mark.parametrize("seconds", [0.0, 0.3])
def test_only_what_takes_long_is_announced(quiet, seconds, monkeypatch, capsys):
    monkeypatch.setattr(notices, "PATIENCE", 0.1)
    with notices.announced("counting.", quiet):
        time.sleep(seconds)
    expected = "tf_bandmf: counting.\n" if seconds and not quiet else ""
    assert capsys.readouterr().err == expected


def test_training_announces_what_it_traces(
    data, make_plan, make_private_model, monkeypatch, capsys
):
    monkeypatch.setattr(notices, "PATIENCE", 0.0)
    plan = make_plan(epochs=1)
    model = make_private_model(plan, self_check=True)
    model.fit(plan.batches(*data), verbose=2)
    printed = capsys.readouterr().err
    assert "comparing the gradients" in printed and "tracing" in printed
    again = make_private_model(plan, self_check=True, additional_run=True)
    again.fit(plan.batches(*data), verbose=0)
    assert "tf_bandmf" not in capsys.readouterr().err


def test_the_trace_is_announced_once(
    data, make_plan, make_plain_model, monkeypatch, capsys
):
    monkeypatch.setattr(notices, "PATIENCE", 0.0)
    plan = make_plan(epochs=1)
    model = tf_bandmf.keras.make_private(make_plain_model(), self_check=False)
    model.compile(
        tf_bandmf.keras.PrivateOptimizer("sgd", plan),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(plan.batches(*data), verbose=2)
    assert capsys.readouterr().err.count("tracing") == 1
