"""What was spent of a privacy budget over time."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tf_bandmf.plots.style import COLORS, axes_to_draw_on, finish_lines

if TYPE_CHECKING:
    from tf_bandmf.ledger.budgets import Budget
    from tf_bandmf.ledger.views import Moment


def budget_spending(
    moments: Sequence[Moment], budget: Budget, axes: Any | None = None
) -> Any:
    """Steps of what was spent, below the line of the budget.

    Args:
      moments: of `tf_bandmf.ledger.views.spending`.
      budget: from which they spent.
      axes: where to draw; by default on a new figure.

    Raises:
      ImportError: if matplotlib is not installed.
    """
    axes = axes_to_draw_on(axes)
    at = [_time(moment.at) for moment in moments]
    spent = [moment.spent for moment in moments]
    begins = _time(budget.begins) if budget.begins else at[0]
    ends = _time(budget.ends) if budget.ends else None
    axes.step([begins, *at], [0.0, *spent], where="post", label="spent or reserved")
    axes.plot(at, spent, "o", color=COLORS[0], markersize=3)
    whole = budget.epsilon if budget.rho is None else budget.rho
    axes.axhline(whole, color=COLORS[1], linestyle="--", label="budget")
    axes.set_ylim(0.0, 1.15 * max([float(whole or 0.0), *spent]))
    if ends is not None:
        axes.set_xlim(begins, ends)
    axes.tick_params(axis="x", rotation=30)
    unit = "rho of zCDP" if budget.rho is not None else f"ε at δ = {budget.delta:g}"
    return finish_lines(axes, budget.period, unit)


def _time(text: str) -> datetime.datetime:
    found = datetime.datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ")
    return found.replace(tzinfo=datetime.timezone.utc)
