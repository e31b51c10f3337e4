"""How long and how precisely to optimize."""

from __future__ import annotations

import dataclasses
import math


@dataclasses.dataclass(frozen=True)
class Options:
    """How long and how precisely to optimize.

    Attributes:
      max_iterations: of L-BFGS, over all stages.
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
        if self.max_iterations < 0:
            raise ValueError(
                f"max_iterations must be >= 0, found {self.max_iterations}."
            )
        for name in ("gradient_tolerance", "gap_tolerance", "decrease_tolerance"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0.0):
                raise ValueError(f"{name} must be finite and >= 0, found {value}.")
