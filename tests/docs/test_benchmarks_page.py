"""The page of benchmarks is what its script writes, and its choices are by validation."""

import pytest
from modules import ROOT, module_at

pytest.importorskip("matplotlib")  # of the extra for plots, not of that for tests

made = module_at("docs/make_benchmarks.py")


def test_the_page_is_of_the_results():
    text = (ROOT / "docs" / "benchmarks.md").read_text("utf-8")
    assert text == made.page(), "run: python docs/make_benchmarks.py"
    assert "fashion-mnist" in text
