"""Races, kills and full disks cause no lost ledger entries and no overspending."""

import os
import pathlib
import resource

import pytest
from children import printed
from small_ledgers import bound_plan, run_name

import tf_bandmf
from tf_bandmf.ledger import BudgetExceededError, LedgerError

pytestmark = pytest.mark.invariant(19)

PROGRAM = pathlib.Path(__file__).with_name("racing_runs.py")


def told(url, plan, what, count):
    """Runs racing_runs.py, which prints the ledger's answers; returns its output lines."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}
    options = {"env": environment, "timeout": 900}
    lines = printed(PROGRAM, url, plan, what, count, **options).splitlines()
    assert not [line for line in lines if line.startswith("failed")], lines[-3:]
    return lines


@pytest.mark.slow_cases("postgresql-2")
@pytest.mark.attack(
    "Processes that race for the rest of a budget",
    tried="Processes begin runs simultaneously, on SQLite and on PostgreSQL. Each plan "
    "fitted when it was made: as many runs begin as fit, and the others are refused.",
    area="faults",
)
@pytest.mark.parametrize("count", [2, pytest.param(8, marks=pytest.mark.slow)], ids=str)
def test_processes_race_for_the_last_of_a_budget(count, ledger, tmp_path):
    # The budget suffices for the runs of exactly half of the processes.
    noise = bound_plan().noise_multiplier
    rho = 0.5 * (count // 2) / noise**2
    ledger.add_dataset("patients", rho=rho * 1.001)
    path = tmp_path / "plan.json"
    bound_plan(ledger).save(str(path))
    url = ledger._store.url.render_as_string(False)
    said = told(url, path, "race", count)
    begun = [line for line in said if line.startswith("begun")]
    assert len(begun) == count // 2, said
    assert said.count("refused") == count - count // 2
    balance = ledger.balance("patients")
    assert balance.runs == count // 2 and balance.part <= 1.0
    assert ledger.verify() == []


def check_told(ledger, lines):
    """Checks that the ledger has every entry that it confirmed to a process."""
    for line in lines:
        word, _, run = line.strip().partition(" ")
        if word in ("begun", "ended"):
            kinds = [entry.kind for entry in ledger.history(run=run)]
            assert word in kinds, (word, kinds)


@pytest.mark.slow_cases("postgresql-3")
@pytest.mark.attack(
    "kill -9 while runs begin, step and end",
    tried="Kills at random, on SQLite and PostgreSQL: the ledger has every entry that "
    "it confirmed, its hash chain is intact, a budget for ten runs is not overspent.",
    area="faults",
)
@pytest.mark.parametrize(
    "kills", [3, pytest.param(100, marks=pytest.mark.slow)], ids=str
)
def test_kills_lose_nothing(kills, each_url, tmp_path):
    ledger = tf_bandmf.Ledger(each_url)
    rho = 0.5 * 10 / bound_plan().noise_multiplier ** 2
    ledger.add_dataset("patients", rho=rho * 1.001)
    path = tmp_path / "plan.json"
    bound_plan(ledger).save(str(path))
    said = told(each_url, path, "kill", kills)
    check_told(ledger, said)
    assert any(line.startswith("begun") for line in said)
    assert ledger.verify() == []
    entries = ledger.history(dataset="patients")
    begun = {entry.run for entry in entries if entry.kind == "begun"}
    ended = {entry.run for entry in entries if entry.kind == "ended"}
    assert ledger.balance("patients").runs == len(begun) and ended <= begun
    # Further runs can use up the remaining budget but cannot exceed it.
    plan = tf_bandmf.Plan.load(str(path))
    with pytest.raises(BudgetExceededError):
        for number in range(21):
            ledger.begin(plan, run_name(number))
    assert 0.9 < ledger.balance("patients").part <= 1.0


@pytest.mark.attack(
    "A full disk while a run begins",
    tried="A limit on the size of files leaves no space for the entry: the run is "
    "refused, and the ledger is unchanged.",
    area="faults",
)
def test_a_full_disk_refuses_the_run(url, tmp_path):
    ledger = tf_bandmf.Ledger(url)
    ledger.add_dataset("patients", rho=1e6)
    plan = bound_plan(ledger)
    path, refused, begun = tmp_path / "privacy.db", 0, 0
    before, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for number in range(24):
        limit = path.stat().st_size + 1024 * (number % 4)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            ledger.begin(plan, run_name(number))
            begun += 1
        except LedgerError as error:
            assert "Nothing was reserved" in str(error)
            refused += 1
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (before, hard))
        assert ledger.balance("patients").runs == begun
        if refused > begun:
            # Now that the limit on the file size is lifted, the ledger accepts runs.
            ledger.begin(plan, run_name(f"again {number}"))
            begun += 1
    assert refused >= 3 and begun >= 3
    assert ledger.verify() == []
