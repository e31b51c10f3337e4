"""Tests the output, exported files and errors of the command `tf-bandmf budget`."""

import csv
import hashlib
import io
import json

import dp_accounting
import pytest
from small_ledgers import bound_plan, run_name

import tf_bandmf
from tf_bandmf import cli

pytest.importorskip("sqlalchemy")


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.delenv("TF_BANDMF_LEDGER", raising=False)
    return str(tmp_path / "privacy.db")


@pytest.fixture
def run(capsys, path):
    def go(*arguments, code=0):
        actual = cli.main(["budget", "--ledger", path, *arguments])
        captured = capsys.readouterr()
        assert actual == code, captured.err
        return captured.out if code == 0 else captured.err

    return go


@pytest.fixture
def filled(run, path):
    run("add", "patients", *"--epsilon 2 --delta 1e-6".split(), "--unit", "one patient")
    ledger = tf_bandmf.Ledger(f"sqlite:///{path}", who="<tester>")
    plan = bound_plan(ledger, delta=1e-7, unit="one patient")
    ledger.begin(plan, run_name(1))
    means = dp_accounting.GaussianDpEvent(30.0)
    ledger.spend("patients", means, about="=cmd|' /C calc'!A0")
    return ledger


def test_show_and_fits_agree_with_the_library(filled, run):
    (record,) = json.loads(run("show", "--json"))
    balance = filled.balance("patients")
    assert record["spent"] == balance.spent and record["runs"] == 2
    assert record["budget"]["epsilon"] == 2.0
    assert f"{balance.spent:.4g}" in run("show")
    actual = json.loads(run("fits", "patients", "--json"))
    assert actual == filled.fits("patients") > 0.5
    assert f"{actual:g}" in run("fits", "patients")


def test_a_budget_is_changed_by_those_who_say_so(filled, run):
    """`add` refuses to change the budget of an existing data set; `set` changes it."""
    same = ["add", "patients", "--unit", "one patient"]
    run(*same, "--epsilon", "2", "--delta", "1e-6")
    assert "set_budget" in run(*same, "--epsilon", "9", "--delta", "1e-6", code=2)
    assert filled.balance("patients").budget.epsilon == 2.0
    assert "overspent" in run(*"set patients --epsilon 0.5 --delta 1e-6".split())
    assert filled.balance("patients").budget.epsilon == 0.5
    assert [entry.kind for entry in filled.history()][-1] == "budget"


def test_an_auditor_gets_every_entry(filled, run):
    rows = list(csv.DictReader(io.StringIO(run("export", "-"))))
    records = json.loads(run("history", "--json"))
    entries = filled.history()
    assert [row["digest"] for row in rows] == [e.digest for e in entries]
    assert [int(row["number"]) for row in rows] == [0, 1, 2]
    # No cell starts with a character that makes a spreadsheet read it as a formula.
    assert not [v for row in rows for v in row.values() if v[:1] in ("=", "@", "+")]
    # The digests can be recomputed from the exported records alone.
    previous = ""
    for entry in records:
        digest, entry["digest"] = entry["digest"], ""
        text = json.dumps(entry, sort_keys=True, separators=(",", ":"))
        assert hashlib.sha256(text.encode()).hexdigest() == digest
        assert entry["previous"] == previous
        previous = digest
    assert "begun" in run("history") and "lambda_cgd:0.9" in run("history")
    assert "begun" not in run("history", "--run", "f" * 8)


def test_verification_says_what_it_found(filled, run):
    newest = filled.history()[-1].name
    assert "entries are unchanged" in run("verify", newest)
    assert "no entry 3-01" in run("verify", "3-0123456789abcdef", code=1)
    with filled._store.transaction(writes=True) as actual:
        actual.connection.exec_driver_sql("DROP TRIGGER no_delete_of_runs")
        actual.connection.exec_driver_sql("DELETE FROM runs WHERE number = 1")
    assert "changed or damaged" in run("verify", code=1)
    assert "Entry 1" in run("show", code=1)


def test_what_is_missing_is_said(run, path, capsys, tmp_path):
    assert "There is no ledger at" in run("show", code=2)
    assert not (tmp_path / "privacy.db").exists()
    assert cli.main(["budget", "show"]) == 2
    assert "Pass --ledger, or set" in capsys.readouterr().err
    run("add", "patients", "--epsilon", "1", code=2)
    run("add", "patients", "--epsilon", "1", "--delta", "1e-6")
    assert "no data set" in run("fits", "doctors", code=2)
