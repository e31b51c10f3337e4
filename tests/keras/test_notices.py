"""What takes long says so."""

import time

import pytest

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
