"""Errors of mechanisms: bars, curves, and the noise that a model accumulates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tf_bandmf import matrices
from tf_bandmf.plots.style import axes_to_draw_on, finish_lines

if TYPE_CHECKING:
    from tf_bandmf.planning.compare import Comparison
    from tf_bandmf.planning.plan import Plan

_UNIT = "units of the clip norm"


def comparison_bars(table: Comparison, axes: Any | None = None) -> Any:
    """RMSE and MaxSE of each mechanism as horizontal bars, the best on top.

    Args:
      table: of `tf_bandmf.compare`.
      axes: where to draw; by default on a new figure.

    Raises:
      ImportError: if matplotlib is not installed.
    """
    axes = axes_to_draw_on(axes)
    rows = sorted(table, key=lambda row: row.rmse, reverse=True)
    positions = np.arange(len(rows))
    for offset, hatch, label, values in (
        (0.2, "", "RMSE", [row.rmse for row in rows]),
        (-0.2, "//", "max SE", [row.max_se for row in rows]),
    ):
        color = "#0072B2" if not hatch else "#E69F00"
        bars = axes.barh(
            positions + offset, values, 0.38, label=label, color=color, hatch=hatch
        )
        axes.bar_label(bars, fmt="{:.4g}", padding=3, fontsize="small")
    axes.set_yticks(positions, [row.mechanism for row in rows])
    axes.margins(x=0.12)
    axes.set_xlabel(f"error of the noise per coordinate ({_UNIT})")
    axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def per_step_error(plans: Mapping[str, Plan], axes: Any | None = None) -> Any:
    """Standard deviation of the noise in the model after each step.

    Args:
      plans: by name.
      axes: where to draw; by default on a new figure.

    Raises:
      ImportError: if matplotlib is not installed.
    """
    axes = axes_to_draw_on(axes)
    for name, plan in plans.items():
        axes.plot(_steps(plan), _deviation(plan), label=name)
    axes.set_ylim(bottom=0.0)
    return finish_lines(axes, "step", f"standard deviation of the noise\n({_UNIT})")


def accumulated_noise(
    plans: Mapping[str, Plan], seed: int = 0, axes: Any | None = None
) -> Any:
    """The noise in one coordinate of the model, one draw, in a band of +- 1 std.

    All plans get the same normals, from NumPy's generator: this is a picture, not the
    noise of a run.

    Args:
      plans: by name.
      seed: of the normals.
      axes: where to draw; by default on a new figure.

    Raises:
      ImportError: if matplotlib is not installed.
    """
    axes = axes_to_draw_on(axes)
    for name, plan in plans.items():
        normals = np.random.default_rng(seed).standard_normal(plan.num_steps)
        correlated = plan.strategy.matrix.solve(normals)
        noise = matrices.Inverse(plan.workload.inverse()).matmul(correlated)
        scale = plan.unit_noise_stddev
        (line,) = axes.plot(_steps(plan), scale * noise, label=name, linewidth=1.0)
        deviation = _deviation(plan)
        axes.fill_between(
            _steps(plan), -deviation, deviation, color=line.get_color(), alpha=0.13
        )
    axes.set_title("one draw; shaded: ± 1 standard deviation", fontsize="medium")
    return finish_lines(axes, "step", f"accumulated noise of a coordinate\n({_UNIT})")


def _steps(plan: Plan) -> np.ndarray:
    return np.arange(1, plan.num_steps + 1)


def _deviation(plan: Plan) -> np.ndarray:
    """The deviation of the noise after each step, for `l2_norm_clip = 1`; shape [n]."""
    per_step = plan.strategy.per_step_squared_error(plan.workload)
    return plan.unit_noise_stddev * np.sqrt(per_step)
