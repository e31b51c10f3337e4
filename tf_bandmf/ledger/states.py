"""What was spent of a data set's budgets, and what would fit."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tf_bandmf.ledger import releases
from tf_bandmf.ledger.budgets import Budget, Spent
from tf_bandmf.ledger.datasets import Dataset
from tf_bandmf.ledger.store import Transaction


@dataclasses.dataclass(frozen=True)
class AccountState:
    """What was spent of one budget.

    Attributes:
      dataset, period, partition: whose budget; the partition is "" for data in none.
      budget: of the period.
      spent: the part of it that is reserved or settled.
      runs: how many.
      risk: probability that one of the simulated bounds fails.
    """

    dataset: str
    period: str
    partition: str
    budget: Budget
    spent: Spent
    runs: int
    risk: float


def spent(
    found: Transaction, dataset: Dataset, period: str | None
) -> list[AccountState]:
    """See `Ledger.spent`."""
    budgets = dataset.budgets if period is None else [dataset.budget_of(period)]
    return [
        AccountState(
            dataset.name,
            budget.period,
            partition,
            budget,
            budget.spent(balance),
            balance.runs,
            releases.risk_of(balance),
        )
        for budget in budgets
        for partition, balance in dataset.balances(found, budget.period).items()
    ]


def room(
    found: Transaction,
    dataset: Dataset,
    delta: float | None,
    partitions: str | Sequence[str],
) -> float:
    """See `Ledger.fits`."""
    names = dataset.check_partitions(partitions)
    budget = dataset.budget_at(found.moment())
    balances = dataset.balances(found, budget.period)
    concerned = [balances[name] for name in names or balances]
    return budget.room(concerned, delta, adjacency=dataset.neighbors)
