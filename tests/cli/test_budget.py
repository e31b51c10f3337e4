"""`tf-bandmf budget`: what it prints, writes and refuses."""

import csv
import hashlib
import io
import json
import re
import xml.etree.ElementTree as ElementTree

import pytest

import tf_bandmf
from tf_bandmf import cli

pytest.importorskip("sqlalchemy")


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setenv("TF_BANDMF_LEDGER_WITNESS", str(tmp_path / "witness"))
    monkeypatch.delenv("TF_BANDMF_LEDGER", raising=False)
    return str(tmp_path / "privacy.db")


@pytest.fixture
def run(capsys, path):
    def go(*arguments, code=0):
        found = cli.main(["budget", "--ledger", path, *arguments])
        captured = capsys.readouterr()
        assert found == code, captured.err
        return captured.out if code == 0 else captured.err

    return go


@pytest.fixture
def filled(run, path):
    arguments = "--epsilon 2 --delta 1e-6 --period 2100 --ends 2101-01-01".split()
    run("add", "patients", *arguments, "--unit", "one patient")
    ledger = tf_bandmf.Ledger(path := f"sqlite:///{path}", who="<tester>")
    plan = tf_bandmf.plan(
        "lambda_cgd:0.9",
        epsilon=1.0,
        delta=1e-7,
        num_examples=1200,
        batch_size=40,
        epochs=2,
        unit="one patient",
    )
    plan = ledger.bind(plan, "patients")
    name = hashlib.sha256(b"1").hexdigest()
    ledger.begin(plan, name)
    ledger.note_steps(name, 60)
    ledger.release(name, digest="ab" * 32, to="@the web site")
    ledger.spend("patients", (0.1, 1e-8), about="=cmd|' /C calc'!A0 <script>")
    return ledger


@pytest.mark.slow_cases("80")
@pytest.mark.parametrize("width", [80, 100])
def test_everything_is_readable_at_80_columns(filled, run, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    for arguments in (
        ["show"],
        ["show", "patients"],
        ["history"],
        ["history", "patients", "--last", "2"],
        ["fits", "patients"],
        ["verify"],
        ["--help"],
        ["export", "--help"],
    ):
        out = run(*arguments)
        assert max(map(len, out.split("\n"))) <= width, out
    assert "patients" in run("show") and "2100" in run("show")
    assert "begun" in run("history") and "lambda_cgd:0.9" in run("history")


def test_show_and_fits_agree_with_the_library(filled, run):
    (record,) = json.loads(run("show", "--json"))
    (state,) = filled.spent("patients")
    assert record["spent"] == state.spent.value and record["runs"] == 2
    assert record["budget"]["epsilon"] == 2.0
    found = json.loads(run("fits", "patients", "--json"))["epsilon"]
    assert found == filled.fits("patients") > 0.5
    assert run("fits", "patients").startswith("A run on patients fits with --epsilon")
    run("add", "patients", "--epsilon", "0.5", "--delta", "1e-6", "--period", "2100")
    assert "Nothing fits" in run("fits", "patients")
    assert "overspent" in run("show")


def test_an_auditor_gets_every_entry(filled, run, tmp_path):
    out = run("export", "-")
    rows = list(csv.DictReader(io.StringIO(out)))
    entries = filled.history()
    assert [int(row["number"]) for row in rows] == [e.number for e in entries]
    assert [row["digest"] for row in rows] == [e.digest for e in entries]
    # No cell is a formula.
    assert not [v for row in rows for v in row.values() if v[:1] in ("=", "@", "+")]
    run("export", str(tmp_path / "all.json"))
    record = json.loads((tmp_path / "all.json").read_text())
    assert record["is_intact"] and record["head"] == entries[-1].name
    # Whoever has nothing but the file can check its digests.
    previous = "0" * 64
    for entry in record["entries"]:
        digest = entry.pop("digest")
        text = json.dumps(entry, sort_keys=True, separators=(",", ":"))
        assert hashlib.sha256(text.encode()).hexdigest() == digest
        assert entry["previous"] == previous
        previous = digest


def test_a_report_is_one_page_with_pictures(filled, run, tmp_path):
    pytest.importorskip("matplotlib")
    run("report", str(tmp_path / "report.html"))
    page = (tmp_path / "report.html").read_text("utf-8")
    assert "<script" not in page and "&lt;script&gt;" in page
    picture = page[page.index("<svg") : page.index("</svg>") + 6]
    assert ElementTree.fromstring(picture).tag.endswith("svg")
    assert "lambda_cgd:0.9" in page and "one patient" in page
    # Nothing is loaded from elsewhere.
    assert not re.search(r'(src|href)="(?!#)', page.replace("xlink:href", "href"))


def test_verification_says_what_it_found(filled, run, path):
    found = json.loads(run("verify", "--json"))
    assert found["is_intact"] and found["witnessed"]
    assert "each as it was written" in run("verify", found["head"])
    assert "changed or damaged" in run("verify", "3-0123456789abcdef", code=1)
    store = filled._store
    with store._transaction(writes=True) as connection:
        connection.exec_driver_sql("DROP TRIGGER no_delete_of_entries")
        connection.exec_driver_sql("DELETE FROM entries WHERE number = 4")
    assert "changed or damaged" in run("verify", code=1)
    # Looking makes nobody forget.
    with store._transaction(writes=True) as connection:
        connection.exec_driver_sql("DELETE FROM entries WHERE number > 3")
    run("verify", code=1)
    assert "this machine saw" in run("show", code=1)


def test_what_is_missing_is_said(run, path, capsys, tmp_path):
    assert "There is no ledger at" in run("show", code=2)
    assert not (tmp_path / "privacy.db").exists()
    assert cli.main(["budget", "show"]) == 2
    assert "--ledger is missing" in capsys.readouterr().err
    run("add", "patients", "--epsilon", "1", code=2)
    run("add", "patients", "--epsilon", "1", "--delta", "1e-6")
    assert "no data set" in run("show", "doctors", code=2)
    assert "has the unit" in run("add", "patients", "--unit", "one visit", code=2)
    assert ".html" in run("report", "page.txt", code=2)
