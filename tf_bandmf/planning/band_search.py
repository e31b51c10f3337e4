"""The best number of bands for a budget under cyclic Poisson sampling.

Fewer bands are amplified more, more bands correlate the noise better
(arXiv:2306.08153, Appendix F.4): the best number depends on the budget.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence
from fractions import Fraction
from typing import Callable

from tf_bandmf.accounting.checks import whole_number
from tf_bandmf.participation import FixedEpochOrder, MinSep, Participation
from tf_bandmf.planning import calibration, comparison
from tf_bandmf.strategies import FAMILIES, Family, dense, registry
from tf_bandmf.workloads import Workload

# General columns up to this much work, n * bands^2 of the largest candidate.
_LARGEST_GENERAL_WORK = 2**26
# Above this many steps the candidate without a limit of bands is BLT.
_LARGEST_DENSE = 2048
_DENSE_TOLERANCE = 1e-4


@dataclasses.dataclass(frozen=True)
class BandCandidate:
    """One number of bands.

    Attributes:
      bands: of C; n for a strategy without a limit of bands, which is not amplified.
      rmse: sqrt of the mean per-step squared error, times the noise standard deviation
        on raw C.
      noise_multiplier: noise standard deviation per unit of **column norm** of C.
    """

    bands: int
    rmse: float
    noise_multiplier: float


@dataclasses.dataclass(frozen=True)
class BandSearch:
    """What `best_bands` found.

    Attributes:
      mechanism: of the candidates, "banded" or "toeplitz:normalized" for instance.
      unlimited: mechanism of the candidate with n bands.
      candidates: by number of bands.
      num_steps: n.
    """

    mechanism: str
    unlimited: str
    candidates: tuple[BandCandidate, ...]
    num_steps: int

    @property
    def best(self) -> BandCandidate:
        """The candidate with the smallest RMSE."""
        return min(self.candidates, key=lambda candidate: candidate.rmse)


def powers_of_two(num_steps: int, epochs: int | Fraction) -> list[int]:
    """1, 2, 4, ... up to `n / k`, and n."""
    largest = int(num_steps / Fraction(epochs))
    return sorted({*registry.powers_of_two(largest), num_steps})


def default_mechanism(num_steps: int, candidates: Sequence[int]) -> str:
    """General columns as in the papers, Toeplitz where these would take minutes."""
    largest = max((b for b in candidates if b < num_steps), default=1)
    is_quick = num_steps * largest**2 <= _LARGEST_GENERAL_WORK
    return "banded" if is_quick else "toeplitz:normalized"


def best_bands(
    workload: Workload,
    epochs: int | Fraction,
    epsilon: float,
    delta: float,
    *,
    mechanism: str | None = None,
    candidates: Sequence[int] | None = None,
    progress: Callable[[str], None] | None = None,
) -> BandSearch:
    """Error and noise for each number of bands.

    With b bands sampling has b parts, and an example is sampled with probability
    `epochs * b / n` in its turn; at `b = n / epochs` nothing is amplified. The candidate
    n is a strategy without a limit of bands, not amplified, in fixed epoch order
    (`b in {1, 2, ..., m / B, n}` in Appendix F.4): the optimal dense strategy, or BLT for
    more than 2,048 steps. Where `epochs` does not divide n, it is for min-separation.

    Args:
      workload: A; gives n.
      epochs: k, expected participations of an example.
      epsilon: > 0.
      delta: in (0, 1).
      mechanism: "banded", "toeplitz" or "bsr", also with ":normalized"; by default the
        one of `default_mechanism`.
      candidates: numbers of bands; by default `powers_of_two`.
      progress: called with a text before each candidate.

    Raises:
      ValueError: on invalid arguments.
    """
    n = workload.num_steps
    if not 0 < epochs <= n:
        raise ValueError(f"epochs must be > 0 and <= num_steps = {n}, found {epochs}.")
    separation = max(1, int(n / Fraction(epochs)))
    calibrator = calibration.for_rates(
        "cyclic-poisson", n, separation, epochs, epsilon, delta
    )
    if candidates is None:
        candidates = powers_of_two(n, epochs)
    counts = sorted({_check(count, n, epochs) for count in candidates})
    if not counts:
        raise ValueError("Give at least one number of bands.")
    mechanism = mechanism or default_mechanism(n, counts)
    family, suffix = _family(mechanism)
    asserted = MinSep(separation, math.ceil(epochs))
    unlimited = "dense" if n <= _LARGEST_DENSE else "blt"
    banded = [count for count in counts if count < n or n == 1]
    assert family.build_many is not None
    strategies = family.build_many(workload, asserted, banded, bool(suffix))
    found = []
    for count in counts:
        if count in banded:
            if progress is not None:
                progress(f"{count} bands ({mechanism})")
            strategy = next(strategies)
            row = comparison.build_row(strategy, workload, asserted, calibrator)
        else:
            if progress is not None:
                progress(f"{count} bands ({unlimited})")
            row = _unlimited_row(workload, epochs, epsilon, delta, unlimited)
        found.append(BandCandidate(count, row.rmse, row.noise_multiplier))
    return BandSearch(mechanism, unlimited, tuple(found), n)


def _family(mechanism: str) -> tuple[Family, str]:
    name, *values = mechanism.split(":")
    known = [family for family in FAMILIES.values() if family.build_many is not None]
    found = [family for family in known if family.name == name]
    if not found or values not in ([], ["normalized"]):
        raise ValueError(
            f"mechanism must be {searched_families()}, without a number of bands, found "
            f"{mechanism!r}: cyclic sampling amplifies no other."
        )
    registry.parse(mechanism)
    return found[0], "".join(f":{value}" for value in values)


def searched_families() -> str:
    """The families whose number of bands can be searched for, as text."""
    known = sorted(f.name for f in FAMILIES.values() if f.build_many is not None)
    return f"{', '.join(known[:-1])} or {known[-1]}"


def _check(bands: int, num_steps: int, epochs: int | Fraction) -> int:
    largest = int(num_steps / Fraction(epochs))
    bands = whole_number("bands", bands)
    if bands > largest and bands != num_steps:
        raise ValueError(
            f"bands must be <= steps / epochs = {largest}, or {num_steps} for a strategy "
            f"without a limit of bands, found {bands}."
        )
    return bands


def _unlimited_row(
    workload: Workload,
    epochs: int | Fraction,
    epsilon: float,
    delta: float,
    mechanism: str,
) -> comparison.Row:
    n, epochs = workload.num_steps, Fraction(epochs)
    separation = max(1, int(n / epochs))
    participation: Participation = MinSep(separation, math.ceil(epochs))
    if epochs.denominator == 1 and n % epochs.numerator == 0:
        participation = FixedEpochOrder(separation, 1, epochs.numerator)
    began = time.perf_counter()
    if mechanism == "dense":
        strategy = dense(workload, participation, tolerance=_DENSE_TOLERANCE)
    else:
        strategy = registry.build_strategy(mechanism, workload, participation)
    seconds = time.perf_counter() - began
    calibrator = calibration.for_budget(participation, epsilon, delta)
    row = comparison.row(
        mechanism, strategy, workload, participation, calibrator, seconds
    )
    norm = float(strategy.matrix.column_norms().max())
    return dataclasses.replace(
        row, noise_multiplier=row.noise_stddev / norm, normalization="column_norm"
    )
