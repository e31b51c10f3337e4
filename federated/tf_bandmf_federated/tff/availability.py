"""Simulates which devices are available in a round.

Devices are available when they are charged, idle and on an unmetered network
(arXiv:2306.08153, section 3 and App. K), so the number of available devices varies with
the hour. An availability is a function that maps a round number and a device name to
the probability that the device is available, or to a bool. The privacy guarantee does
not depend on this randomness.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Sequence

from tf_bandmf.accounting.checks import check_positive

Availability = Callable[[int, str], float]


def diurnal(
    rounds_per_day: float, peak: float = 1.0, trough: float = 0.0, spread: float = 1.0
) -> Availability:
    """Returns an availability that depends on the time of day at the device.

    A hash of the device's name gives `phase` in [0, spread). The probability is

        trough + (peak - trough) (1 + cos(2 pi (round / rounds_per_day - phase))) / 2

    Args:
      rounds_per_day: the period in rounds, > 0; not necessarily an integer.
      peak: maximum probability, in (0, 1].
      trough: minimum probability, in [0, peak].
      spread: fraction of the day, in [0, 1], over which the devices' peaks are spread:
        1 for devices all over the world, 0 if all peaks are at the same time.

    Raises:
      ValueError: if an argument is out of range.
    """
    check_positive("rounds_per_day", rounds_per_day)
    if not (0.0 < peak <= 1.0 and 0.0 <= trough <= peak and 0.0 <= spread <= 1.0):
        raise ValueError(
            f"peak must be in (0, 1], trough in [0, peak] and spread in [0, 1], but "
            f"found peak={peak}, trough={trough} and spread={spread}."
        )

    def probability(round_number: int, name: str) -> float:
        phase = round_number / rounds_per_day - spread * _fraction(name)
        return trough + (peak - trough) * (1.0 + math.cos(2.0 * math.pi * phase)) / 2.0

    return probability


def present(
    availability: Availability, round_number: int, names: Sequence[str], seed: bytes
) -> list[str]:
    """Returns the available devices, drawn independently with a 32-byte seed.

    Raises:
      ValueError: if the availability returns a value that is not a probability.
    """
    generator = random.Random(f"{seed.hex()} {round_number}")
    there = []
    for name in names:
        chance = availability(round_number, name)
        if not 0 <= chance <= 1:
            raise ValueError(
                f"availability must return probabilities in [0, 1], found {chance}."
            )
        if generator.random() < chance:
            there.append(name)
    return there


@functools.lru_cache(maxsize=1 << 20)
def _fraction(name: str) -> float:
    """Maps a name to a pseudorandom number in [0, 1), the same on every machine."""
    return random.Random(f"availability {name}").random()
