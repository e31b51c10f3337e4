"""Cohorts of devices that come and go: who may take part, of those that are there."""

from __future__ import annotations

import dataclasses
import json
import math
import random
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from tf_bandmf import MinSep
from tf_bandmf.participation.checks import positive_int
from tf_bandmf_federated.accounting import MeasuredParticipation
from tf_bandmf_federated.digests import digest_of
from tf_bandmf_federated.participation_table import Cohort, ParticipationTable

_FORMAT = "tf-bandmf-federated cohorts 1"


@dataclasses.dataclass(frozen=True)
class Selected:
    """Who is asked in a round.

    Attributes:
      names: of the devices.
      available: how many were there.
      eligible: how many of these might take part.
    """

    names: tuple[str, ...]
    available: int
    eligible: int


class AvailableCohorts:
    """Selects, uniformly, of the devices that are there and may take part.

    It implements `rounds.Cohorts`. Who was selected counts as having taken part,
    whatever becomes of it. Make it by `AvailableCohorts.of(...)`.
    """

    _present: ClassVar[Callable[[], Sequence[str]]]
    _participation: ClassVar[MinSep]
    _over_selection: ClassVar[float]
    _wait: ClassVar[Callable[[int, int], bool]]

    def __init__(self) -> None:
        if not hasattr(type(self), "_participation"):
            raise TypeError("Make cohorts by AvailableCohorts.of(...).")
        self._round = 0
        self._cohort: Cohort | None = None
        self._table = ParticipationTable((), self._participation)

    @classmethod
    def of(
        cls,
        present: Callable[[], Sequence[str]],
        participation: MinSep,
        over_selection: float = 1.0,
        wait: Callable[[int, int], bool] = lambda available, eligible: False,
    ) -> AvailableCohorts:
        """Cohorts before round 0.

        Args:
          present: gives the names of the devices that are there now.
          participation: b, and k if it is stated.
          over_selection: >= 1; so many times the devices that are wanted are asked.
          wait: whether to look again, from how many devices are there and how many of
            them may take part. It sleeps as long as it likes, and may raise.

        Raises:
          ValueError: if `over_selection` is below 1 or not finite.
        """
        if not (math.isfinite(over_selection) and over_selection >= 1.0):
            raise ValueError(
                f"over_selection must be finite and >= 1, found {over_selection}."
            )
        # A class of its own: what is saved is loaded by the class, without arguments.
        bound = type(
            cls.__name__,
            (cls,),
            {
                "_present": staticmethod(present),
                "_participation": participation,
                "_over_selection": over_selection,
                "_wait": staticmethod(wait),
            },
        )
        return bound()

    @property
    def round_number(self) -> int:
        """The round, from 0, that `select` selects for next."""
        return self._round

    @property
    def cohort(self) -> tuple[str, ...]:
        """Names of the last selection."""
        return () if self._cohort is None else self._cohort.clients

    def select(self, k: int | None = None) -> Selected:
        """Devices for this round; fewer if not enough are there and may take part.

        Args:
          k: wanted; `over_selection` times as many are asked.
        """
        wanted = math.ceil(positive_int("k", k) * self._over_selection)
        while True:
            present = sorted(set(type(self)._present()))
            free = self._table.free(self._round, present)
            if not type(self)._wait(len(present), len(free)):
                break
        # No privacy is claimed from how they are drawn.
        chosen = random.SystemRandom().sample(free, min(wanted, len(free)))
        self.count_round(sorted(chosen))
        return Selected(self.cohort, len(present), len(free))

    def select_again(self, clients: Sequence[str], k: int | None = None) -> Selected:
        """The devices that a round was begun with: those that are there are asked."""
        present = set(type(self)._present())
        free = self._table.free(self._round, clients)
        if len(free) != len(clients):
            raise ValueError(
                f"Round {self._round} was begun with devices that may not take part in "
                f"it: ledger and state are not of one run."
            )
        self.count_round(clients)
        return Selected(self.cohort, len(present), len(clients))

    def digest_of_selected(self, selected: Selected) -> str:
        """Of the names: the devices' data never leave them."""
        return digest_of(list(selected.names))

    def count_round(self, clients: Sequence[str]) -> None:
        """Counts these devices' participation in this round.

        Raises:
          ValueError: if a name comes twice.
        """
        if len(set(clients)) != len(clients):
            raise ValueError("A device is twice in a round.")
        self._cohort = self._table.cohort(self._round, clients)
        self._table.record(self._cohort)
        self._round += 1

    def measured(self) -> MeasuredParticipation:
        """Separation and participations of the selections so far."""
        return self._table.measured(self._round)

    def to_bytes(self) -> bytes:
        """As JSON; it names who took part."""
        content = {
            "format": _FORMAT,
            "round": self._round,
            "cohort": None if self._cohort is None else self._cohort.to_config(),
            "table": self._table.to_config(),
        }
        return json.dumps(content, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, buffer: bytes) -> AvailableCohorts:
        """What `to_bytes` gave.

        Raises:
          ValueError: if it is something else.
        """
        content = json.loads(bytes(buffer))
        if content.get("format") != _FORMAT:
            raise ValueError(f"These bytes are no cohorts of format {_FORMAT!r}.")
        found = cls()
        found._round = content["round"]
        if content["cohort"] is not None:
            found._cohort = Cohort.from_config(content["cohort"])
        found._table.load_config(content["table"])
        return found

    def __deepcopy__(self, memo: dict[int, Any]) -> AvailableCohorts:
        copied = type(self)()
        copied._round, copied._cohort = self._round, self._cohort
        copied._table = self._table.copy()
        return copied
