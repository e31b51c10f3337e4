"""Stopping rules of an optimization."""

from __future__ import annotations

import dataclasses

from tf_bandmf.accounting.checks import check_nonnegative


@dataclasses.dataclass(frozen=True)
class Options:
    """Stopping rules of an optimization.

    Attributes:
      max_iterations: maximum number of L-BFGS iterations per stage.
      gradient_tolerance: the optimization has converged if no absolute entry of the
        gradient of `scale * log(objective)` exceeds this value.
      gap_tolerance: the optimization has converged if the certified relative gap is at
        most this value; for problems that have a certificate.
      decrease_tolerance: the optimization has converged if the objective decreases by
        at most this fraction in 20 iterations.

    Raises:
      ValueError: if a number is out of range.
    """

    max_iterations: int = 500
    gradient_tolerance: float = 1e-5
    gap_tolerance: float = 1e-5
    decrease_tolerance: float = 1e-9

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            check_nonnegative(field.name, getattr(self, field.name))
