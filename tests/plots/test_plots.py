"""Plots show the numbers that the library computes, with labels and units."""

import numpy as np
import pytest
from small_plans import small_plan

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")

from matplotlib import pyplot as plt  # noqa: E402

from tf_bandmf import plots  # noqa: E402

STEPS = 40


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def plans():
    return {
        "DP-SGD": small_plan("identity", 400, 40, 4, l2_norm_clip=3.0),
        "bisr": small_plan("bisr:4", 400, 40, 4),
    }


def legend(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_heat_maps_have_the_entries_of_both_matrices(plans):
    strategy = plans["bisr"].strategy
    dense = strategy.matrix.to_dense()
    for draw, name, expected in (
        (plots.strategy_matrix, "C", dense),
        (plots.noising_matrix, "C⁻¹", np.linalg.inv(dense)),
    ):
        axes = draw(strategy, rows=12)
        (image,) = axes.images
        shown = image.get_array()
        below = np.tril_indices(12)
        np.testing.assert_allclose(
            shown.data[below], expected[:12, :12][below], atol=1e-12
        )
        # Entries above the diagonal are masked, because they are zero by definition.
        assert shown.mask[np.triu_indices(12, 1)].all() and not shown.mask[below].any()
        assert axes.get_title() == f"{name}, first 12 steps"
        assert axes.get_ylabel() == "row (step)"
        assert image.colorbar.ax.get_ylabel() == f"entry of {name}"
    low, high = image.get_clim()
    assert -low == high == pytest.approx(np.abs(expected[:12, :12]).max())
    assert plots.noising_matrix(strategy, rows=99).get_title() == "C⁻¹"
    with pytest.raises(ValueError, match="rows must be >= 1"):
        plots.strategy_matrix(strategy, rows=0)


def test_per_step_error_is_the_librarys(plans):
    axes = plots.per_step_error(plans)
    assert legend(axes) == list(plans)
    for line, plan in zip(axes.lines, plans.values()):
        squared = plan.strategy.per_step_squared_error(plan.workload)
        np.testing.assert_array_equal(line.get_xdata(), np.arange(1, STEPS + 1))
        expected = np.sqrt(squared) * plan.noise_multiplier * plan.sensitivity.value
        np.testing.assert_allclose(line.get_ydata(), expected)
        # The root mean square of the plotted errors over all steps is the plan's RMSE.
        assert np.sqrt(np.mean(line.get_ydata() ** 2)) == pytest.approx(plan.rmse())
    assert axes.get_xlabel() == "step" and "clip norm" in axes.get_ylabel()


def test_epsilon_of_delta_falls_through_the_planned_point(plans):
    deltas = [1e-3, 1e-4, 1e-6]
    axes = plots.epsilon_of_delta({"bisr": plans["bisr"]}, deltas)
    curve, point = axes.lines
    assert list(curve.get_xdata()) == [1e-3, 1e-4, 1e-5, 1e-6]
    actual = dict(zip(curve.get_xdata(), curve.get_ydata()))
    for delta in deltas:
        assert actual[delta] == plans["bisr"].guarantee_at(delta).epsilon
    assert (point.get_xdata()[0], point.get_ydata()[0]) == (1e-5, 4.0)
    assert axes.get_xscale() == "log"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("δ", "ε")


def test_without_matplotlib_the_error_names_the_extra(monkeypatch, plans):
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"tf-bandmf\[plot\]"):
        plots.per_step_error(plans)
