"""Stopping rules of an optimization."""

from __future__ import annotations

import dataclasses

from tf_bandmf.accounting.checks import check_nonnegative

# The number of iterations over which the decrease of the objective is measured.
SEGMENT = 20


@dataclasses.dataclass(frozen=True)
class Options:
    """Stopping rules of an optimization.

    Attributes:
      max_iterations: maximum number of L-BFGS iterations per stage.
      gradient_tolerance: the optimization has converged if no absolute entry of the
        gradient of `scale * log(objective)` exceeds this value. The optimizer in
        `lbfgs` takes `scale` as an argument; for the optimizer in `descent`, it is 1.
      gap_tolerance: for problems that have a certificate, the optimization has converged
        if the certified relative gap is at most this value.
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

    def judge_progress(
        self, norm: float, decrease: float, iterations: int
    ) -> tuple[bool, str] | None:
        """Returns whether the optimization has converged, and why it ends.

        The result is None if the optimization goes on.

        Args:
          norm: the maximum absolute entry of the gradient of `scale * log(objective)`.
          decrease: the relative decrease of the objective in the last `SEGMENT`
            iterations; infinite if it is not known yet.
          iterations: the number of iterations so far.
        """
        if norm <= self.gradient_tolerance * (1.0 + 1e-9):
            return True, f"gradient norm <= {self.gradient_tolerance:g}"
        if decrease <= self.decrease_tolerance:
            least = f"{self.decrease_tolerance:g}"
            return True, f"relative decrease <= {least} in {SEGMENT} iterations"
        if iterations >= self.max_iterations:
            return False, f"stopped after max_iterations = {self.max_iterations}"
        return None
