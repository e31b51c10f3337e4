"""Private counts and metrics that a run may release in addition to its gradients."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from tf_bandmf.accounting.checks import check_positive, whole_number
from tf_bandmf.planning.texts import phrase

if TYPE_CHECKING:
    from tf_bandmf.accounting.base import Accountant

_MOST_COUNTS = 0.5


@dataclasses.dataclass(frozen=True)
class Measurements:
    """The private counts and metrics for which `Plan.reserve` reserved budget.

    Counts say, for example, how many examples of a step were clipped. They are
    additional coordinates of each example's contribution to a step: the vector of the
    clipped gradient and the counts has a norm of at most
    `l2_norm_clip / sqrt(1 - counts)`. Therefore the accounting of the steps covers the
    counts, for any sampling and any strategy.

    An evaluation is a separate Gaussian mechanism: each record adds a vector of norm at
    most 1 to a sum, whose noise has standard deviation `noise_multiplier`.

    Attributes:
      counts: share of a contribution's squared norm that is reserved for counts, in [0,
        0.5]; 0 for no counts.
      evaluations: maximum number of evaluations that the run may make, >= 0.
      noise_multiplier: noise multiplier of each evaluation; None without evaluations.

    Raises:
      ValueError: if a number is out of range.
    """

    counts: float = 0.0
    evaluations: int = 0
    noise_multiplier: float | None = None

    def __post_init__(self) -> None:
        if not 0.0 <= self.counts <= _MOST_COUNTS:
            raise ValueError(
                f"counts must be in [0, {_MOST_COUNTS}], found {self.counts!r}."
            )
        whole_number("evaluations", self.evaluations, least=0)
        if (self.noise_multiplier is None) != (self.evaluations == 0):
            raise ValueError(
                f"Pass both evaluations (found {self.evaluations}) and "
                f"noise_multiplier (found {self.noise_multiplier}), or neither."
            )
        if self.noise_multiplier is not None:
            check_positive("noise_multiplier", self.noise_multiplier)

    @property
    def norm(self) -> float:
        """The bound on the joint norm of an example's clipped gradient and counts.

        The value is in units of l2_norm_clip.
        """
        return 1.0 / math.sqrt(1.0 - self.counts)

    @property
    def mu(self) -> float:
        """The mu of mu-Gaussian DP for all evaluations together; 0 without evaluations.

        The evaluations form a Gaussian mechanism with the noise multiplier `1 / mu`.
        """
        if self.noise_multiplier is None:
            return 0.0
        return math.sqrt(self.evaluations) / self.noise_multiplier

    def with_evaluations(self, base: Accountant) -> Accountant:
        """Returns `base`, the steps' accountant, composed with the evaluations."""
        return base if self.noise_multiplier is None else base.beside(1.0 / self.mu)

    def __str__(self) -> str:
        # The result is at most two sentences for the privacy statement.
        said = [phrase("parts", "counts")] if self.counts else []
        if self.evaluations:
            said.append(phrase("parts", "evaluations", kept=self))
        return " ".join(said)
