"""The settings of a model's private step."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any

from tf_bandmf.accounting.checks import whole_number
from tf_bandmf.keras.tables.choice import DENSE, LAZY


@dataclasses.dataclass
class StepSettings:
    """The settings of a model's private step; the arguments of `make_private`.

    Attributes:
      microbatch_size: number of examples whose gradients are in memory at the same
        time; None for the whole batch.
      tables: "dense" if all rows of embedding tables get noise in each step, "lazy" if
        a row gets its noise only when it is read; or the names of the layers with lazy
        tables.
      alone: names of layers that may run on batches of one example, even if that
        changes their results.

    Raises:
      ValueError: if microbatch_size is not a positive integer, or names are not passed
        as a list.
    """

    microbatch_size: int | None = None
    tables: str | Sequence[str] = DENSE
    alone: Collection[str] = ()

    def __post_init__(self) -> None:
        if self.microbatch_size is not None:
            size = whole_number("microbatch_size", self.microbatch_size, most=2**31 - 1)
            self.microbatch_size = size
        if self.tables not in (DENSE, LAZY):
            self.tables = _names("tables, if not 'dense' or 'lazy',", self.tables)
        self.alone = _names("alone", self.alone)


def _names(name: str, given: Any) -> list[str]:
    is_list = isinstance(given, Collection) and not isinstance(given, str)
    if not is_list or not all(isinstance(each, str) for each in given):
        raise ValueError(f"{name} must be a list of layer names, but found {given!r}.")
    return list(given)
