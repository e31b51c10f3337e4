"""What every participation is."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, ClassVar


def positive_int(name: str, value: Any) -> int:
    """The value as an int; raises ValueError unless it is a whole number >= 1."""
    if isinstance(value, bool) or int(value) != value or value < 1:
        raise ValueError(f"{name} must be a whole number >= 1, found {value!r}.")
    return int(value)


class Participation(abc.ABC):
    """Which sets of steps one example may take part in."""

    kind: ClassVar[str]
    # Whether all participations of an example are among i, i + b, i + 2b, ... for one
    # i < b, so that its patterns are those of the fixed epoch order.
    has_fixed_positions: ClassVar[bool] = False
    # Whether the library makes the batches; otherwise the caller does.
    has_schedule: ClassVar[bool] = True

    @abc.abstractmethod
    def separation(self) -> int:
        """b: two participations i < j of one example have j - i >= b."""

    @abc.abstractmethod
    def participations(self, num_steps: int) -> int:
        """k: how often one example takes part in `num_steps` steps, at most."""

    @abc.abstractmethod
    def validate_num_steps(self, num_steps: int) -> None:
        """Raises ValueError if a run of `num_steps` steps contradicts this object."""

    @abc.abstractmethod
    def describe(self) -> str:
        """One sentence for the privacy statement."""

    def amplification(self) -> str:
        """What is claimed from the randomness of the sampling, one sentence."""
        return "No amplification by sampling is claimed."

    def to_config(self) -> dict[str, Any]:
        """Plain values; `from_config` rebuilds the object."""
        return {"kind": self.kind, **dataclasses.asdict(self)}  # type: ignore[call-overload]
