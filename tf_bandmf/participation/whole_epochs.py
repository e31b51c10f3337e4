"""The base class of participations in which each example is used once per epoch."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from tf_bandmf.participation.base import Participation
from tf_bandmf.participation.checks import check_sizes


@dataclasses.dataclass(frozen=True)
class WholeEpochs(Participation):
    """Each example participates once per epoch, at the same position in all epochs.

    Args:
      num_examples: size of the training set.
      batch_size: exact or approximate number of examples per step.
      epochs: number of epochs.
    """

    num_examples: int
    batch_size: int
    epochs: int
    has_fixed_positions: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_sizes(self, "batch_size", "epochs")

    @property
    def num_steps(self) -> int:
        return self.epochs * self.steps_per_epoch

    def separation(self) -> int:
        return self.steps_per_epoch

    def participations(self, num_steps: int) -> int:
        return min(self.epochs, super().participations(num_steps))

    def validate_num_steps(self, num_steps: int) -> None:
        if num_steps != self.num_steps:
            raise ValueError(
                f"num_steps must be {self.num_steps} for {self.epochs} epochs of "
                f"{self.steps_per_epoch} steps, found {num_steps}. Omit num_steps, or "
                f"change epochs or batch_size."
            )

    def expected_batch_size(self) -> float:
        return self.num_examples / self.steps_per_epoch

    def largest_batch_size(self, num_steps: int, overflow: float) -> int:
        return -(-self.num_examples // self.steps_per_epoch)

    @classmethod
    def of_data(
        cls, num_examples: int, batch_size: int, epochs: int, num_parts: int | None
    ) -> WholeEpochs:
        return cls(num_examples, batch_size, epochs)

    @classmethod
    def example(cls, num_steps: int) -> WholeEpochs:
        return cls(num_steps // 4 * 5, 5, 4)
