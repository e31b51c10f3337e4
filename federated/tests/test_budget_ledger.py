"""A federated run reserves its cost in a budget ledger before it draws any noise."""

import pytest
from plans import min_sep_plan
from test_running import B, Crash, K, Models, N, finish, make_devices

import tf_bandmf
from tf_bandmf_federated.accounting import MeasuredParticipation
from tf_bandmf_federated.report import write_report

pytest.importorskip("sqlalchemy")

from tf_bandmf.ledger import BudgetExceededError


@pytest.fixture
def ledger(tmp_path):
    made = tf_bandmf.Ledger(f"sqlite:///{tmp_path}/privacy.db")
    made.add_dataset("keyboards", unit="one device", epsilon=100.0, delta=1e-5)
    return made


@pytest.fixture
def plan(ledger):
    plan = min_sep_plan("banded:2", N, B, K, noise_multiplier=0.5, unit="one device")
    return ledger.bind(plan, "keyboards")


def runs(ledger):
    return ledger.balance("keyboards").runs


@pytest.mark.invariant(19)
def test_a_run_that_crashed_reserves_once(tmp_path, ledger, plan):
    devices = make_devices(tmp_path, plan=plan)
    assert runs(ledger) == 0
    with pytest.raises(Crash):
        finish(tmp_path, devices, plan=plan, models=Models(dies_at=3))
    assert runs(ledger) == 1
    finish(tmp_path, devices, plan=plan)
    assert runs(ledger) == 1
    notes = [e.body["steps"] for e in ledger.history() if e.kind == "steps"]
    assert notes == [N]
    assert ledger.verify() == []
    # A run with the same plan in another folder reserves its cost separately.
    other = tmp_path / "other"
    other.mkdir()
    finish(other, make_devices(other, plan=plan), plan=plan)
    assert runs(ledger) == 2


@pytest.mark.invariant(19)
def test_without_budget_nothing_leaves(tmp_path, ledger, plan):
    devices, models = make_devices(tmp_path, plan=plan), Models()
    ledger.set_budget("keyboards", epsilon=1.0, delta=1e-5)
    with pytest.raises(BudgetExceededError):
        finish(tmp_path, devices, plan=plan, models=models)
    assert models.released == [] and runs(ledger) == 0
    ledger.set_budget("keyboards", epsilon=100.0, delta=1e-5)
    finish(tmp_path, devices, plan=plan, models=models)
    assert runs(ledger) == 1 and models.released[-1][0] == N


def test_the_report_names_the_budget(tmp_path, ledger, plan):
    measured = MeasuredParticipation(N, 3, B, K, 3 * K)
    write_report(tmp_path / "report.md", plan, measured)
    report = (tmp_path / "report.md").read_text("utf-8")
    assert f"data set 'keyboards' ({plan.account.id[:12]})" in report
