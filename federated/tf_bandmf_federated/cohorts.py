"""Cohorts of devices that come and go: who may take part, of those that are there."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import random
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tf_bandmf import MinSep
from tf_bandmf.participation.checks import positive_int
from tf_bandmf_federated.accounting import MeasuredParticipation
from tf_bandmf_federated.digests import digest_of
from tf_bandmf_federated.eligibility import may_take_part
from tf_bandmf_federated.ledger import Ledger

_FORMAT = "tf-bandmf-federated cohorts 2"
_LOOKED_UP = 2_000  # devices at a time


@dataclasses.dataclass(frozen=True)
class Selected:
    """Who is asked in a round.

    Attributes:
      names: of the devices.
      available: how many were there.
      eligible: how many of these might take part. If more than 2,000 are there, it is
        estimated from as many of them as it took to find enough.
    """

    names: tuple[str, ...]
    available: int
    eligible: int


class AvailableCohorts:
    """Selects, uniformly, of the devices that are there and may take part.

    It implements `rounds.Cohorts`. Who took part is what the ledger says of the rounds
    before, whatever became of them: nothing is kept here but the round's number, so that
    an older state goes on with all that is known.

    Args:
      ledger: of the run.
      present: gives the names of the devices that are there now.
      participation: b, and k if it is stated.
      over_selection: >= 1; so many times the devices that are wanted are asked.
      enough: eligible devices that are looked for, if more than are asked.
      wait: whether to look again, from how many devices are there and how many of them
        may take part. It sleeps as long as it likes, and may raise.
      search: whether to look again for devices that a round was begun with.

    Attributes:
      round_number: the round, from 0, that `select` selects for next.
      cohort: names of the last selection.

    Raises:
      ValueError: if `over_selection` is below 1 or not finite.
    """

    def __init__(
        self,
        ledger: Ledger,
        present: Callable[[], Sequence[str]],
        participation: MinSep,
        over_selection: float = 1.0,
        enough: int = 1,
        wait: Callable[[int, int], bool] = lambda available, eligible: False,
        search: Callable[[], bool] = lambda: False,
    ) -> None:
        if not (math.isfinite(over_selection) and over_selection >= 1.0):
            raise ValueError(
                f"over_selection must be finite and >= 1, found {over_selection}."
            )
        self._ledger = ledger
        self._present = present
        self._participation = participation
        self._over_selection = over_selection
        self._enough = enough
        self._wait = wait
        self._search = search
        self.round_number = 0
        self.cohort: tuple[str, ...] = ()

    def select(self, k: int | None = None) -> Selected:
        """Devices for this round; fewer if not enough are there and may take part.

        Args:
          k: wanted; `over_selection` times as many are asked.
        """
        wanted = math.ceil(positive_int("k", k) * self._over_selection)
        while True:
            present = self._present()
            free, looked_at = self._found(present, max(wanted, self._enough))
            available = len(present)
            eligible = len(free)
            if looked_at < available:
                eligible = round(available * len(free) / looked_at)
            if not self._wait(available, eligible):
                break
        self.count_round(sorted(free[:wanted]))
        return Selected(self.cohort, available, eligible)

    def select_again(self, clients: Sequence[str], k: int | None = None) -> Selected:
        """The devices that a round was begun with: those that are there are asked."""
        if len(self._free(clients)) != len(clients):
            raise ValueError(
                f"Round {self.round_number} was begun with devices that may not take "
                f"part in it: ledger and state are not of one run."
            )
        self.count_round(clients)
        while True:
            present = self._present()
            if not set(clients).difference(present) or not self._search():
                return Selected(self.cohort, len(present), len(clients))

    def digest_of_selected(self, selected: Selected) -> str:
        """A digest of the names: the devices' data never leave them."""
        return digest_of(list(selected.names))

    def count_round(self, clients: Sequence[str]) -> None:
        """Goes on to the next round, after one of these devices.

        Raises:
          ValueError: if a name comes twice.
        """
        if len(set(clients)) != len(clients):
            raise ValueError("A device is twice in a round.")
        self.cohort = tuple(clients)
        self.round_number += 1

    def measured(self) -> MeasuredParticipation:
        """Separation and participations of the rounds so far."""
        return self._ledger.measured(self.round_number)

    def to_bytes(self) -> bytes:
        """As JSON. Who took part is in the ledger."""
        return json.dumps({"format": _FORMAT, "round": self.round_number}).encode()

    def from_bytes(self, buffer: bytes) -> AvailableCohorts:
        """What `to_bytes` gave, of the same ledger.

        Raises:
          ValueError: if it is something else.
        """
        content = json.loads(bytes(buffer))
        if content.get("format") != _FORMAT:
            raise ValueError(
                f"These bytes are no cohorts of format {_FORMAT!r}: a run is finished "
                f"with the version that began it."
            )
        found = copy.copy(self)
        found.round_number, found.cohort = content["round"], ()
        return found

    def __deepcopy__(self, memo: dict[int, Any]) -> AvailableCohorts:
        return copy.copy(self)  # nothing in it changes but what is replaced

    def _free(self, names: Sequence[str]) -> list[str]:
        """Those who may take part in this round."""
        last_rounds, counts = self._ledger.records(names, self.round_number).T
        may = may_take_part(last_rounds, counts, self.round_number, self._participation)
        return [name for name, is_free in zip(names, may) if is_free]

    def _found(self, present: Sequence[str], target: int) -> tuple[list[str], int]:
        """At least so many who may take part, or all; and how many were looked at.

        In random order: the first of them are a uniform choice of all of them.
        """
        free: dict[str, None] = {}  # in this order, each once
        looked_at = 0
        order = _shuffled(len(present))
        while looked_at < len(present) and len(free) < target:
            size = min(max(_LOOKED_UP, 2 * target), len(present) - looked_at)
            names = [present[next(order)] for _ in range(size)]
            free.update(dict.fromkeys(self._free(names)))
            looked_at += size
        return list(free), looked_at


def _shuffled(size: int) -> Iterator[int]:
    """The numbers below `size` in random order, made one by one (Fisher and Yates)."""
    # No privacy is claimed from how devices are drawn.
    generator = random.Random(secrets.randbits(256))
    moved: dict[int, int] = {}
    for i in range(size):
        j = generator.randrange(i, size)
        yield moved.get(j, j)
        moved[j] = moved.pop(i, i)
