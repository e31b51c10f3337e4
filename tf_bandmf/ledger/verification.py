"""Whether a ledger is what was written: its chain, its sums, and what others know of it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from tf_bandmf.ledger import datasets, witness
from tf_bandmf.ledger.balances import Balance
from tf_bandmf.ledger.chain import BEFORE_FIRST, Entry
from tf_bandmf.ledger.reservations import replayed

if TYPE_CHECKING:
    from tf_bandmf.ledger.store import Transaction

_MOST_PROBLEMS = 20


@dataclasses.dataclass(frozen=True)
class Verification:
    """What `Ledger.verify` found.

    Attributes:
      entries: how many there are.
      head: name of the newest one, to note elsewhere; "" if there is none.
      problems: what is wrong, one sentence each; none if all is well.
      witnessed: whether this machine had seen an entry that it could be held against.
    """

    entries: int
    head: str
    problems: tuple[str, ...]
    witnessed: bool

    @property
    def is_intact(self) -> bool:
        """Whether nothing was found wrong."""
        return not self.problems

    def __str__(self) -> str:
        if not self.is_intact:
            return "\n".join(["The ledger was changed or damaged:", *self.problems])
        seen = (
            "It has what this machine saw last."
            if self.witnessed
            else "This machine has seen nothing of it before."
        )
        return (
            f"{self.entries} entries, each as it was written; the sums are right. {seen} "
            f"Newest entry: {self.head}"
        )


def verify(found: Transaction, ledger_id: str, known: tuple[str, ...]) -> Verification:
    """Reads the whole chain, and computes all balances anew.

    Args:
      found: the ledger.
      ledger_id: of the ledger that it should be.
      known: names of entries that are known from elsewhere: statements, exports.
    """
    problems: list[str] = []
    balances: dict[str, Balance] = {}
    touched: set[tuple[str, int]] = set()
    begun: dict[str, Entry] = {}
    settled: dict[str, int] = {}
    names: set[str] = set()
    seen = witness.remembered(ledger_id)
    count, previous, at = 0, BEFORE_FIRST, ""
    newest: Entry | None = None
    is_witnessed = False
    for entry in found.entries():
        if entry.number != count:
            problems.append(f"Entry {count} is missing.")
            count = entry.number
        if not entry.is_intact:
            problems.append(f"Entry {entry.number} was changed: its digest is another.")
        if entry.previous != previous:
            problems.append(
                f"Entry {entry.number} does not follow the one before it: entries were "
                f"changed, removed, added or reordered."
            )
        if entry.at < at:
            problems.append(f"Entry {entry.number} is older than the one before it.")
        if entry.kind == "begun" and entry.run is not None:
            begun[entry.run] = entry
        try:
            found_balances = replayed(balances, entry, begun.get(entry.run or ""))
            stated = {
                account: Balance.from_json(value)
                for account, value in entry.body.get("accounts", {}).items()
            }
            if found_balances != stated:
                problems.append(f"Entry {entry.number}: its sums are wrong.")
            problems += _after_settlement(entry, settled)
            balances.update(found_balances)
            touched |= {(account, entry.number) for account in stated}
        except (KeyError, TypeError, ValueError, AssertionError):
            problems.append(f"Entry {entry.number} cannot be read.")
        names.add(entry.name)
        if seen is not None and (entry.number, entry.digest) == seen:
            is_witnessed = True
        count, previous, at, newest = count + 1, entry.digest, entry.at, entry
        if len(problems) >= _MOST_PROBLEMS:
            problems.append("More is not listed.")
            break
    else:
        problems += _of_tables(found, touched, newest)
        if seen is not None and not is_witnessed:
            problems.append(
                f"Entry {seen[0]}, which this machine has seen, is missing or another: the "
                f"database was replaced by an older one, cut off, or made anew."
            )
    problems += [
        f"There is no entry {name}, which was given."
        for name in known
        if name not in names
    ]
    name = "" if newest is None else newest.name
    return Verification(count, name, tuple(problems), is_witnessed)


def _after_settlement(entry: Entry, settled: dict[str, int]) -> list[str]:
    """Whether a run took more steps than it was settled for."""
    run, body = entry.run or "", entry.body
    if entry.kind == "ended" and "cost" in body:
        settled[run] = body["steps"]
    if entry.kind != "steps" or body["steps"] <= settled.get(run, body["steps"]):
        return []
    return [
        f"Entry {entry.number}: run {run[:12]} took {body['steps']} steps, and had been "
        f"settled for {settled[run]}: it went on after somebody ended it."
    ]


def _of_tables(
    found: Transaction, touched: set[tuple[str, int]], newest: Entry | None
) -> list[str]:
    problems = []
    if found.touched() != touched:
        problems.append("The index of accounts does not fit the entries.")
    if found.head() != (None if newest is None else (newest.number, newest.digest)):
        problems.append(
            "The newest entry is not the one that was written last: entries were removed "
            "from the end."
        )
    for entry in found.entries(kind="begun"):
        fingerprint = entry.body.get("plan", "")
        if found.plan_config(fingerprint) is None:
            problems.append(f"Entry {entry.number}: its plan is missing.")
    return problems


def overspent(found: Transaction) -> list[str]:
    """Accounts that have spent more than their budget: none, unless it was lowered."""
    problems = []
    for name in datasets.names_of(found):
        dataset = datasets.find(found, name)
        for budget in dataset.budgets:
            for partition, balance in dataset.balances(found, budget.period).items():
                if not budget.admits(balance):
                    where = f", partition {partition}" if partition else ""
                    problems.append(
                        f"{name}{where}: {budget.describe()} is overspent "
                        f"({budget.spent(balance).value:.4g}): it was lowered afterwards."
                    )
    return problems
