"""Checks plans for federated learning, and arguments that must fit the plan."""

from __future__ import annotations

import dataclasses

from tf_bandmf import MinSep, Plan
from tf_bandmf.accounting.checks import check_positive
from tf_bandmf.planning.statement import PrivacyStatement


def check_plan(plan: Plan, num_rounds: int | None = None) -> MinSep:
    """Returns a plan's participation, after checking that devices can enforce it.

    Only `MinSep` fits devices that take part when they are available. Their separation
    and number of participations can be enforced. However, they are not a random sample,
    so there is no privacy amplification by sampling.

    Args:
      plan: plan whose steps are rounds and whose examples are clients. Its guarantee is
        therefore user-level.
      num_rounds: number of rounds to run; None to skip this check.

    Raises:
      TypeError: if `plan` is not a plan.
      ValueError: if the participation is not `MinSep`; if the plan reserves budget for
        private counts or evaluations; or if it has fewer than `num_rounds` steps.
    """
    if not isinstance(plan, Plan):
        raise TypeError(f"plan must be a tf_bandmf.Plan, found {type(plan).__name__}.")
    participation = plan.participation
    if not isinstance(participation, MinSep):
        raise ValueError(
            f"A federated plan must have sampling=MinSep(min_separation=..., "
            f"max_participations=...), but found {type(participation).__name__}(...). "
            f"Devices take part when they are available, so no other sampling can be "
            f"enforced. Make a plan with MinSep."
        )
    if plan.measurements.counts or plan.measurements.evaluations:
        raise ValueError(
            "A federated run has no private counts or evaluations, but the plan reserves "
            "budget for them. Make the plan without plan.reserve(...)."
        )
    if num_rounds is not None and not 1 <= num_rounds <= plan.num_steps:
        raise ValueError(
            f"num_rounds must be in [1, {plan.num_steps}], but found {num_rounds}. The "
            f"plan has {plan.num_steps} rounds. More rounds need a new plan."
        )
    return participation


def statement_of(plan: Plan) -> PrivacyStatement:
    """Returns the plan's privacy statement, worded for devices instead of examples."""
    statement = plan.statement(unit="one device: all that it contributes in all rounds")
    return dataclasses.replace(
        statement,
        output="all noisy sums of the devices' clipped updates",
        participation=statement.participation.replace("example", "device"),
    )


def check_horizon(plan: Plan, round_number: int) -> None:
    """Raises ValueError if a round is past the plan's last round."""
    if not 0 <= round_number < plan.num_steps:
        raise ValueError(
            f"The plan has {plan.num_steps} rounds, numbered from 0, so it has no round "
            f"{round_number}. The privacy budget is spent. More rounds need a new plan."
        )


def clients_per_round_of(plan: Plan, clients_per_round: float | None) -> float:
    """Returns the expected number of clients in a round, by which sums are divided.

    Raises:
      ValueError: if neither the plan nor the argument gives the number, if they give
        different numbers, or if the number is not finite and positive.
    """
    stated = plan.expected_batch_size
    if clients_per_round is None:
        clients_per_round = stated
    if clients_per_round is None:
        raise ValueError(
            "clients_per_round is missing. Set it to the expected number of clients in a "
            "round. The noisy sum is divided by this number."
        )
    check_positive("clients_per_round", clients_per_round)
    value = float(clients_per_round)
    if stated is not None and value != float(stated):
        raise ValueError(
            f"clients_per_round must equal the plan's batch size ({stated:g}), but found "
            f"{value:g}. Omit clients_per_round, or make a plan with batch size {value:g}."
        )
    return value


def cohort_size(plan: Plan, clients_per_round: float | None) -> int:
    """Returns the number of devices to select for a round.

    Raises:
      ValueError: as in `clients_per_round_of`, or if the number is not an integer.
    """
    size = clients_per_round_of(plan, clients_per_round)
    if size != int(size):
        raise ValueError(f"clients_per_round must be a whole number, found {size}.")
    return int(size)
