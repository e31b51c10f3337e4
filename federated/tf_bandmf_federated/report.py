"""The privacy report of a federated run, as Markdown.

Its points are those of arXiv:2306.08153, App. K.1, which follows Ponomareva et al.,
2023, section 5.3, and two more: the mechanism's parameters and what is not covered. It
states what plan and measurement say, of a run that did what the plan says (as
`build_fed_avg` does). What only the operator knows is what the operator says, and is
marked as such, or as not stated.
"""

from __future__ import annotations

import dataclasses
import decimal
import os

from tf_bandmf import Plan, __version__
from tf_bandmf.accounting.guarantee import Guarantee
from tf_bandmf.planning.statement import GENERATORS
from tf_bandmf_federated.accounting import (
    MeasuredGuarantee,
    MeasuredParticipation,
    measured_guarantee,
)

_NOT_COVERED = (
    "The measured separation and participations in this report, and counts of clients: "
    "exact functions of when the devices came.",
    "Training metrics (loss, accuracy, norms): exact functions of the data. Do not "
    "publish them.",
    "Choosing hyper-parameters, a model or a checkpoint by looking at private data.",
    "Further runs on the same devices: each spends its own budget.",
    "Floating-point effects: the guarantee is for ideal real arithmetic. The noisy mean is "
    "rounded to multiples of a power of two, at most 1/1024 of its noise's deviation, so "
    "that no bits exclude an update with certainty; smaller effects on probabilities are "
    "not bounded.",
)


