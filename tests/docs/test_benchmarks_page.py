"""The page of benchmarks is what its script writes, and its choices are by validation."""

import pytest
from modules import ROOT, module_at

pytest.importorskip("matplotlib")  # of the extra for plots, not of that for tests

made = module_at("docs/make_benchmarks.py")


def run(phase, rate, accuracy):
    return {
        "row": "A", "mechanism": "bisr:4", "sampling": "poisson", "kind": "exact",
        "epsilon": "3.0", "epochs": "4", "batch_size": "8", "phase": phase,
        "learning_rate": rate, "readout": "last", "accuracy": accuracy,
    }  # fmt: skip


def test_the_page_is_of_the_results():
    text = (ROOT / "docs" / "benchmarks.md").read_text("utf-8")
    assert text == made.page(), "run: python docs/make_benchmarks.py"
    assert "fashion-mnist" in text


def test_the_test_images_choose_nothing():
    runs = [
        run("validation", "1", "0.8"),
        run("validation", "2", "0.7"),
        run("test", "1", "0.5"),
        run("test", "1", "0.7"),
        run("test", "2", "0.9"),
    ]
    row = made.section("task", runs).splitlines()[-1]
    assert row == ("| A | `bisr:4` | poisson | exact | 80.00% | 60.00% ± 10.00% | 2 |")
