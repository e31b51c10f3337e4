"""The result of an optimization, which also reports failures."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class OptimizationResult:
    """The result of a minimization, whether or not it converged.

    Attributes:
      position: the best variables that were found, shape [m], even without convergence.
      converged: True if a stopping rule was met.
      message: the stopping rule that was met, or the reason why the optimizer stopped.
      value: the objective at `position`, a squared error.
      gradient_norm: maximum absolute entry of the gradient of `scale * log(objective)`
        with respect to the variables, where `scale` is as in `Options`.
      num_iterations: number of iterations of L-BFGS.
      seconds: wall time, including tracing.
      optimality_gap: certified upper bound on `1 - optimum / value`, or None if there
        is no certificate for this problem.
    """

    position: np.ndarray
    converged: bool
    message: str
    value: float
    gradient_norm: float
    num_iterations: int
    seconds: float
    optimality_gap: float | None = None

    def diagnostics(self, objective: str) -> dict[str, Any]:
        """Returns all fields except `position`, for `Strategy.diagnostics` and for plans.

        Args:
          objective: name of the objective.
        """
        fields = {"objective": objective, **dataclasses.asdict(self)}
        del fields["position"]
        return fields
