"""The page "what was attacked" is of tests that exist; its rows are written right."""

import pathlib
import re

import attack_report
import page
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
TEST = re.compile(r"`((?:federated/)?tests/[^`]*?\.py)::(\w+)`")


def test_every_row_is_of_a_test_that_exists_and_held():
    text = (ROOT / "docs" / "what-was-attacked.md").read_text("utf-8")
    assert page.MARK in text
    rows = text.partition(page.MARK)[2]
    actual = TEST.findall(rows)
    assert len(actual) >= 20
    for path, name in actual:
        assert f"def {name}(" in (ROOT / path).read_text("utf-8"), f"{path}::{name}"
    assert "BROKEN" not in rows and "mechanisms that were broken" in rows.lower()


def case(**changes):
    usual = {
        "title": "T",
        "tried": "x",
        "area": "faults",
        "invariants": [10],
        "test": "tests/a.py::b",
        "figure": "",
        "outcome": "held",
    }
    return {**usual, **changes}


def test_a_row_is_written_for_each_title():
    cases = [case(figure="1 of 3"), case(figure="2 of 3"), case(title="U", area="load")]
    text = page.page(cases)
    assert "2 of 2 attacks were held off, in 3 cases." in text
    assert (
        "| T (invariant 10)<br>`tests/a.py::b` | x | 1 of 3; 2 of 3 | held (2 cases)"
        in text
    )
    assert text.index("Faults") < text.index("Load")
    assert page.page(cases[::-1]).count("\n") == text.count("\n")


def test_what_did_not_hold_is_said():
    text = page.page([case(), case(outcome="BROKEN")])
    assert "0 of 1 attacks" in text and "held (1 of 2 cases); BROKEN" in text
    text = page.page([case(outcome="not run: no GPU")])
    assert "| not run: no GPU |" in text


@pytest.mark.parametrize(
    "changes", [{"area": "else"}, {"tried": ""}, {"tried": "a | b"}, {"title": "a\nb"}]
)
def test_a_marker_that_makes_no_row_is_refused(changes):
    arguments = {"title": "T", "tried": "x", "area": "audit", **changes}
    with pytest.raises(ValueError, match=r"area must be|one line"):
        attack_report.attack(arguments.pop("title"), **arguments)
