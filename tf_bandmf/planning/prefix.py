"""The first steps of a planned run."""

from __future__ import annotations

from tf_bandmf import matrices
from tf_bandmf.accounting.base import Simulation
from tf_bandmf.accounting.checks import check_delta
from tf_bandmf.planning.planned_run import PlannedRun


def epsilon_after(plan: PlannedRun, steps: int, delta: float | None = None) -> float:
    """Epsilon of a run of a plan that has only its first steps.

    They release the leading block of `C` times what the examples add, with the same noise.
    What they release is a part of what the whole run does: epsilon is at most that of the
    plan, also where the bound for the block is larger. Private evaluations count in full.

    Args:
      plan: of the run.
      steps: in [0, plan.num_steps].
      delta: by default the plan's.

    Raises:
      ValueError: if the plan has fewer than `steps` steps, or delta is not in (0, 1).
    """
    is_own = delta is None or delta == plan.delta
    delta = plan.delta if delta is None else delta
    check_delta(delta)
    if isinstance(steps, bool) or not 0 <= steps <= plan.num_steps:
        raise ValueError(f"steps must be in [0, {plan.num_steps}], found {steps!r}.")
    if steps == 0:
        return 0.0
    whole = plan.epsilon if is_own else plan.guarantee_at(delta).epsilon
    if plan.participation.is_simulated:
        # Whole epochs, which is what is simulated: more steps spend more.
        epoch = plan.participation.separation()
        steps = min(-(-steps // epoch) * epoch, plan.num_steps)
    if steps == plan.num_steps:
        return whole
    block = matrices.leading_block(plan.strategy.matrix, int(steps))
    accountant = plan.participation.accountant(block, Simulation(plan.confidence))
    accountant = plan.measurements.with_evaluations(accountant, plan.delta)
    try:
        found = accountant.guarantee(plan.unit_noise_stddev, delta)
    except ValueError as error:
        if "epsilon = 0" not in str(error):
            raise
        return 0.0
    return min(found.epsilon, whole)
