"""b-min-separation without a batch schedule: the caller enforces the separation."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from tf_bandmf.accounting.checks import whole_number
from tf_bandmf.participation.base import Participation, register


@register
@dataclasses.dataclass(frozen=True)
class MinSep(Participation):
    """b-min-separation, asserted by the caller (arXiv:2306.08153, section 3).

    Two participations of an example are at least b steps apart. The caller provides the
    sampler, for example a federated server with timers on the devices. The guarantee
    holds only if the caller enforces the separation.

    Args:
      min_separation: b >= 1.
      max_participations: k, the maximum number of participations of one example, or None
        for the maximum that the separation permits, `ceil(n / b)` in n steps.
    """

    min_separation: int
    max_participations: int | None = None
    kind: ClassVar[str] = "min_sep"
    has_schedule: ClassVar[bool] = False
    has_secret_sampler: ClassVar[bool] = False

    def __post_init__(self) -> None:
        b = whole_number("min_separation", self.min_separation)
        object.__setattr__(self, "min_separation", b)
        if self.max_participations is not None:
            k = whole_number("max_participations", self.max_participations)
            object.__setattr__(self, "max_participations", k)

    def separation(self) -> int:
        return self.min_separation

    def participations(self, num_steps: int) -> int:
        possible = super().participations(num_steps)
        return min(possible, self.max_participations or possible)

    def validate_num_steps(self, num_steps: int) -> None:
        if self.min_separation > num_steps:
            raise ValueError(
                f"min_separation must be <= num_steps = {num_steps}, found "
                f"{self.min_separation}. If no example is used in more than one step, "
                f"use MinSep(num_steps, 1)."
            )

    def describe(self) -> str:
        k = self.max_participations
        limit = "" if k is None else f", and at most {k} times in total"
        return (
            f"Each example participates at most once in any {self.min_separation} "
            f"consecutive steps{limit}. The caller asserts and enforces this."
        )

    @classmethod
    def example(cls, num_steps: int) -> MinSep:
        return cls(num_steps // 4, 3)
