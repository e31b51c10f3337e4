"""Epsilon of one run at many deltas, for tables and pictures."""

from __future__ import annotations

from collections.abc import Sequence

from tf_bandmf.planning.plan import Plan

_DELTAS = tuple(10.0**-i for i in range(3, 11))


def privacy_curve(
    plan: Plan, deltas: Sequence[float] = _DELTAS
) -> list[tuple[float, float]]:
    """(delta, epsilon) of the plan's noise, the plan's own pair among them.

    Args:
      plan: of the run.
      deltas: in (0, 1), in any order.

    Returns:
      From the largest delta to the smallest, without those that say nothing: epsilon
      would be 0, or the accountant cannot tell.
    """
    curve = []
    for delta in sorted({*deltas, plan.delta}, reverse=True):
        if delta == plan.delta:
            curve.append((delta, plan.epsilon))
            continue
        try:
            curve.append((delta, plan.guarantee_at(delta).epsilon))
        except (ValueError, ArithmeticError):
            continue
    return curve
