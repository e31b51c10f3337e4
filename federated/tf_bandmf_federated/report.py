"""The privacy report of a federated run, as Markdown.

The report has the items that arXiv:2306.08153, App. K.1, requires, and two more: the
parameters of the mechanism, and what the guarantee does not cover. The report is
computed from the plan and the measured participation. It is correct if the run followed
the plan's mechanism. Facts that only the operator knows are quoted as the operator's
statements, or marked as not stated.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib

from tf_bandmf import Plan, __version__
from tf_bandmf.accounting.guarantee import fill
from tf_bandmf.planning.statement import GENERATORS
from tf_bandmf_federated.accounting import (
    MeasuredGuarantee,
    MeasuredParticipation,
    measured_guarantee,
)

# The report's template. Each paragraph is one item: the item's title, a period, and its
# text. The last paragraph is a table.
_TEXT = pathlib.Path(__file__).with_name("report.txt")


@dataclasses.dataclass(frozen=True)
class OperatorStatements:
    """The operator's statements about facts that the plan and the run do not show.

    The report attributes each statement to the operator. If a statement is None, the
    report says "not stated".

    Attributes:
      released: which models are released (only the last one, or all), and to whom.
      public_data: data used in addition to the private data, for example in pretraining.
      devices: how devices relate to users.
      enforcement: how the min separation was enforced, and where the record of
        participations comes from.
      verifiability: where the code and the configuration can be inspected.
    """

    released: str | None = None
    public_data: str | None = None
    devices: str | None = None
    enforcement: str | None = None
    verifiability: str | None = None


def write_report(
    path: str | os.PathLike[str],
    plan: Plan,
    measured: MeasuredParticipation,
    *,
    delta: float | None = None,
    operator: OperatorStatements = OperatorStatements(),
) -> MeasuredGuarantee:
    """Writes the privacy report of a run to a file, encoded as UTF-8.

    Args:
      path: path of the report.
      plan: the run's plan.
      measured: the run's measured participation: `PrivateFedAvg.measured`, the
        `measured` of the `TrainingOutcome` that `train_model` returns, or the result of
        `measure_participation`.
      delta: delta for which the report states epsilon; by default the plan's delta.
      operator: the operator's statements.

    Returns:
      The guarantee that the report states.

    Raises:
      TypeError, ValueError: in the same cases as `measured_guarantee`. In these cases,
        no file is written.
    """
    actual = measured_guarantee(plan, measured, delta)
    text = _markdown(actual, operator)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return actual


def _markdown(actual: MeasuredGuarantee, operator: OperatorStatements) -> str:
    lines = ["# Privacy report", ""]
    if actual.plan.test_seed is not None:
        lines += [
            "**NO PRIVACY.** The noise comes from a known test seed, so anyone can remove "
            "it. The numbers below would hold with a secret key.",
            "",
        ]
    if not actual.is_within_plan:
        lines += [
            "**The record violates the plan's participation**: for this run, the plan's "
            "guarantee does not hold; the measured guarantee does.",
            "",
        ]
    *points, table = _TEXT.read_text("utf-8").split("\n\n")
    values = _values(actual, operator)
    for number, point in enumerate(points, start=1):
        title, _, text = " ".join(point.split()).partition(". ")
        lines.append(f"{number}. **{title}.** {fill(text, **values)}")
    lines += ["", "## Planned and measured", "", fill(table, **values)]
    return "\n".join(lines)


def _values(
    actual: MeasuredGuarantee, operator: OperatorStatements
) -> dict[str, object]:
    """Returns the values of the placeholders in the report's template."""
    plan, measured = actual.plan, actual.measured
    planned = "The plan's guarantee does not hold."
    if actual.is_within_plan:
        planned = fill(
            "As planned, for any record that satisfies the plan's participation: "
            "{0.zcdp_rho:.6g up}-zCDP and (epsilon = {0.epsilon:.6g up}, delta = "
            "{0.delta:.6g up})-DP.",
            actual.planned,
        )
    assumptions = "No device took part twice."
    if measured.min_separation is not None:
        assumptions = (
            f"No device took part more than {measured.max_participations} times, and "
            f"two participations of one device were at least {measured.min_separation} "
            f"rounds apart."
        )
    return dict(
        actual=actual,
        plan=plan,
        measured=measured,
        skipped=_skipped(measured),
        budget=f"It spends from the budget of {plan.account}. " if plan.account else "",
        public_data=_said("Public data", operator.public_data),
        released=_said("Released", operator.released),
        devices=_said("Devices and users", operator.devices),
        kind=_kind(actual),
        assumptions=assumptions,
        enforcement=_said("Enforcement and record", operator.enforcement),
        planned=planned,
        version=__version__,
        code=_said("Code", operator.verifiability),
        bands=plan.strategy.matrix.stored_bands or plan.num_steps,
        of="its inverse" if plan.strategy.is_inverse_banded else "the strategy",
        generator=GENERATORS[plan.generator],
        num_skipped=len(measured.skipped_rounds),
        separation=measured.min_separation or "none twice",
        planned_separation=plan.participation.separation(),
        planned_most=plan.participation.participations(plan.num_steps),
    )


def _skipped(measured: MeasuredParticipation) -> str:
    rounds = measured.skipped_rounds
    if not rounds:
        return ""
    shown = ", ".join(map(str, rounds[:20])) + (", ..." if len(rounds) > 20 else "")
    return (
        f"{len(rounds)} of these rounds (counted from 0: {shown}) were skipped after an "
        f"interruption: none of their results was released, but their participations "
        f"are counted. "
    )


def _kind(actual: MeasuredGuarantee) -> str:
    if not actual.sensitivity.is_exact:
        return (
            "The values are proven upper bounds, because the sensitivity is a bound "
            f"({actual.sensitivity.method})."
        )
    reason = f"Sensitivity by: {actual.sensitivity.method}."
    if actual.guarantee.kind == "bound":
        return f"The values are upper bounds, as not all rounds were run. {reason}"
    return (
        f"The values are exact for the worst record with this separation and number of "
        f"participations; numerical errors only increase them. {reason}"
    )


def _said(topic: str, statement: str | None) -> str:
    if statement is None:
        return f"{topic}: not stated by the operator."
    return f"{topic}, as the operator states: {statement.strip()}"
