"""Models of which devices are available in a round, for simulation.

Devices come when they are charged, idle and on an unmetered network
(arXiv:2306.08153, section 3 and App. K): fewer at some hours than at others. A model
gives each client's probability for each round, from which `MinSepDataSource` draws.
Nothing is claimed from this randomness.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import hashlib
from collections.abc import Callable, Mapping

import numpy as np

from tf_bandmf.accounting.checks import check_positive
from tf_bandmf.sampling.samplers import random_words

Names = tuple[str, ...]


class Availability(abc.ABC):
    """Who is available when: a pure function of the round and the clients' names."""

    @abc.abstractmethod
    def probabilities(self, round_number: int, client_ids: Names) -> np.ndarray:
        """Each client's probability of being available, float64, shape [num_clients]."""

    def present(self, round_number: int, client_ids: Names, seed: bytes) -> np.ndarray:
        """Who is available: bool, shape [num_clients], drawn independently per client.

        Args:
          round_number: from 0.
          client_ids: in their fixed order.
          seed: 32 bytes; the same seed and round give the same draw.

        Raises:
          ValueError: if the model gives anything but probabilities.
        """
        chances = np.asarray(self.probabilities(round_number, client_ids), np.float64)
        count = len(client_ids)
        if chances.shape != (count,) or not np.all((chances >= 0) & (chances <= 1)):
            raise ValueError(
                f"availability must give {count} probabilities in [0, 1], found "
                f"{chances}."
            )
        return _fractions(random_words(seed, round_number, count)) < chances

    @abc.abstractmethod
    def describe(self) -> str:
        """One sentence; a saved iterator continues only with an equal one."""


@dataclasses.dataclass(frozen=True)
class Always(Availability):
    """Every client is available in every round."""

    def probabilities(self, round_number: int, client_ids: Names) -> np.ndarray:
        return np.ones(len(client_ids))

    def describe(self) -> str:
        return "every client is available in every round"


@dataclasses.dataclass(frozen=True)
class Independent(Availability):
    """Each client is available with one probability, independently in each round.

    Args:
      probability: in (0, 1].
    """

    probability: float

    def __post_init__(self) -> None:
        if not 0.0 < self.probability <= 1.0:
            raise ValueError(
                f"probability must be in (0, 1], found {self.probability}."
            )

    def probabilities(self, round_number: int, client_ids: Names) -> np.ndarray:
        return np.full(len(client_ids), self.probability)

    def describe(self) -> str:
        return (
            f"each client is available with probability {self.probability:g}, "
            f"independently in each round"
        )


@dataclasses.dataclass(frozen=True)
class Diurnal(Availability):
    """Probabilities that rise and fall with the hour, which differs between clients.

    `trough + (peak - trough) (1 + cos(2 pi (round / rounds_per_day - phase))) / 2`

    Args:
      rounds_per_day: the period, > 0; it need not be whole.
      peak: largest probability, in (0, 1].
      trough: smallest probability, in [0, peak].
      phases: when each client peaks, as a fraction of the day in [0, 1); None to derive
        it from a hash of the client's name, which spreads the peaks over `spread`.
      spread: in [0, 1], the fraction of the day over which hashed peaks are spread: 1
        for clients all over the world, 0 for all at the same hour.
    """

    rounds_per_day: float
    peak: float = 1.0
    trough: float = 0.0
    phases: Mapping[str, float] | None = None
    spread: float = 1.0

    def __post_init__(self) -> None:
        check_positive("rounds_per_day", self.rounds_per_day)
        if not (0.0 < self.peak <= 1.0 and 0.0 <= self.trough <= self.peak):
            raise ValueError(
                f"peak must be in (0, 1] and trough in [0, peak], found "
                f"{self.peak} and {self.trough}."
            )
        if not 0.0 <= self.spread <= 1.0:
            raise ValueError(f"spread must be in [0, 1], found {self.spread}.")

    def probabilities(self, round_number: int, client_ids: Names) -> np.ndarray:
        if self.phases is None:
            phases = self.spread * _hashed_fractions(client_ids)
        else:
            phases = self._given_phases(client_ids)
        angle = 2.0 * np.pi * (round_number / self.rounds_per_day - phases)
        return self.trough + (self.peak - self.trough) * (1.0 + np.cos(angle)) / 2.0

    def _given_phases(self, client_ids: Names) -> np.ndarray:
        assert self.phases is not None
        missing = [client for client in client_ids if client not in self.phases]
        if missing:
            raise ValueError(
                f"phases has no entry for {len(missing)} clients, the first of them "
                f"{missing[0]!r}. Give one phase per client, or phases=None."
            )
        return np.array([self.phases[client] for client in client_ids], np.float64)

    def describe(self) -> str:
        if self.phases is None:
            where = f"peaks spread over {self.spread:g} of the day by client"
        else:
            content = repr(sorted(self.phases.items())).encode()
            where = f"given peaks, SHA-256 {hashlib.sha256(content).hexdigest()[:16]}"
        return (
            f"diurnal: probabilities between {self.trough:g} and {self.peak:g} with a "
            f"period of {self.rounds_per_day:g} rounds; {where}"
        )


@dataclasses.dataclass(frozen=True)
class ByFunction(Availability):
    """Clients are available when a function says so.

    Args:
      function: function of round and client's name; True if the client is available.
        It must be pure: after a restart, it must give the same answers.
      description: what it does.
    """

    function: Callable[[int, str], bool]
    description: str = "a function of round and client"

    def probabilities(self, round_number: int, client_ids: Names) -> np.ndarray:
        answers = [bool(self.function(round_number, client)) for client in client_ids]
        return np.array(answers, np.float64)

    def describe(self) -> str:
        return self.description


def as_availability(value: Availability | Callable[[int, str], bool]) -> Availability:
    """A model, or a function that becomes one.

    Raises:
      TypeError: if it is neither.
    """
    if isinstance(value, Availability):
        return value
    if callable(value):
        return ByFunction(value)
    raise TypeError(
        f"availability must be an Availability or a function of (round, client id), "
        f"found {type(value).__name__}."
    )


@functools.lru_cache(maxsize=4)
def _hashed_fractions(client_ids: Names) -> np.ndarray:
    """A number in [0, 1) for each name, the same on every machine."""
    digests = (
        hashlib.blake2b(client.encode(), digest_size=8, person=b"availability").digest()
        for client in client_ids
    )
    return _fractions(np.frombuffer(b"".join(digests), "<u8"))


def _fractions(words: np.ndarray) -> np.ndarray:
    """Uniform numbers in [0, 1) from 64 random bits each."""
    # 53 bits: with more, the largest words would round up to 1.
    return (words >> np.uint64(11)) / 2.0**53
