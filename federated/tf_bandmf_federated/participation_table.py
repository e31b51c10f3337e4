"""What is known of past participations: who may come, and what was measured."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from tf_bandmf import MinSep
from tf_bandmf_federated.accounting import MeasuredParticipation
from tf_bandmf_federated.tags import NEVER


@dataclasses.dataclass(frozen=True)
class Cohort:
    """Who was selected for a round, and their records before it.

    Attributes:
      round_number: from 0.
      clients: numbers of the clients, in the order of their data sets.
      last_rounds: of each before this round, -1 for never.
      participations: of each before this round.
    """

    round_number: int
    clients: tuple[int, ...]
    last_rounds: tuple[int, ...]
    participations: tuple[int, ...]

    def to_config(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Cohort:
        lists = {k: tuple(map(int, v)) for k, v in config.items() if k != _ROUND}
        return cls(round_number=int(config[_ROUND]), **lists)


_ROUND = "round_number"


class ParticipationTable:
    """Last round and number of participations of each client, and the smallest gap.

    Args:
      num_clients: N; clients are numbered from 0.
      participation: b, and k if it is stated.
    """

    def __init__(self, num_clients: int, participation: MinSep) -> None:
        self._participation = participation
        self._last_rounds = np.full(num_clients, NEVER, np.int64)
        self._participations = np.zeros(num_clients, np.int64)
        self._smallest_gap: int | None = None

    def eligible(self, round_number: int) -> np.ndarray:
        """Who may take part now: bool, shape [num_clients]."""
        never = self._last_rounds < 0
        b = self._participation.min_separation
        free = never | (round_number - self._last_rounds >= b)
        limit = self._participation.max_participations
        return free if limit is None else free & (self._participations < limit)

    def cohort(self, round_number: int, clients: np.ndarray) -> Cohort:
        """The clients with their records as they are now."""
        return Cohort(
            round_number,
            tuple(clients.tolist()),
            tuple(self._last_rounds[clients].tolist()),
            tuple(self._participations[clients].tolist()),
        )

    def record(self, cohort: Cohort) -> None:
        """They took part, or are taken to have done so."""
        clients = np.array(cohort.clients, np.int64)
        gaps = [cohort.round_number - t for t in cohort.last_rounds if t >= 0]
        if gaps:
            known = [] if self._smallest_gap is None else [self._smallest_gap]
            self._smallest_gap = min(gaps + known)
        self._last_rounds[clients] = cohort.round_number
        self._participations[clients] += 1

    def measured(self, num_rounds: int) -> MeasuredParticipation:
        """What was measured in the first `num_rounds` rounds."""
        return MeasuredParticipation(
            num_rounds=num_rounds,
            num_clients=int(np.count_nonzero(self._participations)),
            min_separation=self._smallest_gap,
            max_participations=int(self._participations.max(initial=0)),
            num_participations=int(self._participations.sum()),
        )

    def copy(self) -> ParticipationTable:
        """A table that can go another way."""
        copied = ParticipationTable(len(self._last_rounds), self._participation)
        copied._last_rounds = self._last_rounds.copy()
        copied._participations = self._participations.copy()
        copied._smallest_gap = self._smallest_gap
        return copied

    def to_config(self) -> dict[str, Any]:
        """Plain values: the clients that took part, as [client, last round, count]."""
        clients = np.flatnonzero(self._participations)
        columns = (clients, self._last_rounds[clients], self._participations[clients])
        return {
            "clients": np.stack(columns, axis=1).tolist(),
            "smallest_gap": self._smallest_gap,
        }

    def load_config(self, config: dict[str, Any]) -> None:
        """Takes over what `to_config` gave."""
        rows = np.array(config["clients"], np.int64).reshape(-1, 3)
        self._last_rounds[rows[:, 0]] = rows[:, 1]
        self._participations[rows[:, 0]] = rows[:, 2]
        self._smallest_gap = config["smallest_gap"]
