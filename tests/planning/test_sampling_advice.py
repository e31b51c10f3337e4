"""Advice on samplings, progress, and what "auto" leaves out."""

import logging

import pytest

import tf_bandmf
from tf_bandmf import workloads
from tf_bandmf.participation import FixedEpochOrder, MinSep
from tf_bandmf.planning import candidates, choosing

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


def test_no_advice_where_the_caller_makes_the_batches():
    choice = choosing.choose(
        workloads.prefix_sum(40),
        MinSep(10, 4),
        mechanism_names=("identity", "bisr"),
        **BUDGET,
    )
    assert choice.advice == ()


def test_general_columns_are_left_out_where_toeplitz_is_far_behind(monkeypatch):
    # However far it is.
    monkeypatch.setattr(candidates, "_REFINEMENT", 0.5)
    workload, fixed = workloads.momentum_sgd(200, 0.5), FixedEpochOrder(500, 50, 20)
    names = ("banded", "lambda_cgd", "toeplitz")
    choice = choosing.choose(workload, fixed, mechanism_names=names, **BUDGET)
    assert "general columns gain a few percent" in choice.excluded["banded"]
    assert [row.mechanism.split(":")[0] for row in choice.table] == list(names[1:])


@pytest.mark.slow
def test_what_is_chosen_is_optimized_in_full():
    workload, fixed = workloads.prefix_sum(32), FixedEpochOrder(160, 20, 4)
    told = []
    choice = choosing.choose(
        workload,
        fixed,
        mechanism_names=("toeplitz", "banded"),
        progress=told.append,
        **BUDGET,
    )
    assert told[:2] == ["toeplitz", "banded"]
    if choice.mechanism.startswith("banded"):
        assert told[2] == f"{choice.mechanism}, in full"
        assert choice.strategy.diagnostics["optimality_gap"] < 1e-3
