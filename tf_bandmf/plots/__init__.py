"""Plots of plans and strategies. They need `pip install "tf-bandmf[plot]"`.

    from tf_bandmf import plots

    axes = plots.per_step_error({"bisr:4": plan})
    axes.figure.savefig("error.png")

Every function has an optional argument for matplotlib axes, and returns the axes that it
drew on. Lines differ in color and in dash pattern, and color-blind readers can
distinguish the colors (Okabe and Ito, 2008). The color maps of heat maps are
perceptually uniform. Errors are standard deviations of one coordinate of the noise, as
multiples of `l2_norm_clip`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tf_bandmf import matrices
from tf_bandmf.accounting.guarantee import fill
from tf_bandmf.strategies import Strategy

if TYPE_CHECKING:
    from tf_bandmf.planning.compare import Comparison
    from tf_bandmf.planning.plan import Plan

# The palette of Okabe and Ito (2008) without yellow, which is pale on white. The order
# makes consecutive colors as different as possible.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#E69F00")
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 3)))
_UNIT = "units of the clip norm"
_ROWS = 64
# The color scale is linear below this fraction of the largest entry, and logarithmic
# above it.
_LINEAR_PART = 0.01


def comparison_bars(table: Comparison, axes: Any | None = None) -> Any:
    """Plots the RMSE and MaxSE of mechanisms as horizontal bars, with the best on top.

    Args:
      table: a table from `tf_bandmf.compare`.
      axes: axes to draw on; by default, the axes of a new figure.

    Raises:
      ImportError: if matplotlib is not installed.
    """
    axes = _axes_to_draw_on(axes)
    rows = sorted(table, key=lambda row: row.rmse, reverse=True)
    positions = np.arange(len(rows))
    for offset, hatch, color, label, values in (
        (0.2, "", COLORS[0], "RMSE", [row.rmse for row in rows]),
        (-0.2, "//", COLORS[-1], "max SE", [row.max_se for row in rows]),
    ):
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
    """Plots the standard deviation of the noise in the model after each step.

    Args:
      plans: a dictionary from the names of plans to the plans.
      axes: axes to draw on; by default, the axes of a new figure.

    Raises:
      ImportError: if matplotlib is not installed.
    """
    axes = _axes_to_draw_on(axes)
    for name, plan in plans.items():
        axes.plot(_steps(plan), _deviation(plan), label=name)
    axes.set_ylim(bottom=0.0)
    return _finish_lines(axes, "step", f"standard deviation of the noise\n({_UNIT})")


def accumulated_noise(
    plans: Mapping[str, Plan], seed: int = 0, axes: Any | None = None
) -> Any:
    """Plots a sample of the noise in one coordinate of the model after each step.

    A shaded band shows +- 1 standard deviation. NumPy's random generator draws the
    normals, which are the same for all plans; the sample is not the noise of any run.

    Args:
      plans: a dictionary from the names of plans to the plans.
      seed: seed of the random generator.
      axes: axes to draw on; by default, the axes of a new figure.

    Raises:
      ImportError: if matplotlib is not installed.
    """
    axes = _axes_to_draw_on(axes)
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
    axes.set_title("one sample; shaded: ± 1 standard deviation", fontsize="medium")
    return _finish_lines(axes, "step", f"accumulated noise of a coordinate\n({_UNIT})")


def _steps(plan: Plan) -> np.ndarray:
    return np.arange(1, plan.num_steps + 1)


def _deviation(plan: Plan) -> np.ndarray:
    """Returns the noise's standard deviation after each step, for l2_norm_clip = 1."""
    per_step = plan.strategy.per_step_squared_error(plan.workload)
    return plan.unit_noise_stddev * np.sqrt(per_step)


