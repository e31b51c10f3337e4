"""The benchmarks page equals the output of its script; validation chose its settings."""

import pytest
from modules import ROOT, module_at

pytest.importorskip("matplotlib")  # the extra `plot` may be missing

made = module_at("docs/make_benchmarks.py")


def test_the_page_is_of_the_results():
    text = (ROOT / "docs" / "benchmarks.md").read_text("utf-8")
    assert text == made.page(), "run: python docs/make_benchmarks.py"
    assert "## Fashion-MNIST" in text
