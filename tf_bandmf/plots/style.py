"""What all pictures share: axes, colors and dashes."""

from __future__ import annotations

from typing import Any

# Okabe and Ito (2008), in an order in which neighbors differ most; without yellow, which
# is pale on white.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#E69F00")
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 3)))


def axes_to_draw_on(axes: Any | None) -> Any:
    """The axes that were given, or new ones, with the lines' colors and dashes.

    Raises:
      ImportError: if matplotlib is not installed.
    """
    if axes is None:
        try:
            import matplotlib.pyplot
        except ImportError as error:
            raise ImportError(
                'Pictures need matplotlib: pip install "tf-bandmf[plot]".'
            ) from error
        axes = matplotlib.pyplot.subplots(layout="constrained")[1]
    axes.set_prop_cycle(color=COLORS, linestyle=DASHES)
    return axes


def finish_lines(axes: Any, x_label: str, y_label: str) -> Any:
    """Labels, a light grid, and a legend where there are several lines."""
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(alpha=0.25, linewidth=0.6)
    if len(axes.get_legend_handles_labels()[1]) > 1:
        # A frame without an edge: what lies below stays off the words.
        axes.legend(edgecolor="none", framealpha=0.85)
    return axes