def epsilon_of_delta(
    plans: Mapping[str, Plan],
    deltas: Sequence[float] | None = None,
    axes: Any | None = None,
) -> Any:
    """Plots epsilon as a function of delta for one run of each plan.

    A point marks the (epsilon, delta) that a plan states.

    Args:
      plans: a dictionary from the names of plans to the plans.
      deltas: values of delta in (0, 1); by default from 1e-3 to 1e-10.
      axes: axes to draw on; by default, the axes of a new figure.

    Raises:
      ImportError: if matplotlib is not installed.
    """
    axes = _axes_to_draw_on(axes)
    for name, plan in plans.items():
        wanted = None if deltas is None else sorted({*deltas, plan.delta}, reverse=True)
        curve = [(one.delta, one.epsilon) for one in plan.epsilon_curve(wanted)]
        (line,) = axes.plot(*zip(*curve), label=name)
        axes.plot(plan.delta, plan.epsilon, "o", color=line.get_color())
        axes.annotate(
            fill("({0.epsilon:.4g up}, {0.delta:.3g up})", plan),
            (plan.delta, plan.epsilon),
            xytext=(6, 6),
            textcoords="offset points",
            fontsize="small",
        )
    axes.set_xscale("log")
    axes.set_ylim(bottom=0.0)
    return _finish_lines(axes, "δ", "ε")


def training_curves(
    runs: Mapping[str, Sequence[Sequence[float]]],
    quantity: str = "test accuracy",
    axes: Any | None = None,
) -> Any:
    """Plots the mean of a quantity over several runs, with +- 1 standard error.

    Args:
      runs: a dictionary from names to lists of runs. Each run is a list with one value
        per epoch, such as `history.history["val_accuracy"]`. All runs with the same
        name must have the same number of epochs.
      quantity: label of the vertical axis. Do not publish plots of values that are
        measured on training data, because the privacy guarantee does not cover them.
      axes: axes to draw on; by default, the axes of a new figure.

    Raises:
      ImportError: if matplotlib is not installed.
      ValueError: if runs with the same name have different numbers of epochs.
    """
    axes = _axes_to_draw_on(axes)
    for name, values in runs.items():
        if len({len(run) for run in values}) != 1:
            raise ValueError(
                f"All runs of {name!r} must have the same number of epochs, found runs "
                f"with {[len(run) for run in values]} epochs."
            )
        table = np.asarray(values, np.float64)
        epochs = np.arange(1, table.shape[1] + 1)
        mean = table.mean(axis=0)
        (line,) = axes.plot(epochs, mean, label=name)
        if len(table) > 1:
            error = table.std(axis=0, ddof=1) / np.sqrt(len(table))
            axes.fill_between(
                epochs, mean - error, mean + error, color=line.get_color(), alpha=0.15
            )
    if any(len(values) > 1 for values in runs.values()):
        title = "mean of the runs; shaded: ± 1 standard error"
        axes.set_title(title, fontsize="medium")
    axes.xaxis.get_major_locator().set_params(integer=True)
    return _finish_lines(axes, "epoch", quantity)


def strategy_matrix(
    strategy: Strategy, rows: int = _ROWS, axes: Any | None = None
) -> Any:
    """Plots a heat map of a strategy's matrix C for the first steps.

    Args:
      strategy: strategy of n steps.
      rows: maximum number of rows and columns drawn.
      axes: axes to draw on; by default, the axes of a new figure.

    Returns:
      The axes. The mechanism adds independent noise to `C G`, where row j of G is the
      gradient of step j. Entry [i, j] of C is the weight of this gradient in row i of
      `C G`.

    Raises:
      ImportError: if matplotlib is not installed.
      ValueError: if rows is not positive.
    """
    return _heat_map(strategy.matrix.matmul, strategy, rows, "C", axes)


def noising_matrix(
    strategy: Strategy, rows: int = _ROWS, axes: Any | None = None
) -> Any:
    """Plots a heat map of C^-1, whose row i determines the noise of step i.

    Args:
      strategy: strategy of n steps.
      rows: maximum number of rows and columns drawn.
      axes: axes to draw on; by default, the axes of a new figure.

    Returns:
      The axes. Negative entries of the matrix cancel earlier noise.

    Raises:
      ImportError: if matplotlib is not installed.
      ValueError: if rows is not positive.
    """
    return _heat_map(strategy.matrix.solve, strategy, rows, "C⁻¹", axes)


