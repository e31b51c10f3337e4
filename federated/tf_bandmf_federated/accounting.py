"""Accounting for what happened: the guarantee of the participations that were measured.

    measured = measure_participation({round: names of who took part})
    guarantee = measured_guarantee(plan, measured)

After a run, the smallest separation b and the most participations k that were recorded of
any device give the guarantee of the plan's strategy and noise under MinSep(b, k), as
arXiv:2306.08153 reports its production run (section 6, App. K.1). This works also if the
measured b is below the number of bands: then the columns of one device's participations
overlap, and the sensitivity is that of Theorem 3 (Alg. 4) or a sharper one; see
`tf_bandmf.analysis.sensitivity`.

What the measured guarantee covers:

- Neighboring data differ in what one device sent, not in when it took part (the papers'
  adjacency: "the participation pattern does not change").
- b and k are then the same for neighbors, but they are exact functions of when all devices
  took part. Publishing b and k is not covered. A plan's guarantee, enforced on the devices,
  does not depend on the measured b and k.
- The record must contain every contribution that entered a sum. A record with more
  entries, such as devices that dropped out, gives a larger epsilon, which is valid, too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable, Mapping

from tf_bandmf import MinSep, Plan
from tf_bandmf.accounting.checks import whole_number
from tf_bandmf.accounting.guarantee import Guarantee
from tf_bandmf.analysis.sensitivity import Sensitivity
from tf_bandmf_federated.eligibility import NEVER
from tf_bandmf_federated.plan_checks import check_plan


@dataclasses.dataclass(frozen=True)
class MeasuredParticipation:
    """Participations of a run, measured from its record.

    Attributes:
      num_rounds: number of rounds that were run, from round 0, with or without clients.
      num_clients: number of different clients that took part.
      min_separation: smallest j - i of two rounds i < j in which one client took part;
        None if nobody took part twice.
      max_participations: participations of the client that took part most often; 0 if
        nobody took part.
      num_participations: number of participations of all clients in all rounds.
      skipped_rounds: rounds without a released result, although clients took part; the
        numbers above include these rounds.
    """

    num_rounds: int
    num_clients: int
    min_separation: int | None
    max_participations: int
    num_participations: int
    skipped_rounds: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not all(0 <= t < self.num_rounds for t in self.skipped_rounds):
            raise ValueError(
                f"skipped_rounds must be in [0, {self.num_rounds}), found "
                f"{self.skipped_rounds}."
            )
        b, k = self.min_separation, self.max_participations
        if (b is None) != (k <= 1):
            raise ValueError(
                f"min_separation is None exactly if nobody took part twice, found "
                f"min_separation = {b} and max_participations = {k}."
            )
        if b is not None and not 1 <= (k - 1) * b < self.num_rounds:
            raise ValueError(
                f"{k} participations that are {b} >= 1 rounds apart do not fit into "
                f"{self.num_rounds} rounds."
            )

    def with_one(
        self, round_number: int, last: int, count: int
    ) -> MeasuredParticipation:
        """These numbers after one more participation of a client.

        Args:
          round_number: round of the participation, from 0.
          last: round of the client's previous participation.
          count: number of the client's earlier participations.
        """
        gaps = [round_number - last] if count else []
        if self.min_separation is not None:
            gaps.append(self.min_separation)
        return dataclasses.replace(
            self,
            num_rounds=max(self.num_rounds, round_number + 1),
            num_clients=self.num_clients + (count == 0),
            min_separation=min(gaps, default=None),
            max_participations=max(self.max_participations, count + 1),
            num_participations=self.num_participations + 1,
        )


NOTHING = MeasuredParticipation(0, 0, None, 0, 0)  # before any round


@dataclasses.dataclass(frozen=True)
class MeasuredGuarantee:
    """The guarantee of a run as measured, and the plan's.

    Attributes:
      plan: the run's plan.
      measured: the measured b and k, and the size of the record.
      participation: MinSep with the measured b and k, for which `guarantee` is computed.
      sensitivity: sensitivity of the plan's strategy under `participation`; exact, or
        typed as a bound.
      guarantee: (epsilon, delta) and rho of zCDP with the plan's noise. Its kind is
        "exact" for the mechanism under `participation` in all rounds of the plan;
        "bound" if the sensitivity is a bound, or fewer rounds were run.
      planned: the plan's guarantee at the same delta.
    """

    plan: Plan
    measured: MeasuredParticipation
    participation: MinSep
    sensitivity: Sensitivity
    guarantee: Guarantee
    planned: Guarantee

    @property
    def noise_multiplier(self) -> float:
        """Standard deviation of the noise per unit of the measured sensitivity."""
        plan = self.plan
        return plan.unit_noise_stddev / self.sensitivity.value

    @property
    def is_within_plan(self) -> bool:
        """Returns whether the record keeps the plan's participation.

        If not, the plan's guarantee does not hold for the record, but the measured one
        does.
        """
        plan, n = self.plan.participation, self.plan.num_steps
        b, k = self.measured.min_separation, self.measured.max_participations
        separated = b is None or b >= plan.separation()
        return separated and k <= plan.participations(n)


def measure_participation(
    record: Mapping[int, Iterable[Hashable]], num_rounds: int | None = None
) -> MeasuredParticipation:
    """The separation and the participations of a record.

    Args:
      record: for each round, from 0, the names of the clients whose contribution entered
        the sum. Rounds without clients may be missing.
      num_rounds: number of rounds that were run; by default up to the record's last one.

    Raises:
      ValueError: if a round is negative or past `num_rounds`, or if a client occurs twice
        in one round: it then contributed twice what a plan accounts for.
    """
    cohorts = {round_number: [*names] for round_number, names in record.items()}
    last_of_record = max(cohorts, default=-1)
    if num_rounds is None:
        num_rounds = last_of_record + 1
    if cohorts and not (min(cohorts) >= 0 and last_of_record < num_rounds):
        raise ValueError(
            f"The record has the rounds {min(cohorts)} to {last_of_record}, which must "
            f"be in [0, {num_rounds})."
        )
    records: dict[Hashable, tuple[int, int]] = {}
    measured = NOTHING
    for round_number in sorted(cohorts):
        for client in cohorts[round_number]:
            last, count = records.get(client, (NEVER, 0))
            if last == round_number:
                raise ValueError(
                    f"Client {client!r} is twice in round {round_number}: its "
                    f"contribution was twice what can be accounted for."
                )
            measured = measured.with_one(round_number, last, count)
            records[client] = (round_number, count + 1)
    return dataclasses.replace(measured, num_rounds=num_rounds)


def measured_guarantee(
    plan: Plan, measured: MeasuredParticipation, delta: float | None = None
) -> MeasuredGuarantee:
    """The guarantee of a plan's strategy and noise for the actual participation.

    Args:
      plan: the plan that the run followed, except perhaps in its participation.
      measured: the measured participation of the run.
      delta: by default the plan's.

    Raises:
      TypeError, ValueError: if the plan is not for federated learning; if more rounds
        were run than it has; if nobody took part, which needs no guarantee; if delta is
        so large, or the noise so small, that epsilon is not a positive number.
    """
    check_plan(plan, whole_number("num_rounds", measured.num_rounds))
    if measured.max_participations == 0:
        raise ValueError(
            "The record has no participation: there is nothing to protect."
        )
    delta = plan.delta if delta is None else delta
    n = plan.num_steps
    # If no client took part twice, there is no separation: the largest one, n, is valid.
    separation = n if measured.min_separation is None else measured.min_separation
    participation = MinSep(separation, measured.max_participations)
    sensitivity = plan.strategy.sensitivity(participation)
    accountant = participation.accountant(plan.strategy.matrix)
    guarantee = accountant.guarantee(plan.unit_noise_stddev, delta)
    if not sensitivity.is_exact or measured.num_rounds < n:
        guarantee = dataclasses.replace(guarantee, kind="bound")
    planned = plan.guarantee_at(delta)
    assert plan.sensitivity is not None  # a plan computes it
    if not plan.sensitivity.is_exact:
        planned = dataclasses.replace(planned, kind="bound")
    return MeasuredGuarantee(
        plan=plan,
        measured=measured,
        participation=participation,
        sensitivity=sensitivity,
        guarantee=guarantee,
        planned=planned,
    )
