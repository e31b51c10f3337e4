"""Advice on samplings, and progress."""

import logging

import pytest

import tf_bandmf
from tf_bandmf.strategies import registry

DATA = dict(num_examples=320, batch_size=32, epochs=4)
BUDGET = dict(epsilon=2.0, delta=1e-4)


@pytest.mark.slow
def test_auto_says_what_other_samplings_would_give_and_demand(tmp_path, caplog):
    told = []
    with caplog.at_level(logging.INFO, logger="tf_bandmf"):
        plan = tf_bandmf.plan("auto", progress=told.append, **DATA, **BUDGET)
    advice = plan.choice.advice
    assert any('sampling="balls-in-bins"' in line for line in advice)
    assert all("% less. It demands " in line for line in advice)
    # What was promised is about what is found.
    line = next(line for line in advice if "balls-in-bins" in line)
    promised = float(line.split("about ")[1].split(" ")[0])
    name = line.split("(")[1].split(")")[0]
    named = tf_bandmf.plan(name, sampling="balls-in-bins", **DATA, **BUDGET)
    assert abs(named.rmse() / promised - 1.0) < 0.1 and promised < plan.rmse()
    assert "bisr" in told and "sampling poisson" in told
    assert any("comparing bisr" in record.message for record in caplog.records)
    path = str(tmp_path / "plan.json")
    plan.save(path)
    assert tf_bandmf.Plan.load(path).choice.advice == advice
    assert advice[0] in str(plan.choice)


def test_no_advice_where_the_caller_makes_the_batches(monkeypatch):
    monkeypatch.setattr(registry, "auto_names", lambda *_: ("identity", "bisr"))
    use = {"num_steps": 40, "participation": tf_bandmf.MinSep(10, 4)}
    assert tf_bandmf.plan("auto", **use, **BUDGET).choice.advice == ()
