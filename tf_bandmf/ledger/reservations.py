"""What runs do in a ledger: they begin, take steps, end; each within one transaction.

Planning reserves nothing: a plan may be made often, and never run. A run reserves all of
its plan's cost when it *begins*, at its first step. It is named by a digest of its noise
key, so that a run that is resumed is the same run, and reserves nothing anew, and a second
run of the same plan reserves once more. What is reserved counts in full until it is
settled, whatever becomes of the process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tf_bandmf.ledger import datasets
from tf_bandmf.ledger.balances import Balance
from tf_bandmf.ledger.chain import Entry, canonical
from tf_bandmf.ledger.costs import Cost, plan_cost
from tf_bandmf.ledger.errors import LedgerError
from tf_bandmf.planning.account import Account
from tf_bandmf.strategies import registry

if TYPE_CHECKING:
    from tf_bandmf.ledger.datasets import Dataset
    from tf_bandmf.ledger.store import Transaction
    from tf_bandmf.planning.plan import Plan

_HEX = frozenset("0123456789abcdef")


def described(plan: Plan) -> dict[str, Any]:
    """What an entry says of a plan."""
    return {
        "plan": plan.fingerprint,
        "mechanism": registry.specification(plan.strategy),
        "participation": plan.participation.kind,
        "num_steps": plan.num_steps,
        "noise_multiplier": plan.noise_multiplier,
        "epsilon": plan.epsilon,
        "delta": plan.delta,
        "accounting": plan.kind,
    }


def check_run(run: str) -> None:
    """Raises ValueError unless a run is named by 64 hexadecimal digits."""
    if not isinstance(run, str) or len(run) != 64 or not _HEX.issuperset(run):
        raise ValueError(
            f"run must be a digest of 64 hexadecimal digits, found {run!r}."
        )


def bind(found: Transaction, who: str, plan: Plan, account: Account) -> None:
    """Notes that a plan was made for an account, if its run would fit today."""
    dataset = datasets.find(found, account.dataset)
    dataset.check_plan(plan)
    cost = plan_cost(plan, dataset.neighbors)
    budget = dataset.budget_at(found.moment())
    balances = dataset.balances(found, budget.period)
    what = f"A run of this plan{_counted(plan)}"
    dataset.admit(balances, budget, cost, account.partitions, what, plan.delta)
    # Before it runs, a plan is named by its fingerprint.
    name = plan.fingerprint
    if next(found.entries(run=name, kind="planned"), None) is not None:
        return
    text = canonical({**described(plan), "partitions": list(account.partitions)})
    found.append(who, "planned", text, dataset.name, name)


def begin(found: Transaction, who: str, plan: Plan, run: str, config: str) -> Entry:
    """Reserves what a run costs, or finds what it has reserved.

    Raises:
      BudgetExceededError: if it would spend more than is left.
      LedgerError: if the run has ended, or was begun with another plan.
    """
    check_run(run)
    assert plan.account is not None
    first = _begun(found, run)
    if first is not None:
        if first.body["plan"] != plan.fingerprint:
            raise LedgerError(
                f"Run {run[:12]} was begun with plan {first.body['plan'][:12]}, found "
                f"{plan.fingerprint[:12]}: a run has one plan."
            )
        if _ended(found, run) is not None:
            raise LedgerError(
                f"Run {run[:12]} has ended, and what it did not use was given back: it "
                f"cannot go on. A new run begins with a new PrivateOptimizer."
            )
        return first
    dataset = datasets.find(found, plan.account.dataset)
    dataset.check_plan(plan)
    partitions = dataset.check_partitions(plan.account.partitions)
    body = {**described(plan), "partitions": list(partitions)}
    what = f"Run {run[:12]}{_counted(plan)}"
    cost = plan_cost(plan, dataset.neighbors)
    entry = _spend(
        found, who, "begun", dataset, partitions, cost, body, what, run, plan.delta
    )
    found.keep_plan(plan.fingerprint, config)
    return entry


def spend(
    found: Transaction,
    who: str,
    dataset: Dataset,
    partitions: Sequence[str],
    cost: Cost,
    body: dict[str, Any],
    what: str,
) -> Entry:
    """Writes down a release that no run of this library makes.

    Raises:
      BudgetExceededError: if it would spend more than is left.
    """
    partitions = dataset.check_partitions(partitions)
    body = {**body, "partitions": list(partitions)}
    delta = body.get("delta") or None
    return _spend(
        found, who, "spent", dataset, partitions, cost, body, what, None, delta
    )


def _spend(
    found: Transaction,
    who: str,
    kind: str,
    dataset: Dataset,
    partitions: tuple[str, ...],
    cost: Cost,
    body: dict[str, Any],
    what: str,
    run: str | None,
    delta: float | None,
) -> Entry:
    budget = dataset.budget_at(found.moment())
    balances = dataset.balances(found, budget.period)
    dataset.admit(balances, budget, cost, partitions, what, delta)
    accounts, rest = {}, []
    for name in partitions or (datasets.ALL_DATA,):
        account = dataset.account(budget.period, name)
        before = found.balance(account)
        if before.is_rest(cost):
            rest.append(account)
        accounts[account] = before.plus(cost).to_json()
    text = canonical(
        {
            **body,
            "period": budget.period,
            "cost": cost.to_json(),
            "rest": rest,
            "accounts": accounts,
        }
    )
    return found.append(who, kind, text, dataset.name, run, tuple(accounts))


def note_steps(found: Transaction, who: str, run: str, steps: int) -> Entry:
    """Writes down how many steps a run has taken; it spends nothing."""
    first = _needed(found, run)
    return found.append(
        who, "steps", canonical({"steps": int(steps)}), first.dataset, run
    )


def end(
    found: Transaction,
    who: str,
    plan: Plan | None,
    run: str,
    steps: int | None,
    reason: str | None,
) -> Entry:
    """Ends a run; with steps and a reason it gives back what was not used."""
    first = _needed(found, run)
    last = _ended(found, run)
    if last is not None:
        return last
    body: dict[str, Any] = {"steps": steps, "reason": reason}
    if plan is None or steps is None or reason is None:
        return found.append(who, "ended", canonical(body), first.dataset, run)
    if plan.fingerprint != first.body["plan"]:
        raise LedgerError(
            f"Run {run[:12]} was begun with plan {first.body['plan'][:12]}, found "
            f"{plan.fingerprint[:12]}."
        )
    noted = [entry.body["steps"] for entry in found.entries(run=run, kind="steps")]
    if noted and max(noted) > steps:
        raise ValueError(
            f"steps must be at least {max(noted)}, which the ledger knows that the run "
            f"took, found {steps}."
        )
    assert first.dataset is not None
    dataset = datasets.find(found, first.dataset)
    before = Cost.from_json(first.body["cost"])
    after = plan_cost(plan, dataset.neighbors, steps)
    accounts, rest = {}, []
    for account in first.body["accounts"]:
        balance = found.balance(account).minus(before, account in first.body["rest"])
        if balance.is_rest(after):
            rest.append(account)
        accounts[account] = balance.plus(after).to_json()
    text = canonical(
        {
            **body,
            "begun": first.number,
            "cost": after.to_json(),
            "rest": rest,
            "accounts": accounts,
        }
    )
    return found.append(who, "ended", text, first.dataset, run, tuple(accounts))


def replayed(
    balances: dict[str, Balance], entry: Entry, first: Entry | None
) -> dict[str, Balance]:
    """The balances that an entry leaves, computed from those before it.

    Args:
      balances: by account, before the entry.
      entry: any.
      first: the entry with which its run began, if it ends one.
    """
    body = entry.body
    if entry.kind not in ("begun", "spent", "ended") or "cost" not in body:
        return {}
    cost, found = Cost.from_json(body["cost"]), {}
    if entry.kind != "ended":
        period, partitions = body["period"], body["partitions"] or [datasets.ALL_DATA]
        for partition in partitions:
            account = datasets.account_key(str(entry.dataset), period, partition)
            found[account] = balances.get(account, Balance()).plus(cost)
        return found
    assert first is not None
    before = Cost.from_json(first.body["cost"])
    for account in first.body["accounts"]:
        is_rest = account in first.body["rest"]
        found[account] = balances[account].minus(before, is_rest).plus(cost)
    return found


def _begun(found: Transaction, run: str) -> Entry | None:
    return next(found.entries(run=run, kind="begun"), None)


def _ended(found: Transaction, run: str) -> Entry | None:
    return next(found.entries(run=run, kind="ended"), None)


def _needed(found: Transaction, run: str) -> Entry:
    check_run(run)
    first = _begun(found, run)
    if first is None:
        raise LedgerError(f"The ledger knows no run {run[:12]}: it has not begun.")
    return first


def _counted(plan: Plan) -> str:
    """How a plan counts, where that is not what it states."""
    if plan.kind != "estimate":
        return ""
    return (
        " (its epsilon is an estimate by simulation, so that it counts without "
        "amplification: plan with confidence=1 - 1e-6, for instance)"
    )
