"""Selects the cohort of a round from the devices that are available and eligible."""

from __future__ import annotations

import dataclasses
import math
import random
import secrets
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from tf_bandmf import MinSep
from tf_bandmf.accounting.checks import whole_number
from tf_bandmf_federated.eligibility import may_take_part
from tf_bandmf_federated.ledger import Ledger

# Each query of the ledger reads the histories of at least this many devices, or of all
# remaining devices if fewer remain.
_LOOKED_UP = 2_000


@dataclasses.dataclass(frozen=True)
class Selected:
    """The devices that are selected for a round.

    Attributes:
      names: names of the devices.
      past: each device's last round (or `NEVER`) and number of participations, before
        this round; int64, shape [devices, 2].
      available: number of available devices.
      eligible: number of available devices that may take part. If more than 2,000
        devices are available, the server may check only a random sample of them. The
        number is then an estimate.
    """

    names: tuple[str, ...]
    past: np.ndarray
    available: int
    eligible: int


@dataclasses.dataclass(frozen=True)
class Cohorts:
    """Selects devices uniformly at random from the available and eligible devices.

    A device is eligible if the plan allows it to take part in the round. Its earlier
    participations are read from the ledger, including those in rounds without a result.

    Args:
      ledger: the run's ledger.
      present: function that maps a round number to the names of the available devices.
      participation: the plan's min separation b and, if limited, its maximum number of
        participations k.
      over_selection: factor >= 1 by which the number of wanted devices is multiplied.
      enough: minimum number of eligible devices to look for, even if fewer devices are
        selected.
      wait: function of the numbers of available and of eligible devices. If it returns
        True, `present` is called again, and devices are selected anew. The function may
        sleep or raise an error.
      search: function that is called while devices of an interrupted round are missing.
        If it returns True, `present` is called again.
      seed: seed of the selection; the privacy guarantee does not depend on it.

    Raises:
      ValueError: if `over_selection` is below 1 or not finite.
    """

    ledger: Ledger
    present: Callable[[int], Sequence[str]]
    participation: MinSep
    over_selection: float = 1.0
    enough: int = 1
    wait: Callable[[int, int], bool] = lambda available, eligible: False
    search: Callable[[], bool] = lambda: False
    seed: str = dataclasses.field(default_factory=lambda: secrets.token_hex(32))

    def __post_init__(self) -> None:
        if not (math.isfinite(self.over_selection) and self.over_selection >= 1.0):
            raise ValueError(
                f"over_selection must be finite and >= 1, found {self.over_selection}."
            )

    def select(self, round_number: int, wanted: int) -> Selected:
        """Selects devices for a new round.

        If too few devices are available and eligible, all of them are selected.

        Args:
          round_number: the round, from 0.
          wanted: number of devices, before multiplication by `over_selection`.
        """
        asked = math.ceil(whole_number("wanted", wanted) * self.over_selection)
        while True:
            present = self.present(round_number)
            target = max(asked, self.enough)
            free, looked_at = self._draw_free(present, round_number, target)
            available = len(present)
            eligible = len(free)
            if looked_at < available:
                eligible = round(available * len(free) / looked_at)
            if not self.wait(available, eligible):
                break
        names = tuple(sorted(free[:asked]))
        past = self.ledger.history(names, round_number)
        return Selected(names, past, available, eligible)

    def select_again(self, round_number: int, names: Sequence[str]) -> Selected:
        """Returns an interrupted round's selection, which lists the same devices again.

        If some of the devices are not available, this method calls `search` until they
        are available, or until `search` returns False.

        Args:
          round_number: the round, from 0.
          names: names of the devices that the ledger has recorded for the round.

        Raises:
          ValueError: if one of the devices must not take part in the round.
        """
        past = self.ledger.history(names, round_number)
        if not np.all(self._may(past, round_number)):
            raise ValueError(
                f"The plan excludes some devices that the ledger lists for round "
                f"{round_number}. So the ledger was changed. Restore the original file."
            )
        while True:
            present = self.present(round_number)
            if not set(names).difference(present) or not self.search():
                return Selected(tuple(names), past, len(present), len(names))

    def _may(self, past: np.ndarray, round_number: int) -> np.ndarray:
        stated = self.participation
        b, k = stated.min_separation, stated.max_participations
        last_rounds, counts = past.T
        return may_take_part(last_rounds, counts, round_number, b, k)

    def _draw_free(
        self, present: Sequence[str], round_number: int, target: int
    ) -> tuple[list[str], int]:
        """Returns eligible devices, and the number of devices that were looked up.

        The eligible devices are in random order, and every prefix of the list is a
        uniform sample of all eligible devices. The list has at least `target` devices,
        unless fewer are eligible.
        """
        # A dictionary keeps the order of the names, and removes duplicates.
        free: dict[str, None] = {}
        looked_at = 0
        order = shuffled(len(present), f"{self.seed} {round_number}")
        while looked_at < len(present) and len(free) < target:
            size = min(max(_LOOKED_UP, 2 * target), len(present) - looked_at)
            names = [present[next(order)] for _ in range(size)]
            may = self._may(self.ledger.history(names, round_number), round_number)
            free.update((name, None) for name, is_free in zip(names, may) if is_free)
            looked_at += size
        return list(free), looked_at


def shuffled(size: int, seed: str | None = None) -> Iterator[int]:
    """Yields the integers 0, ..., size - 1 in random order (Fisher-Yates shuffle)."""
    # The privacy guarantee does not depend on this randomness. Without a seed, Python
    # takes one from the operating system.
    generator = random.Random(seed)
    moved: dict[int, int] = {}
    for i in range(size):
        j = generator.randrange(i, size)
        yield moved.get(j, j)
        moved[j] = moved.pop(i, i)
