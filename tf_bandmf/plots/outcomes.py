"""What runs give: epsilon(delta), training curves, and who wins where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tf_bandmf.plots.style import axes_to_draw_on, finish_lines

if TYPE_CHECKING:
    from tf_bandmf.planning.plan import Plan


def epsilon_of_delta(
    plans: Mapping[str, Plan],
    deltas: Sequence[float] | None = None,
    axes: Any | None = None,
) -> Any:
    """The pairs (epsilon, delta) that hold for one run of each plan.

    Args:
      plans: by name; a point marks the pair that each plan was made for.
      deltas: in (0, 1); by default from 1e-3 to 1e-10.
      axes: where to draw; by default on a new figure.

    Raises:
      ImportError: if matplotlib is not installed.
    """
    axes = axes_to_draw_on(axes)
    for name, plan in plans.items():
        wanted = None if deltas is None else sorted({*deltas, plan.delta}, reverse=True)
        curve = [(one.delta, one.epsilon) for one in plan.epsilon_curve(wanted)]
        (line,) = axes.plot(*zip(*curve), label=name)
        axes.plot(
            [plan.delta],
            [plan.epsilon],
            marker="o",
            linestyle="none",
            color=line.get_color(),
        )
        axes.annotate(
            f"({plan.epsilon:.4g}, {plan.delta:.3g})",
            (plan.delta, plan.epsilon),
            xytext=(6, 6),
            textcoords="offset points",
            fontsize="small",
        )
    axes.set_xscale("log")
    axes.set_ylim(bottom=0.0)
    return finish_lines(axes, "δ", "ε")


def training_curves(
    runs: Mapping[str, Sequence[Sequence[float]]],
    quantity: str = "test accuracy",
    axes: Any | None = None,
) -> Any:
    """A quantity after each epoch: mean over runs, in a band of +- 1 standard error.

    Args:
      runs: by name; for each run one value per epoch, such as
        `history.history["val_accuracy"]`. All runs of a name have the same number of
        epochs.
      quantity: label of the axis. Values of the training data are not covered by the
        guarantee: do not publish them.
      axes: where to draw; by default on a new figure.

    Raises:
      ImportError: if matplotlib is not installed.
      ValueError: if the runs of a name differ in length.
    """
    axes = axes_to_draw_on(axes)
    for name, values in runs.items():
        if len({len(run) for run in values}) != 1:
            raise ValueError(
                f"The runs of {name} must have the same number of epochs, found "
                f"{[len(run) for run in values]}."
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
    counts = {len(values) for values in runs.values()}
    if max(counts, default=1) > 1:
        number = f"{counts.pop()} runs" if len(counts) == 1 else "the runs"
        axes.set_title(
            f"mean of {number}; shaded: ± 1 standard error", fontsize="medium"
        )
    axes.xaxis.get_major_locator().set_params(integer=True)
    return finish_lines(axes, "epoch", quantity)
