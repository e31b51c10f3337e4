"""The benchmarks page of the documentation equals the output of its script."""

import pytest
from modules import ROOT, module_at

# The optional dependency matplotlib (extra `plot`) may not be installed.
pytest.importorskip("matplotlib")

made = module_at("docs/make_benchmarks.py")


def test_the_page_is_of_the_results():
    text = (ROOT / "docs" / "benchmarks.md").read_text("utf-8")
    assert text == made.page(), "run: python docs/make_benchmarks.py"
    assert "## Fashion-MNIST" in text
