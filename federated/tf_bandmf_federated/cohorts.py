"""Selection of a round's cohort among the available devices that may take part."""

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

_LOOKED_UP = 2_000  # devices at a time


@dataclasses.dataclass(frozen=True)
class Selected:
    """The devices that are asked in a round.

    Attributes:
      names: names of the devices.
      past: each device's record before the round, int64, shape [devices, 2]: last round,
        or `NEVER`, and number of participations.
      available: number of available devices.
      eligible: number of these that may take part. If more than 2,000 are available, it is
        estimated from those that were looked up until enough were found.
    """

    names: tuple[str, ...]
    past: np.ndarray
    available: int
    eligible: int


@dataclasses.dataclass(frozen=True)
class Cohorts:
    """Selects uniformly among the available devices that may take part.

    Which devices took part before is read from the ledger, which counts rounds without a
    result, too; this class keeps no record.

    Args:
      ledger: the run's ledger.
      present: returns the names of the devices that are available in a round.
      participation: b, and k if it is stated.
      over_selection: >= 1; this many times the wanted number of devices are asked.
      enough: number of eligible devices to look for, if larger than the number asked.
      wait: function of the numbers of available and of eligible devices; returns whether
        to look again. It may sleep before, and may raise.
      search: returns whether to look again for the devices that a round was begun with.
      seed: seed of the random choice; no privacy is claimed from this randomness.

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
        """The devices to ask in a round; fewer if too few are eligible.

        Args:
          round_number: from 0.
          wanted: `over_selection` times as many are asked.
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
        """The devices that a round was begun with, after a search for absent ones."""
        past = self.ledger.history(names, round_number)
        if not np.all(self._may(past, round_number)):
            raise ValueError(
                f"Round {round_number} was begun with devices that may not take part in "
                f"it: the ledger was changed."
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
        """Eligible devices, and the number of devices that were looked up to find them.

        At least `target` devices, or all if there are fewer, in random order: the first
        ones are a uniform choice among all eligible devices.
        """
        free: dict[str, None] = {}  # in this order, without duplicates
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
    """The numbers below `size` in random order, made one by one (Fisher and Yates)."""
    # No privacy is claimed from how devices are drawn. Without a seed, Python takes one
    # from the operating system.
    generator = random.Random(seed)
    moved: dict[int, int] = {}
    for i in range(size):
        j = generator.randrange(i, size)
        yield moved.get(j, j)
        moved[j] = moved.pop(i, i)
