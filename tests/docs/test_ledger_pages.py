"""Tests that the pages on budgets and growing data show what the examples print."""

import re

import pytest
from children import printed
from modules import ROOT, module_at


def test_the_table_of_growing_data_is_what_the_example_prints(capsys):
    rows = module_at("examples/growing_data.py").main()
    printed = [x for x in capsys.readouterr().out.splitlines() if x.startswith("|")]
    page = (ROOT / "docs" / "several-runs.md").read_text("utf-8")
    table = page.partition("<!-- growing-data -->")[2].partition("<!-- end -->")[0]
    assert table.strip().splitlines()[2:] == printed
    # The ratios that the page states in its text agree with the table.
    rms = {(unit, data, how): value for unit, data, how, _, value, _, _ in rows}
    for unit, data in (("record", "new alone"), ("record", "last 4 weeks")):
        once = rms[unit, data, "one mechanism"]
        assert once < 0.56 * rms[unit, data, "weekly plans, continued"]
    once = rms["user", "new alone", "one mechanism"]
    assert once < 0.6 * rms["user", "new alone", "weekly plans, continued"]


@pytest.mark.slow
def test_of_two_shells_one_takes_what_is_left_and_the_other_is_refused(tmp_path):
    pytest.importorskip("sqlalchemy")
    program = ROOT / "examples" / "ledger_two_shells.py"
    actual = printed(program, tmp_path / "privacy.db", timeout=120)
    page = (ROOT / "docs" / "budgets.md").read_text("utf-8")
    shown = page.partition("```text\n")[2].partition("```")[0]
    # Digests depend on the time and on the ledger's id, so they are removed before the
    # comparison.
    without = lambda text: re.sub(r"-[0-9a-f]{16}", "-...", text).split()  # noqa: E731
    assert without(actual) == without(shown)
