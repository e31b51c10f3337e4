"""The base class of participations in which parts of the data set take turns."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from tf_bandmf.participation.base import Participation
from tf_bandmf.participation.checks import check_sizes


@dataclasses.dataclass(frozen=True)
class Cyclic(Participation):
    """The examples are split into b fixed parts, which take turns.

    Example `j` belongs to part `j mod b`.

    Args:
      num_examples: m, size of the training set.
      batch_size: B, the (expected) number of examples per step.
      num_parts: b, the number of parts. Strategies must have at most b bands.
    """

    num_examples: int
    batch_size: int
    num_parts: int
    has_fixed_positions: ClassVar[bool] = True
    is_cyclic: ClassVar[bool] = True
    is_amplified: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_sizes(self, "batch_size", "num_parts")
        if self.batch_size * self.num_parts > self.num_examples:
            raise ValueError(
                f"num_parts must be <= num_examples / batch_size = "
                f"{self.num_examples // self.batch_size}, found {self.num_parts}: each "
                f"part of the data must hold a batch. Reduce num_parts or batch_size."
            )

    def separation(self) -> int:
        return self.num_parts

    def validate_num_steps(self, num_steps: int) -> None:
        if num_steps < self.num_parts:
            raise ValueError(
                f"num_steps must be >= num_parts = {self.num_parts}, found {num_steps}: "
                f"with fewer steps, some examples would never be used. Use fewer parts."
            )

    def expected_batch_size(self) -> float:
        return float(self.batch_size)

    @classmethod
    def of_data(
        cls, num_examples: int, batch_size: int, epochs: int, num_parts: int | None
    ) -> Cyclic:
        return cls(num_examples, batch_size, num_parts or 1)

    @classmethod
    def example(cls, num_steps: int) -> Cyclic:
        return cls(40, 5, 4)