@dataclasses.dataclass(frozen=True)
class OperatorStatements:
    """What plan and measurement cannot know: sentences from who ran the training.

    Each is printed as a statement of the operator; one that is None is marked as not
    stated.

    Attributes:
      released: what was released: a final model, all models, to whom.
      public_data: used in addition to the private data, for example to pretrain.
      devices: how devices and users correspond.
      enforcement: how the separation was enforced, and what the record was taken from.
      verifiability: where code and configuration can be read.
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
    """Writes `privacy_report` to a file, UTF-8.

    Returns:
      The guarantee that the report states.

    Raises:
      TypeError, ValueError: as `measured_guarantee`; nothing is written then.
    """
    found = measured_guarantee(plan, measured, delta)
    text = _markdown(found, operator)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return found


def privacy_report(
    plan: Plan,
    measured: MeasuredParticipation,
    *,
    delta: float | None = None,
    operator: OperatorStatements = OperatorStatements(),
) -> str:
    """The report as Markdown.

    Args:
      plan: of the run.
      measured: of the run: from the data source (`MinSepIterator.measured`), or from a
        record (`measure_participation`).
      delta: by default the plan's.
      operator: what only the operator knows.

    Raises:
      TypeError, ValueError: as `measured_guarantee`.
    """
    return _markdown(measured_guarantee(plan, measured, delta), operator)


def _markdown(found: MeasuredGuarantee, operator: OperatorStatements) -> str:
    lines = ["# Privacy report", ""]
    if found.plan.test_seed is not None:
        lines += [
            "**NO PRIVACY.** The noise comes from a known test seed: anyone can remove "
            "it. The numbers below would hold with a secret key.",
            "",
        ]
    if not found.is_within_plan:
        lines += [
            "**The record does not keep the plan's participation**: the plan's guarantee "
            "does not hold for it, the measured one does.",
            "",
        ]
    for number, (title, text) in enumerate(_points(found, operator), start=1):
        lines.append(f"{number}. **{title}.** {text}")
    return "\n".join([*lines, "", "## Planned and measured", "", *_table(found), ""])


def _points(
    found: MeasuredGuarantee, operator: OperatorStatements
) -> list[tuple[str, str]]:
    plan = found.plan
    account = plan.account
    budget = "" if account is None else f"It spends from the budget of {account}. "
    return [
        (
            "DP setting",
            "Central DP: the service provider is trusted to implement the mechanism "
            "correctly, with the clients' updates where no secure aggregation hides "
            "them, and with the noise key.",
        ),
        (
            "Data accesses covered",
            f"One training run, of which {found.measured.num_rounds} of "
            f"{plan.num_steps} planned rounds were run, for every device that follows "
            f"the protocol, the limits on participation included; "
            f"{found.measured.num_clients} devices took part. "
            f"{_skipped(found.measured)}{budget}"
            f"{_said('Public data', operator.public_data)}",
        ),
        (
            "Mechanism output",
            "The sequence of all noisy sums of clipped updates, hence every intermediate "
            "model, also those that devices receive, and the final one. "
            f"{_said('Released', operator.released)}",
        ),
        (
            "Unit of privacy",
            "The device: all that one device contributes in all rounds, however much "
            "data it has. This is user-level for users with one device; stronger for "
            "users who share one; weaker for a user with several devices that take "
            "part, who is covered by group privacy only. "
            f"{_said('Devices and users', operator.devices)}",
        ),
        (
            "Adjacency",
            "Zero-out: one device's update is replaced by the zero vector in every round "
            "in which it takes part. When it takes part does not change, nor do the "
            "number of rounds and the denominator of the sums.",
        ),
        (
            "Type of accounting",
            f"zCDP and, for (epsilon, delta)-DP, {found.guarantee.accountant}: the run "
            f"is one Gaussian mechanism. {_kind(found)} No amplification by sampling is "
            f"claimed.",
        ),
        ("Accounting assumptions", _assumptions(found, operator)),
        ("Formal DP statement", _formal_statement(found)),
        (
            "Transparency and verifiability",
            f"tf-bandmf {__version__}; plan fingerprint {plan.fingerprint}: with the "
            f"plan's file the numbers can be computed again. "
            f"{_said('Code', operator.verifiability)}",
        ),
        (
            "Mechanism",
            f"{plan.statement().mechanism}, {plan.strategy.noise_bands} bands of "
            f"{'its inverse' if plan.strategy.is_inverse_banded else 'the strategy'}; "
            f"as the plan says: each device's update clipped to l2 norm "
            f"{plan.l2_norm_clip:g}, uniform weights, independent noise of standard "
            f"deviation {plan.noise_stddev:.6g} before it is correlated and added to "
            f"the sum.",
        ),
        ("Not covered", " ".join([*_NOT_COVERED, GENERATORS[plan.generator]])),
    ]


def _assumptions(found: MeasuredGuarantee, operator: OperatorStatements) -> str:
    measured = found.measured
    if measured.min_separation is None:
        text = "No device took part twice."
    else:
        text = (
            f"No device took part more than {measured.max_participations} times, and "
            f"two participations of one device were at least {measured.min_separation} "
            f"rounds apart."
        )
    return (
        f"{text} This was measured in the run, not assumed before it: the guarantee "
        f"stands or falls with the record, and depends on when the devices came. "
        f"{_said('Enforcement and record', operator.enforcement)}"
    )


def _formal_statement(found: MeasuredGuarantee) -> str:
    text = f"As measured: {_numbers(found.guarantee)}."
    if not found.is_within_plan:
        return f"{text} The plan's guarantee does not hold."
    return (
        f"{text} As planned, for any record that keeps the plan's participation: "
        f"{_numbers(found.planned)}."
    )


def _skipped(measured: MeasuredParticipation) -> str:
    rounds = measured.skipped_rounds
    if not rounds:
        return ""
    shown = ", ".join(map(str, rounds[:20])) + (", ..." if len(rounds) > 20 else "")
    return (
        f"{len(rounds)} of these rounds (counted from 0: {shown}) were skipped after an "
        f"interruption: no result of theirs was released; their participations are "
        f"counted. "
    )


def _kind(found: MeasuredGuarantee) -> str:
    if not found.sensitivity.is_exact:
        return (
            "The values are proven upper bounds: the sensitivity is one "
            f"({found.sensitivity.method})."
        )
    reason = f"Sensitivity by: {found.sensitivity.method}."
    if found.guarantee.kind == "bound":
        return f"The values are upper bounds: not all rounds were run. {reason}"
    return (
        f"The values are exact for the worst record of this separation and number of "
        f"participations, numerical errors being on the safe side. {reason}"
    )


def _table(found: MeasuredGuarantee) -> list[str]:
    plan, n = found.plan, found.plan.num_steps
    measured = found.measured
    separation = measured.min_separation
    rows = [
        ("rounds", n, measured.num_rounds),
        ("rounds without a result", 0, len(measured.skipped_rounds)),
        (
            "smallest separation of one device",
            plan.participation.separation(),
            "none twice" if separation is None else separation,
        ),
        (
            "most participations of one device",
            plan.participation.participations(n),
            measured.max_participations,
        ),
        ("sensitivity, clip norm 1", plan.sensitivity, found.sensitivity),
        (
            "noise multiplier, per unit of sensitivity",
            f"{plan.noise_multiplier:.6g}",
            f"{found.noise_multiplier:.6g}",
        ),
        ("rho of zCDP", _rho(found.planned), _rho(found.guarantee)),
        (
            f"epsilon at delta = {found.guarantee.delta:g}",
            _rounded_up(found.planned.epsilon),
            _rounded_up(found.guarantee.epsilon),
        ),
    ]
    head = ["| | planned | measured |", "|---|---|---|"]
    return head + [f"| {name} | {left} | {right} |" for name, left, right in rows]


def _said(topic: str, statement: str | None) -> str:
    if statement is None:
        return f"{topic}: not stated by the operator."
    return f"{topic}, as the operator states: {statement.strip()}"


def _numbers(guarantee: Guarantee) -> str:
    return (
        f"{_rho(guarantee)}-zCDP and (epsilon = {_rounded_up(guarantee.epsilon)}, "
        f"delta = {guarantee.delta:g})-DP"
    )


def _rho(guarantee: Guarantee) -> str:
    assert guarantee.zcdp_rho is not None  # nothing is amplified here
    return _rounded_up(guarantee.zcdp_rho)


def _rounded_up(value: float) -> str:
    """Six significant digits that state no less than the value."""
    context = decimal.Context(prec=6, rounding=decimal.ROUND_CEILING)
    return format(float(context.create_decimal_from_float(value)), "g")
