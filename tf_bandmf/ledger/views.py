"""What readers of a ledger see: runs and what became of them, spending over time."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import NamedTuple

from tf_bandmf.ledger.amounts import number
from tf_bandmf.ledger.balances import NOTHING_SPENT, Balance
from tf_bandmf.ledger.budgets import Budget
from tf_bandmf.ledger.chain import Entry
from tf_bandmf.ledger.costs import Cost
from tf_bandmf.ledger.datasets import ALL_DATA, account_key

# Values of privacy loss distributions take a part of a second each.
_MOST_POINTS = 60


@dataclasses.dataclass(frozen=True)
class Use:
    """One run, or one other release.

    Attributes:
      entry: that reserved or spent; its name is what statements cite.
      at: when.
      what: mechanism of a run, or what was released.
      partitions: whose data it used; none for all data.
      epsilon, delta: that it costs by itself now: settled, if it was.
      steps: that a run is known to have taken; None for other releases.
      state: "reserved", "complete" (all steps), "ended", "settled" or "spent".
      released: how often a model of the run was given away.
    """

    entry: Entry
    at: str
    what: str
    partitions: tuple[str, ...]
    epsilon: float
    delta: float
    steps: int | None
    state: str
    released: int


def uses(entries: Iterable[Entry]) -> list[Use]:
    """Runs and other releases, in the order in which they reserved."""
    found: dict[int, Use] = {}
    by_run: dict[str, int] = {}
    for entry in entries:
        if entry.kind in ("begun", "spent"):
            found[entry.number] = _use(entry)
            if entry.run is not None:
                by_run[entry.run] = entry.number
            continue
        number_ = by_run.get(entry.run or "")
        if number_ is not None:
            found[number_] = _later(found[number_], entry)
    return list(found.values())


def _use(entry: Entry) -> Use:
    body = entry.body
    cost = Cost.from_json(body["cost"])
    is_run = entry.kind == "begun"
    return Use(
        entry=entry,
        at=entry.at,
        what=body["mechanism"] if is_run else body["about"],
        partitions=tuple(body["partitions"]),
        epsilon=number(cost.epsilon),
        delta=number(cost.delta),
        steps=0 if is_run else None,
        state="reserved" if is_run else "spent",
        released=0,
    )


def _later(use: Use, entry: Entry) -> Use:
    body = entry.body
    if entry.kind == "released":
        return dataclasses.replace(use, released=use.released + 1)
    if entry.kind == "steps":
        is_complete = body["steps"] >= use.entry.body["num_steps"]
        state = "complete" if is_complete else use.state
        return dataclasses.replace(use, steps=body["steps"], state=state)
    if entry.kind != "ended":
        return use
    steps = use.steps if body["steps"] is None else body["steps"]
    if "cost" not in body:
        return dataclasses.replace(use, steps=steps, state="ended")
    cost = Cost.from_json(body["cost"])
    return dataclasses.replace(
        use,
        steps=steps,
        state="settled",
        epsilon=number(cost.epsilon),
        delta=number(cost.delta),
    )


class Moment(NamedTuple):
    """What was spent from a moment on."""

    at: str
    spent: float
    runs: int


def spending(entries: Iterable[Entry], dataset: str, budget: Budget) -> list[Moment]:
    """What was spent of a budget over time, of the data that are spent most.

    Args:
      entries: of the data set.
      dataset: its name.
      budget: one of its.

    Returns:
      Moments at which it changed, 60 at most, the last one among them.
    """
    whole = account_key(dataset, budget.period, ALL_DATA)
    prefix = whole[: -len('"]')]
    found: dict[str, Balance] = {}
    states: list[tuple[str, Balance, tuple[Balance, ...]]] = []
    for entry in entries:
        accounts = {
            account: Balance.from_json(value)
            for account, value in entry.body.get("accounts", {}).items()
            if account.startswith(prefix) and account.endswith('"]')
        }
        if not accounts:
            continue
        found.update(accounts)
        shared = found.get(whole, NOTHING_SPENT)
        # Partitions that have spent the same are one case.
        cases = {b.key: b for account, b in found.items() if account != whole}
        states.append((entry.at, shared, tuple(cases.values()) or (NOTHING_SPENT,)))
    stride = -(-len(states) // _MOST_POINTS) or 1
    kept = states[::-1][::stride][::-1]
    return [
        Moment(
            at,
            max(budget.spent(shared + own).value for own in cases),
            max((shared + own).runs for own in cases),
        )
        for at, shared, cases in kept
    ]
