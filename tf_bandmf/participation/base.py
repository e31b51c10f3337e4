"""What every participation is."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, ClassVar

import numpy as np


def positive_int(name: str, value: Any) -> int:
    """The value as an int; raises ValueError unless it is a whole number >= 1."""
    is_number = isinstance(value, (int, float, np.integer, np.floating))
    is_whole = is_number and not isinstance(value, bool) and float(value).is_integer()
    if not is_whole or value < 1:
        raise ValueError(f"{name} must be a whole number >= 1, found {value!r}.")
    return int(value)


def check_sizes(participation: Any, *names: str) -> None:
    """Makes fields ints >= 1 and checks that a batch is no larger than the data set.

    Args:
      participation: a frozen data class with `num_examples` and `batch_size`.
      *names: of the fields.

    Raises:
      ValueError: if a field is no whole number >= 1, or `batch_size > num_examples`.
    """
    for name in names:
        value = positive_int(name, getattr(participation, name))
        object.__setattr__(participation, name, value)
    if participation.batch_size > participation.num_examples:
        raise ValueError(
            f"batch_size must be <= num_examples = {participation.num_examples}, found "
            f"{participation.batch_size}."
        )


def check_whole_epochs(participation: Any, num_steps: int) -> None:
    """Raises ValueError unless so many steps are exactly the participation's epochs."""
    if num_steps != participation.num_steps:
        raise ValueError(
            f"{participation.epochs} epochs of {participation.steps_per_epoch} steps are "
            f"{participation.num_steps} steps, found num_steps = {num_steps}. Leave "
            f"num_steps out, or change epochs or batch_size."
        )


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
