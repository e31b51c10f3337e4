"""The page "what was attacked" names existing tests, and its rows are well-formed."""

import pathlib
import re

import attack_report
import page

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


def test_a_title_has_one_row_which_says_what_did_not_hold():
    row = attack_report.attack("T", tried="x", area="faults", invariants=[10])
    case = {**row, "test": "tests/a.py::b", "figure": "1 of 3", "outcome": "held"}
    text = page.page([case, {**case, "figure": "2 of 3", "outcome": "BROKEN"}])
    assert "0 of 1 attacks were held off, in 2 cases." in text
    assert (
        "| T (invariant 10)<br>`tests/a.py::b` | x | 1 of 3; 2 of 3 "
        "| held (1 of 2 cases); BROKEN |"
    ) in text
