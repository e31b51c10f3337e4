"""The strategy C and the noising matrix C^-1 as heat maps."""

from __future__ import annotations

from typing import Any

import numpy as np

from tf_bandmf.plots.style import axes_to_draw_on
from tf_bandmf.strategies import Strategy

_ROWS = 64
# Entries that are smaller than this part of the largest look like 0.
_LINEAR_PART = 0.01


def strategy_matrix(
    strategy: Strategy, rows: int = _ROWS, axes: Any | None = None
) -> Any:
    """The first `rows` steps of C.

    Args:
      strategy: of n steps.
      rows: the most rows and columns drawn.
      axes: where to draw; by default on a new figure.

    Returns:
      The axes. Column j is what step j adds to the released sequence.

    Raises:
      ImportError: if matplotlib is not installed.
      ValueError: if rows is not positive.
    """
    unit = _unit_columns(strategy, rows)
    return _heat_map(strategy.matrix.matmul(unit), "C", axes)


def noising_matrix(
    strategy: Strategy, rows: int = _ROWS, axes: Any | None = None
) -> Any:
    """The first `rows` steps of C^-1: row i is the noise of step i, made of Z.

    Args:
      strategy: of n steps.
      rows: the most rows and columns drawn.
      axes: where to draw; by default on a new figure.

    Returns:
      The axes. Negative entries cancel earlier noise.

    Raises:
      ImportError: if matplotlib is not installed.
      ValueError: if rows is not positive.
    """
    unit = _unit_columns(strategy, rows)
    return _heat_map(strategy.matrix.solve(unit), "C⁻¹", axes)


def _unit_columns(strategy: Strategy, rows: int) -> np.ndarray:
    if rows < 1:
        raise ValueError(f"rows must be >= 1, found {rows}.")
    return np.eye(strategy.num_steps, min(rows, strategy.num_steps))


def _heat_map(columns: np.ndarray, name: str, axes: Any | None) -> Any:
    axes = axes_to_draw_on(axes)
    from matplotlib import colors

    block = columns[: columns.shape[1]]
    largest = float(np.abs(block).max())
    if name == "C" and block.min() >= 0.0:
        color_map, scale = "cividis", colors.Normalize(0.0, largest)
    else:
        # Small entries count, for they are many; 0 is in the middle.
        color_map = "PuOr_r"
        scale = colors.SymLogNorm(_LINEAR_PART * largest, vmin=-largest, vmax=largest)
    # What is above the diagonal is no entry at all.
    shown = np.ma.masked_where(np.triu(np.ones_like(block), 1) > 0, block)
    last = len(block) - 0.5
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
    part = "" if len(block) == len(columns) else f", first {len(block)} steps"
    axes.set_title(f"{name}{part}")
    axes.figure.colorbar(image, ax=axes, label=f"entry of {name}", shrink=0.85)
    return axes
