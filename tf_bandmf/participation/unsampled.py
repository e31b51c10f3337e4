"""Participations from whose randomness nothing is claimed."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from tf_bandmf.participation.base import (
    Participation,
    check_sizes,
    check_whole_epochs,
    positive_int,
)


@dataclasses.dataclass(frozen=True)
class MinSep(Participation):
    """b-min-separation, asserted by the caller (amplified-banded-mf, section 3).

    The sampler is the caller's: a federated server, say, whose devices keep a timer.
    The guarantee holds only if the caller enforces the separation.

    Args:
      min_separation: b >= 1.
      max_participations: k, the most often that one example takes part, or None for the
        most that the separation permits, `ceil(n / b)`.
    """

    min_separation: int
    max_participations: int | None = None
    kind: ClassVar[str] = "min_sep"
    has_schedule: ClassVar[bool] = False

    def __post_init__(self) -> None:
        b = positive_int("min_separation", self.min_separation)
        object.__setattr__(self, "min_separation", b)
        if self.max_participations is not None:
            k = positive_int("max_participations", self.max_participations)
            object.__setattr__(self, "max_participations", k)

    def separation(self) -> int:
        return self.min_separation

    def participations(self, num_steps: int) -> int:
        possible = -(-num_steps // self.min_separation)
        return min(possible, self.max_participations or possible)

    def validate_num_steps(self, num_steps: int) -> None:
        if self.min_separation > num_steps:
            raise ValueError(
                f"min_separation must be <= num_steps = {num_steps}, found "
                f"{self.min_separation}. For a single participation give "
                f"MinSep(num_steps, 1)."
            )

    def describe(self) -> str:
        k = self.max_participations
        limit = "" if k is None else f", at most {k} times"
        return (
            f"Each example takes part at most once in any {self.min_separation} "
            f"consecutive steps{limit}. The caller asserts and enforces this."
        )


@dataclasses.dataclass(frozen=True)
class FixedEpochOrder(Participation):
    """Every example exactly once per epoch, always at the same position of the epoch.

    The (k, b)-participation of multi-epoch training (amplified-banded-mf, section 2):
    an example takes part at the steps i, i + b, ..., i + (k - 1) b for one i < b. The
    batches are cut once from one order of the examples; shuffling again in each epoch
    would lower the separation to 1 and is impossible here.

    Args:
      num_examples: size of the training set.
      batch_size: examples per step. If it does not divide `num_examples` the batches of
        an epoch differ by one example in size.
      epochs: k.
      order_seed: the order of the examples is a pseudorandom function of this number.
        The order is not secret: nothing is claimed from it.
    """

    num_examples: int
    batch_size: int
    epochs: int
    order_seed: int = 0
    kind: ClassVar[str] = "fixed_epoch_order"
    has_fixed_positions: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_sizes(self, "num_examples", "batch_size", "epochs")
        if isinstance(self.order_seed, bool) or self.order_seed < 0:
            raise ValueError(f"order_seed must be >= 0, found {self.order_seed!r}.")

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.num_examples // self.batch_size)

    @property
    def num_steps(self) -> int:
        return self.epochs * self.steps_per_epoch

    def separation(self) -> int:
        return self.steps_per_epoch

    def participations(self, num_steps: int) -> int:
        return min(self.epochs, -(-num_steps // self.steps_per_epoch))

    def validate_num_steps(self, num_steps: int) -> None:
        check_whole_epochs(self, num_steps)

    def describe(self) -> str:
        return (
            f"Fixed epoch order: {self.num_examples} examples, each exactly once per "
            f"epoch of {self.steps_per_epoch} steps, at the same position in all "
            f"{self.epochs} epochs. The batch schedule enforces this."
        )
