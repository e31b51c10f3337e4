"""What a ledger knows of a data set: the newest of the entries that define it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tf_bandmf.ledger.balances import Balance
from tf_bandmf.ledger.budgets import Budget
from tf_bandmf.ledger.chain import canonical
from tf_bandmf.ledger.costs import ADJACENCIES, Cost
from tf_bandmf.ledger.errors import BudgetExceededError, LedgerError

if TYPE_CHECKING:
    from tf_bandmf.ledger.store import Transaction
    from tf_bandmf.planning.plan import Plan

# The part of an account that all partitions share.
ALL_DATA = ""


@dataclasses.dataclass(frozen=True)
class Dataset:
    """A data set, its partitions and its budgets.

    Attributes:
      name: by which plans are bound to it.
      unit: whose presence its budgets hide; plans must have the same.
      adjacency: "zero-out" or "replace-one".
      version: of the data, or a digest, for whoever reads the ledger.
      partitions: names of disjoint parts: no unit has data in two of them.
      disjoint_by: why they are disjoint, for each.
      budgets: one for each period.
    """

    name: str
    unit: str
    adjacency: str
    version: str | None
    partitions: tuple[str, ...]
    disjoint_by: tuple[str, ...]
    budgets: tuple[Budget, ...]

    @property
    def neighbors(self) -> str:
        """The adjacency as plans state it."""
        return ADJACENCIES[self.adjacency]

    def budget_at(self, moment: str) -> Budget:
        """The budget that a run of this moment spends from.

        Raises:
          LedgerError: if there is none.
        """
        for budget in self.budgets:
            if budget.covers(moment):
                return budget
        known = "; ".join(budget.describe() for budget in self.budgets) or "none"
        raise LedgerError(
            f"The data set {self.name!r} has no budget at {moment} (budgets: {known}). "
            f"Give it one: ledger.set_budget({self.name!r}, ...)."
        )

    def budget_of(self, period: str) -> Budget:
        """The budget of a period, by its name.

        Raises:
          LedgerError: if there is none.
        """
        for budget in self.budgets:
            if budget.period == period:
                return budget
        names = ", ".join(repr(budget.period) for budget in self.budgets) or "none"
        raise LedgerError(
            f"The data set {self.name!r} has no period {period!r}; it has {names}."
        )

    def account(self, period: str, partition: str = ALL_DATA) -> str:
        """The key of an account."""
        return account_key(self.name, period, partition)

    def check_partitions(self, names: Sequence[str]) -> tuple[str, ...]:
        """The names of partitions, sorted, each once.

        Raises:
          ValueError: if one is not known, or they are no list of names.
        """
        if isinstance(names, str):
            names = (names,)
        unknown = [name for name in names if name not in self.partitions]
        if unknown:
            known = ", ".join(self.partitions) or "none"
            raise ValueError(
                f"partitions must be those of {self.name!r} ({known}), found "
                f"{', '.join(map(repr, unknown))}. Declare them first: "
                f"ledger.add_partitions({self.name!r}, [...], disjoint_by=...)."
            )
        return tuple(sorted(set(names)))

    def check_unit(self, unit: str, what: str) -> None:
        """Raises ValueError if something hides another unit than the budget is for."""
        if unit != self.unit:
            raise ValueError(
                f"{what} hides {unit!r}, and the budget of {self.name!r} is for "
                f"{self.unit!r}. Plan with unit={self.unit!r}, where each example is "
                f"all that one of them adds to a step."
            )

    def check_plan(self, plan: Plan) -> None:
        """Raises ValueError if no run of a plan may use the data."""
        self.check_unit(plan.unit, "The plan")
        if plan.test_seed is not None:
            raise ValueError(
                "A plan with a test seed protects nobody: it spends from no budget, and "
                "must not be used on data that has one. Plan without test_seed."
            )

    def balances(self, found: Transaction, period: str) -> dict[str, Balance]:
        """What was spent of each partition's data, and of data in none (`ALL_DATA`).

        Disjoint partitions compose in parallel: a unit has data in one of them, so that
        its loss is that of the runs on all data and on its own partition.
        """
        shared = found.balance(self.account(period))
        own = {
            name: found.balance(self.account(period, name)) for name in self.partitions
        }
        return {
            ALL_DATA: shared,
            **{name: shared + balance for name, balance in own.items()},
        }

    def admit(
        self,
        balances: dict[str, Balance],
        budget: Budget,
        cost: Cost,
        partitions: Sequence[str],
        what: str,
        delta: float | None,
    ) -> None:
        """Raises BudgetExceededError if a run would spend more than is left.

        Args:
          balances: of `balances`.
          budget: of the period.
          cost: of the run.
          partitions: whose data it uses; none for all data.
          what: the run, for the message.
          delta: of the run, for what would fit.
        """
        concerned = {name: balances[name] for name in partitions or balances}
        # Partitions that have spent the same are one case.
        cases = {balance.key: name for name, balance in concerned.items()}
        over = [
            name
            for name in cases.values()
            if not budget.admits(concerned[name].plus(cost))
        ]
        if not over:
            return
        room = budget.room(
            [concerned[name] for name in over], delta, adjacency=self.neighbors
        )
        spent = max(budget.spent(concerned[name]) for name in over)
        unit = "rho" if budget.rho is not None else "epsilon"
        whole = budget.rho if budget.rho is not None else budget.epsilon
        part = "" if over == [ALL_DATA] else f" (partition {over[-1] or 'all data'})"
        fitting = (
            f"What would fit: a run without amplification with epsilon <= {room:g} at its "
            f"delta."
            if room > 0.0
            else "Nothing would fit any more."
        )
        raise BudgetExceededError(
            f"{what} would exceed the budget of {self.name!r}{part}: "
            f"{budget.describe()}; {unit} = {spent.value:.4g} of {whole:g} is spent or "
            f"reserved, by {concerned[over[-1]].runs} run(s). {fitting}",
            room,
        )


def account_key(dataset: str, period: str, partition: str) -> str:
    """By which entries name an account."""
    return canonical([dataset, period, partition])


def find(found: Transaction, name: str) -> Dataset:
    """A data set by name.

    Raises:
      LedgerError: if the ledger has none of that name.
    """
    defined = list(found.entries(dataset=name, kind="dataset"))
    if not defined:
        names = ", ".join(repr(each) for each in names_of(found)) or "none"
        raise LedgerError(
            f"The ledger has no data set {name!r}; it has {names}. Add it: "
            f"ledger.add_dataset({name!r}, epsilon=..., delta=...)."
        )
    body = defined[-1].body
    budgets: dict[str, Budget] = {}
    for entry in found.entries(dataset=name, kind="budget"):
        budget = Budget.from_json(entry.body)
        budgets[budget.period] = budget
    partitions: dict[str, str] = {}
    for entry in found.entries(dataset=name, kind="partitions"):
        for partition in entry.body["names"]:
            partitions[partition] = entry.body["disjoint_by"]
    return Dataset(
        name,
        body["unit"],
        body["adjacency"],
        body["version"],
        tuple(partitions),
        tuple(partitions.values()),
        tuple(budgets.values()),
    )


def names_of(found: Transaction) -> list[str]:
    """All data sets, in the order in which they were added."""
    return list(dict.fromkeys(str(e.dataset) for e in found.entries(kind="dataset")))


def set_budget(found: Transaction, who: str, name: str, budget: Budget) -> None:
    """Gives a data set a budget, or changes that of its period.

    Raises:
      ValueError: if its period overlaps that of another budget.
      LedgerError: if the ledger has no data set of that name.
    """
    known = find(found, name)
    if budget in known.budgets:
        return
    for other in known.budgets:
        if other.period != budget.period and other.overlaps(budget):
            raise ValueError(
                f"Periods of a data set must not overlap: a run spends from one. "
                f"Found {budget.describe()} and {other.describe()}."
            )
    found.append(who, "budget", canonical(budget.to_json()), name)


def first_budget(found: Transaction, who: str, name: str, budget: Budget) -> None:
    """Gives a data set a budget, if it has none of this period yet.

    Raises:
      ValueError: if it has another one.
    """
    for known in find(found, name).budgets:
        if known.period == budget.period and known != budget:
            raise ValueError(
                f"The data set {name!r} has the budget {known.describe()}, found "
                f"{budget.describe()}. To change what may be spent, say so: "
                f"ledger.set_budget({name!r}, ...)."
            )
    set_budget(found, who, name, budget)
