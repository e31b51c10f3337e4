"""Makes the operator's log lines: one per round, with counts and the epsilon so far.

The counts are exact, so the guarantee does not cover them. Do not publish these lines.
"""

from __future__ import annotations

from collections.abc import Mapping

from tf_bandmf import Plan
from tf_bandmf.accounting.guarantee import fill
from tf_bandmf_federated.accounting import MeasuredParticipation, measured_guarantee


def line_of(
    plan: Plan,
    round_number: int,
    metrics: Mapping[str, int],
    measured: MeasuredParticipation,
) -> str:
    """Returns the operator's log line for a completed round.

    Args:
      plan: the run's plan.
      round_number: the round, from 0.
      metrics: the round's metrics from `FederatedAveraging`.
      measured: the measured participation up to and including this round.
    """
    epsilon = 0.0
    if measured.max_participations > 0:
        epsilon = measured_guarantee(plan, measured).guarantee.epsilon
    counts = dict(metrics)
    if counts.pop("skipped", 0):
        what = "skipped: no result, but its devices' participations are counted"
    else:
        what = "done: " + ", ".join(f"{name} {int(n)}" for name, n in counts.items())
    return (
        f"round {round_number} of {plan.num_steps} {what}; "
        + fill("epsilon <= {:.3f up} so far, ", epsilon)
        + fill("{0.epsilon:.3f up} planned, delta = {0.delta:.6g up}", plan)
    )
