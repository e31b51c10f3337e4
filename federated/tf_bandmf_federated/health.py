"""Log lines for the operator, one per round, with device counts and the epsilon so far.

The counts are exact, and the guarantee does not cover them: do not publish these lines.
"""

from __future__ import annotations

from collections.abc import Mapping

from tf_bandmf import Plan
from tf_bandmf_federated.accounting import MeasuredParticipation, measured_guarantee


class Health:
    """Makes the log lines of a run, one per round.

    Args:
      plan: the run's plan.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._epsilons: dict[tuple[int | None, int], float] = {}

    def epsilon(self, measured: MeasuredParticipation) -> float:
        """Returns an upper bound on epsilon for the rounds so far, at the plan's delta."""
        if measured.max_participations == 0:
            return 0.0
        worst = (measured.min_separation, measured.max_participations)
        if worst not in self._epsilons:
            measured_now = measured_guarantee(self._plan, measured)
            self._epsilons[worst] = measured_now.guarantee.epsilon
        return self._epsilons[worst]

    def line(
        self,
        round_number: int,
        metrics: Mapping[str, int],
        measured: MeasuredParticipation,
    ) -> str:
        """Returns the line for a completed round.

        Args:
          round_number: the round, from 0.
          metrics: the round's metrics, from `FederatedAveraging`.
          measured: the participations up to this round.
        """
        counts = dict(metrics)
        if counts.pop("skipped", 0):
            what = "skipped: no result, but its devices' participations are counted"
        else:
            what = "done: " + ", ".join(
                f"{name} {int(n)}" for name, n in counts.items()
            )
        return (
            f"round {round_number} of {self._plan.num_steps} {what}; "
            f"epsilon <= {self.epsilon(measured):.3f} so far, "
            f"{self._plan.epsilon:.3f} planned, delta = {self._plan.delta:g}"
        )