def _heat_map(
    apply: Callable[[np.ndarray], np.ndarray],
    strategy: Strategy,
    rows: int,
    name: str,
    axes: Any | None,
) -> Any:
    if rows < 1:
        raise ValueError(f"rows must be >= 1, found {rows}.")
    axes = _axes_to_draw_on(axes)
    from matplotlib import colors

    size = min(rows, strategy.num_steps)
    block = apply(np.eye(strategy.num_steps, size))[:size]
    largest = float(np.abs(block).max())
    if name == "C" and block.min() >= 0.0:
        color_map, scale = "cividis", colors.Normalize(0.0, largest)
    else:
        # On a symmetric logarithmic scale with midpoint 0, small entries remain visible.
        color_map = "PuOr_r"
        scale = colors.SymLogNorm(_LINEAR_PART * largest, vmin=-largest, vmax=largest)
    # C and C^-1 are lower triangular, so nothing is drawn above the diagonal.
    shown = np.ma.masked_where(np.triu(np.ones_like(block), 1) > 0, block)
    last = size - 0.5
    image = axes.imshow(
        shown,
        cmap=color_map,
        norm=scale,
        interpolation="nearest",
        extent=(-0.5, last, last, -0.5),
    )
    axes.set_facecolor("0.93")
    axes.set_xlabel("column (step)")
    axes.set_ylabel("row (step)")
    part = f", first {size} steps" if size < strategy.num_steps else ""
    axes.set_title(f"{name}{part}")
    axes.figure.colorbar(image, ax=axes, label=f"entry of {name}", shrink=0.85)
    return axes


def plan_overview(name: str, plans: dict[str, Plan], figure: Any) -> Any:
    """Plots a plan: its matrices, the model's noise, and epsilon for several deltas.

    Args:
      name: name of the plan to show.
      plans: a dictionary from the names of plans to the plans. The two panels about the
        model's noise show all of these plans.
      figure: matplotlib figure or subfigure to draw on.

    Returns:
      The axes, shape [2, 3]. The last axes contain a list of the plan's parameters.
    """
    plan = plans[name]
    grid = figure.subplots(2, 3)
    strategy_matrix(plan.strategy, axes=grid[0, 0])
    noising_matrix(plan.strategy, axes=grid[0, 1])
    epsilon_of_delta({name: plan}, axes=grid[0, 2])
    per_step_error(plans, axes=grid[1, 0])
    accumulated_noise(plans, axes=grid[1, 1])
    last = grid[1, 2]
    last.set_axis_off()
    rows = (
        ("mechanism", name),
        ("steps", plan.num_steps),
        ("ε, δ", fill("{0.epsilon:.4g up}, {0.delta:.3g up} ({0.kind})", plan)),
        ("noise", f"{plan.unit_noise_stddev:.4g} clip norms"),
        ("RMSE", f"{plan.rmse():.4g}"),
        ("memory vectors", plan.strategy.memory_vectors),
        ("fingerprint", plan.fingerprint[:12]),
    )
    text = "\n".join(f"{key}: {value}" for key, value in rows)
    last.text(0.0, 0.95, text, va="top", linespacing=1.6, transform=last.transAxes)
    return grid


def _axes_to_draw_on(axes: Any | None) -> Any:
    """Sets the line colors and dash patterns of axes, and returns the axes.

    If `axes` is None, the axes belong to a new figure.

    Raises:
      ImportError: if matplotlib is not installed.
    """
    if axes is None:
        try:
            import matplotlib.pyplot
        except ImportError as error:
            raise ImportError(
                'Plots need matplotlib: pip install "tf-bandmf[plot]".'
            ) from error
        axes = matplotlib.pyplot.subplots(layout="constrained")[1]
    axes.set_prop_cycle(color=COLORS, linestyle=DASHES)
    return axes


def _finish_lines(axes: Any, x_label: str, y_label: str) -> Any:
    """Adds axis labels, a light grid and, if there are several lines, a legend."""
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(alpha=0.25, linewidth=0.6)
    if len(axes.get_legend_handles_labels()[1]) > 1:
        # The background of the legend is nearly opaque, so lines do not obscure its
        # labels.
        axes.legend(edgecolor="none", framealpha=0.85)
    return axes
