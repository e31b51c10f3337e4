"""What is known of past participations: who may come, and what was measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from tf_bandmf import MinSep
from tf_bandmf_federated.accounting import MeasuredParticipation
from tf_bandmf_federated.eligibility import NEVER, may_take_part


@dataclasses.dataclass(frozen=True)
class Cohort:
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

    def to_config(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Cohort:
        return cls(
            round_number=int(config["round_number"]),
            clients=tuple(map(str, config["clients"])),
            last_rounds=tuple(map(int, config["last_rounds"])),
            participations=tuple(map(int, config["participations"])),
        )


class ParticipationTable:
    """Last round and number of participations of each client, and the smallest gap.

    The record of a client belongs to its name, for good: a client that leaves and comes
    back goes on with it.

    Args:
      names: of the clients that can be selected now, each once; they are numbered in
        this order.
      participation: b, and k if it is stated.
    """

    def __init__(self, names: Sequence[str], participation: MinSep) -> None:
        self._names = tuple(names)
        self._numbers = {name: number for number, name in enumerate(self._names)}
        self._participation = participation
        self._last_rounds = np.full(len(self._names), NEVER, np.int64)
        self._participations = np.zeros(len(self._names), np.int64)
        # Who took part and cannot be selected now: last round and participations.
        self._away: dict[str, tuple[int, int]] = {}
        self._smallest_gap: int | None = None

    def eligible(self, round_number: int) -> np.ndarray:
        """Who may take part now: bool, shape [num_clients]."""
        return may_take_part(
            self._last_rounds,
            self._participations,
            round_number,
            self._participation.min_separation,
            self._participation.max_participations,
        )

    def cohort(self, round_number: int, names: Sequence[str]) -> Cohort:
        """The clients with their records as they are now."""
        records = [self._record_of(name) for name in names]
        return Cohort(
            round_number,
            tuple(names),
            tuple(last for last, _ in records),
            tuple(count for _, count in records),
        )

    def names_of(self, numbers: np.ndarray) -> tuple[str, ...]:
        """The names of clients, by their numbers."""
        return tuple(self._names[number] for number in numbers)

    def record(self, cohort: Cohort) -> None:
        """They took part, or are taken to have done so."""
        for name in cohort.clients:
            last, count = self._record_of(name)
            if last != NEVER:
                gap = cohort.round_number - last
                known = gap if self._smallest_gap is None else self._smallest_gap
                self._smallest_gap = min(gap, known)
            self._set(name, cohort.round_number, count + 1)

    def measured(self, num_rounds: int) -> MeasuredParticipation:
        """What was measured in the first `num_rounds` rounds."""
        away = np.array([count for _, count in self._away.values()], np.int64)
        counts = np.concatenate([self._participations, away])
        return MeasuredParticipation(
            num_rounds=num_rounds,
            num_clients=int(np.count_nonzero(counts)),
            min_separation=self._smallest_gap,
            max_participations=int(counts.max(initial=0)),
            num_participations=int(counts.sum()),
        )

    def copy(self) -> ParticipationTable:
        """A table that can go another way."""
        copied = ParticipationTable(self._names, self._participation)
        copied._last_rounds = self._last_rounds.copy()
        copied._participations = self._participations.copy()
        copied._away = dict(self._away)
        copied._smallest_gap = self._smallest_gap
        return copied

    def to_config(self) -> dict[str, Any]:
        """Plain values: [last round, participations] by name of who took part."""
        present = {
            self._names[number]: [int(last), int(count)]
            for number, (last, count) in enumerate(
                zip(self._last_rounds, self._participations)
            )
            if count
        }
        away = {name: list(record) for name, record in self._away.items()}
        return {"clients": {**present, **away}, "smallest_gap": self._smallest_gap}

    def load_config(self, config: dict[str, Any]) -> None:
        """Takes over what `to_config` gave, of a table with any names."""
        for name, (last, count) in config["clients"].items():
            self._set(name, int(last), int(count))
        self._smallest_gap = config["smallest_gap"]

    def _record_of(self, name: str) -> tuple[int, int]:
        number = self._numbers.get(name)
        if number is None:
            return self._away.get(name, (NEVER, 0))
        return int(self._last_rounds[number]), int(self._participations[number])

    def _set(self, name: str, last: int, count: int) -> None:
        number = self._numbers.get(name)
        if number is None:
            self._away[name] = (last, count)
        else:
            self._last_rounds[number] = last
            self._participations[number] = count
