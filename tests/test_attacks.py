"""Each attack in docs/what-was-attacked.md is a test, and no attack succeeded."""

import re

import page
from modules import ROOT

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
