"""One page on a plan, as `tf-bandmf plan --plot` saves it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tf_bandmf.plots.errors import accumulated_noise, per_step_error
from tf_bandmf.plots.heat_maps import noising_matrix, strategy_matrix
from tf_bandmf.plots.outcomes import epsilon_of_delta

if TYPE_CHECKING:
    from tf_bandmf.planning.plan import Plan


def plan_overview(name: str, plans: dict[str, Plan], figure: Any) -> Any:
    """C and C^-1, per-step error, accumulated noise and epsilon(delta) of a plan.

    Args:
      name: of the plan to show.
      plans: by name; the others are drawn into the panels of errors.
      figure: a matplotlib figure or subfigure, drawn on.

    Returns:
      The axes, shape [2, 3]; the last one has no picture and names the plan.
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
        ("ε, δ", f"{plan.epsilon:.4g}, {plan.delta:.3g} ({plan.kind})"),
        ("noise multiplier", f"{plan.noise_multiplier:.4g}"),
        ("RMSE", f"{plan.rmse():.4g}"),
        ("memory vectors", plan.strategy.memory_vectors),
        ("fingerprint", plan.fingerprint[:12]),
    )
    text = "\n".join(f"{key}: {value}" for key, value in rows)
    last.text(0.0, 0.95, text, va="top", linespacing=1.6, transform=last.transAxes)
    return grid
