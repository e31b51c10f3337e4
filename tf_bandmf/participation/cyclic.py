"""What the participations with parts in turn share."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from typing import ClassVar

from tf_bandmf.participation.base import Participation
from tf_bandmf.participation.checks import check_sizes


@dataclasses.dataclass(frozen=True)
class Cyclic(Participation):
    """The examples are split into b fixed parts, which take turns: `j` is in `j mod b`.

    Args:
      num_examples: m, size of the training set.
      batch_size: B.
      num_parts: b; strategies with at most b bands can be accounted for.
    """

    num_examples: int
    batch_size: int
    num_parts: int
    has_fixed_positions: ClassVar[bool] = True
    is_amplified: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_sizes(self, "num_examples", "batch_size", "num_parts")

    def separation(self) -> int:
        return self.num_parts

    def participations(self, num_steps: int) -> int:
        return -(-num_steps // self.num_parts)

    def validate_num_steps(self, num_steps: int) -> None:
        if num_steps < self.num_parts:
            raise ValueError(
                f"num_steps must be >= num_parts = {self.num_parts}, found {num_steps}: "
                f"some examples would never be used. Use fewer parts."
            )

    def expected_batch_size(self) -> float:
        return float(self.batch_size)

    @classmethod
    def of_data(
        cls, num_examples: int, batch_size: int, epochs: int, num_parts: int | None
    ) -> Cyclic:
        return cls(num_examples, batch_size, num_parts or 1)


@dataclasses.dataclass(frozen=True)
class CyclicByChance(Cyclic):
    """Each example takes part with a probability: `batch_size` is what is expected."""

    # Why there are no more parts than batches in the data.
    too_many: ClassVar[str]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_size * self.num_parts > self.num_examples:
            largest = self.num_examples // self.batch_size
            raise ValueError(
                f"num_parts must be <= num_examples / batch_size = {largest}, found "
                f"{self.num_parts}: {self.too_many}"
            )

    @classmethod
    def of_rates(
        cls, num_steps: int, separation: int, participations: Fraction, bands: int
    ) -> CyclicByChance:
        rate = Fraction(participations)
        if rate * bands > num_steps:
            raise ValueError(
                f"The strategy has {bands} bands: a cycle of as many steps does not fit "
                f"{rate} times into {num_steps}. Use fewer bands, or balls-in-bins, "
                f"which needs no banded strategy."
            )
        return cls(num_steps * rate.denominator, rate.numerator, bands)

    @classmethod
    def example(cls, num_steps: int) -> CyclicByChance:
        return cls(40, 5, 4)
