"""Plots of comparisons and of error curves; needs matplotlib.

Every function takes an optional matplotlib axes and returns the axes it drew on, so that
figures can be put together and saved by the caller.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tf_bandmf.planning.comparison import Comparison
from tf_bandmf.strategies import Strategy
from tf_bandmf.workloads import Workload


def comparison(table: Comparison, axes: Any | None = None) -> Any:
    """RMSE and MaxSE of each mechanism as horizontal bars, best first."""
    axes = _axes(axes)
    rows = sorted(table, key=lambda row: row.rmse, reverse=True)
    positions = np.arange(len(rows))
    axes.barh(positions + 0.2, [row.rmse for row in rows], 0.38, label="RMSE")
    axes.barh(positions - 0.2, [row.max_se for row in rows], 0.38, label="MaxSE")
    axes.set_yticks(positions, [row.mechanism for row in rows])
    axes.set_xlabel("error")
    axes.legend()
    return axes


def error_curves(
    x: Sequence[float],
    curves: Mapping[str, Sequence[float]],
    x_label: str,
    axes: Any | None = None,
) -> Any:
    """One line for each entry of `curves` over a logarithmic axis; NaN leaves a gap."""
    axes = _axes(axes)
    for name, values in curves.items():
        axes.plot(x, values, marker="o", markersize=3, label=name)
    axes.set_xscale("log", base=2)
    axes.set_xlabel(x_label)
    axes.set_ylabel("RMSE")
    axes.legend()
    return axes


def per_step_error(
    strategies: Mapping[str, Strategy],
    workload: Workload,
    noise_stddevs: Mapping[str, float],
    axes: Any | None = None,
) -> Any:
    """The noise's standard deviation in the model after each step.

    Args:
      strategies: by name.
      workload: A.
      noise_stddevs: on raw C, by the same names.
      axes: where to draw.
    """
    axes = _axes(axes)
    for name, strategy in strategies.items():
        per_step = strategy.per_step_squared_error(workload)
        axes.plot(noise_stddevs[name] * np.sqrt(per_step), label=name)
    axes.set_xlabel("step")
    axes.set_ylabel("error")
    axes.legend()
    return axes


def _axes(axes: Any | None) -> Any:
    if axes is not None:
        return axes
    try:
        import matplotlib.pyplot
    except ImportError as error:
        raise ImportError("Plots need matplotlib: install it.") from error
    return matplotlib.pyplot.subplots()[1]
