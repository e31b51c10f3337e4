"""The record of past participations: who may take part, and what was measured."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tf_bandmf import MinSep
from tf_bandmf_federated.accounting import Counts, MeasuredParticipation
from tf_bandmf_federated.eligibility import NEVER, may_take_part


class Cohort(NamedTuple):
    """Who was selected for a round, and their records before it.

    Attributes:
      round_number: from 0.
      clients: names of the clients, in the order of their data sets.
      last_rounds: of each before this round, -1 for never.
      participations: of each before this round.
    """

    round_number: int
    clients: tuple[str, ...]
    last_rounds: tuple[int, ...]
    participations: tuple[int, ...]


class ParticipationTable:
    """Last round and number of participations of each client, and the smallest gap.

    The record of a client permanently belongs to its name: a client that leaves and
    comes back continues with it.

    Args:
      names: of the clients that can be selected now, in the order of their numbers.
      participation: b, and k if it is stated.
    """

    def __init__(self, names: Sequence[str], participation: MinSep) -> None:
        self._names = tuple(names)
        self._participation = participation
        # Last round and participations of who took part, also if it is not here now.
        self._records: dict[str, tuple[int, int]] = {}
        self._counts = Counts()

    def eligible(self, round_number: int) -> np.ndarray:
        """Who may take part now: bool, shape [num_clients]."""
        records = np.array([self._record_of(name) for name in self._names], np.int64)
        last_rounds, participations = records.reshape(-1, 2).T
        return may_take_part(
            last_rounds, participations, round_number, self._participation
        )

    def cohort(self, round_number: int, names: Sequence[str]) -> Cohort:
        """The clients with their records as they are now."""
        records = [self._record_of(name) for name in names]
        last_rounds, participations = zip(*records) if records else ((), ())
        return Cohort(round_number, tuple(names), last_rounds, participations)

    def names_of(self, numbers: np.ndarray) -> tuple[str, ...]:
        """The names of clients, by their numbers."""
        return tuple(self._names[number] for number in numbers)

    def record(self, cohort: Cohort) -> None:
        """Records that these clients took part, or count as having taken part."""
        for name in cohort.clients:
            last, count = self._record_of(name)
            self._counts.add(cohort.round_number, last, count)
            self._records[name] = (cohort.round_number, count + 1)

    def measured(self, num_rounds: int) -> MeasuredParticipation:
        """What was measured in the first `num_rounds` rounds."""
        return self._counts.measured(num_rounds)

    def copy(self) -> ParticipationTable:
        """An independent copy of the table."""
        copied = copy.copy(self)
        copied._records, copied._counts = dict(self._records), copy.copy(self._counts)
        return copied

    def to_config(self) -> dict[str, Any]:
        """Plain values: [last round, participations] by name of who took part."""
        clients = {name: list(record) for name, record in self._records.items()}
        return {"clients": clients, "smallest_gap": self._counts.smallest_gap}

    def load_config(self, config: dict[str, Any]) -> None:
        """Takes over what `to_config` gave, of a table with any names."""
        self._records = {
            name: (last, count) for name, (last, count) in config["clients"].items()
        }
        counts = [count for _, count in self._records.values()]
        gap, most = config["smallest_gap"], max(counts, default=0)
        self._counts = Counts(len(counts), gap, most, sum(counts))

    def _record_of(self, name: str) -> tuple[int, int]:
        return self._records.get(name, (NEVER, 0))
