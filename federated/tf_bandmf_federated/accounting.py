"""Accounting after a run: the privacy guarantee for the measured participation.

    measured = measure_participation({round: names of the clients})
    guarantee = measured_guarantee(plan, measured)

The record of a run determines b, the minimum separation over all devices, and k, the
maximum number of participations of one device. The measured guarantee is the guarantee
of the plan's strategy and noise under MinSep(b, k). arXiv:2306.08153 (section 6, App.
K.1) reports such a guarantee for a production run. If the measured b is below the
number of bands, the sensitivity comes from Theorem 3 (Alg. 4) of arXiv:2306.08153 or
from a sharper bound; see `tf_bandmf.analysis.sensitivity`.

Scope of the measured guarantee:

- Neighboring data sets differ in the content of one device's updates, but not in the
  rounds in which the device took part.
- Therefore neighboring data sets have the same b and k. However, b and k are computed
  without noise from the participations of all devices, so the guarantee does not cover
  their publication. The plan's own guarantee does not depend on the measured b and k.
  It holds for the plan's limits, which the devices enforce.
- The record must contain every contribution that entered a sum. A record with
  additional entries, such as those of devices that dropped out, yields a larger
  epsilon, which is also valid.
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
    """A summary of the participations that the record of a run contains.

    Attributes:
      num_rounds: number of completed rounds, including rounds without clients.
      num_clients: number of distinct clients that took part.
      min_separation: minimum of j - i over all pairs of rounds i < j in which the same
        client took part; None if no client took part twice.
      max_participations: maximum number of participations of one client; 0 if no client
        took part.
      num_participations: total number of participations over all clients and rounds.
      skipped_rounds: the rounds, numbered from 0, that have no result although clients
        took part. The counts above include these rounds.
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
                f"skipped_rounds must be rounds in [0, {self.num_rounds}), but found "
                f"{self.skipped_rounds}."
            )
        b, k = self.min_separation, self.max_participations
        if (b is None) != (k <= 1):
            raise ValueError(
                f"min_separation must be None if max_participations <= 1, and an "
                f"integer otherwise, but found {b} for max_participations = {k}."
            )
        if b is not None and not 1 <= (k - 1) * b < self.num_rounds:
            raise ValueError(
                f"For {self.num_rounds} rounds and {k} participations, min_separation "
                f"must be from 1 to ({self.num_rounds} - 1) / ({k} - 1), but found {b}."
            )

    def with_one(
        self, round_number: int, last: int, count: int
    ) -> MeasuredParticipation:
        """Returns the measurement, updated with one more participation of a client.

        Args:
          round_number: round of the participation, from 0.
          last: round of the client's previous participation; ignored if `count` is 0.
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


# This is the measured participation of a run that has not begun its first round.
NOTHING = MeasuredParticipation(0, 0, None, 0, 0)


@dataclasses.dataclass(frozen=True)
class MeasuredGuarantee:
    """A run's guarantee for its measured participation, and the plan's guarantee.

    Attributes:
      plan: the run's plan.
      measured: summary of the participations in the run's record.
      participation: `MinSep` with the measured minimum separation and maximum number
        of participations.
      sensitivity: sensitivity of the plan's strategy under `participation`, exact or an
        upper bound.
      guarantee: (epsilon, delta) and zCDP rho of the run, with the plan's noise. Its
        kind is "exact" if the sensitivity is exact and all rounds of the plan were run,
        else "bound".
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
        """The noise stddev for clip norm 1, divided by the measured sensitivity."""
        plan = self.plan
        return plan.unit_noise_stddev / self.sensitivity.value

    @property
    def is_within_plan(self) -> bool:
        """True if the measured participation is within the limits of the plan.

        If False, the plan's guarantee does not hold; only the measured guarantee does.
        """
        plan, n = self.plan.participation, self.plan.num_steps
        b, k = self.measured.min_separation, self.measured.max_participations
        separated = b is None or b >= plan.separation()
        return separated and k <= plan.participations(n)


def measure_participation(
    record: Mapping[int, Iterable[Hashable]], num_rounds: int | None = None
) -> MeasuredParticipation:
    """Computes the minimum separation and the participation counts from a record.

    Args:
      record: maps each round, from 0, to the names of the clients whose contributions
        entered the sum. Rounds without clients may be missing.
      num_rounds: number of rounds that were run; by default, 1 plus the last round in
        the record.

    Raises:
      ValueError: if a round is not in [0, `num_rounds`), or if a client occurs twice in
        one round. No plan permits two contributions of a client in one round.
    """
    cohorts = {round_number: [*names] for round_number, names in record.items()}
    last_of_record = max(cohorts, default=-1)
    if num_rounds is None:
        num_rounds = last_of_record + 1
    if cohorts and not (min(cohorts) >= 0 and last_of_record < num_rounds):
        raise ValueError(
            f"Round numbers in record must be in [0, {num_rounds}), but found numbers "
            f"from {min(cohorts)} to {last_of_record}."
        )
    records: dict[Hashable, tuple[int, int]] = {}
    measured = NOTHING
    for round_number in sorted(cohorts):
        for client in cohorts[round_number]:
            last, count = records.get(client, (NEVER, 0))
            if last == round_number:
                raise ValueError(
                    f"The argument record lists client {client!r} twice in round "
                    f"{round_number}. A client may contribute at most once per round."
                )
            measured = measured.with_one(round_number, last, count)
            records[client] = (round_number, count + 1)
    return dataclasses.replace(measured, num_rounds=num_rounds)


def measured_guarantee(
    plan: Plan, measured: MeasuredParticipation, delta: float | None = None
) -> MeasuredGuarantee:
    """Returns the privacy guarantee that follows from a run's actual participation.

    Args:
      plan: the plan of the run. The run may have violated the plan's participation.
      measured: the measured participation of the run.
      delta: delta of the guarantee; by default the plan's delta.

    Raises:
      TypeError, ValueError: if the plan is not for federated learning; if more rounds
        were run than the plan has; if no client took part; or if delta is so large, or
        the noise is so small, that there is no meaningful epsilon > 0.
    """
    check_plan(plan, whole_number("num_rounds", measured.num_rounds))
    if measured.max_participations == 0:
        raise ValueError("measured has no participations. Run a round with clients.")
    delta = plan.delta if delta is None else delta
    n = plan.num_steps
    # If no client took part twice, even the maximum separation n is satisfied.
    separation = n if measured.min_separation is None else measured.min_separation
    participation = MinSep(separation, measured.max_participations)
    sensitivity = plan.strategy.sensitivity(participation)
    accountant = participation.accountant(plan.strategy.matrix)
    guarantee = accountant.guarantee(plan.unit_noise_stddev, delta)
    if not sensitivity.is_exact or measured.num_rounds < n:
        guarantee = dataclasses.replace(guarantee, kind="bound")
    planned = plan.guarantee_at(delta)
    # The constructor of a plan computes the sensitivity.
    assert plan.sensitivity is not None
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
