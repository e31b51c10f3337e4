"""Stopping rules of an optimization."""

from __future__ import annotations

import dataclasses

from tf_bandmf.accounting.checks import check_nonnegative


@dataclasses.dataclass(frozen=True)
class Options:
    """Stopping rules of an optimization.

    Attributes:
      max_iterations: largest number of iterations of L-BFGS, for each stage.
      gradient_tolerance: converged when no entry of the gradient of `scale * log f`
        exceeds this in absolute value.
      gap_tolerance: converged when the certified relative gap is at most this; only
        for problems that have a certificate.
      decrease_tolerance: converged when 20 iterations lower the objective by no more
        than this, relatively.

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
