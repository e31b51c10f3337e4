"""The benchmarks page equals the output of its script."""

import pytest
from modules import ROOT, module_at

pytest.importorskip("matplotlib")  # The extra `plot` may not be installed.

made = module_at("docs/make_benchmarks.py")


def test_the_page_is_of_the_results():
    text = (ROOT / "docs" / "benchmarks.md").read_text("utf-8")
    assert text == made.page(), "run: python docs/make_benchmarks.py"
    assert "## Fashion-MNIST" in text
