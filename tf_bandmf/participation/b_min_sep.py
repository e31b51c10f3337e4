"""b-min-sep sampling: a sampled example cannot be sampled again for b - 1 steps."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, ClassVar

from tf_bandmf.matrices import LowerTriangular
from tf_bandmf.participation.base import register
from tf_bandmf.participation.checks import largest_binomial
from tf_bandmf.participation.cyclic import Cyclic

if TYPE_CHECKING:
    from tf_bandmf.accounting.base import Accountant
    from tf_bandmf.sampling.samplers import Sampler, Words


@register
@dataclasses.dataclass(frozen=True)
class BMinSepSampling(Cyclic):
    """b-min-sep sampling: an example rests for b - 1 steps after each participation.

    In each step, every example that is not resting is sampled independently, with
    probability p (Dong and Ganesh, arXiv:2602.09338). An example is resting if it
    participated in one of the last `b - 1` steps. The examples that rest at the start
    are drawn as if the sampler had been running forever. Therefore every step samples
    `batch_size` examples in expectation: `p = q / (1 - (b - 1) q)` with
    `q = batch_size / num_examples`. If b = 1, this is Poisson sampling.

    Args:
      num_examples: m, size of the training set.
      batch_size: B, the expected number of examples per step.
      num_parts: b, the separation. Strategies must have at most b bands.
    """

    demands: ClassVar[str] = (
        "access to any example at any step, batches of varying size, secret batch "
        "membership, a record of recently used examples, and a banded C"
    )
    kind: ClassVar[str] = "b_min_sep_sampling"
    sampling: ClassVar[str | None] = "b-min-sep"
    has_fixed_positions: ClassVar[bool] = False
    is_simulated: ClassVar[bool] = True

    @property
    def sampling_probability(self) -> float:
        """The probability p that a step samples an example that is not resting."""
        rested = self.num_examples - self.batch_size * (self.num_parts - 1)
        return self.batch_size / rested

    def sampler(self, words: Words) -> Sampler:
        from tf_bandmf.sampling.samplers import RestSampler

        return RestSampler(words, self.num_examples, self.batch_size, self.num_parts)

    def largest_batch_size(self, num_steps: int, overflow: float) -> int:
        q = self.batch_size / self.num_examples
        return largest_binomial(self.num_examples, q, overflow / num_steps)

    def check_accounting(self, num_steps: int) -> None:
        from tf_bandmf.accounting.b_min_sep import check_size

        if self.num_parts > 1:
            # The more bands a strategy has, the fewer steps its accounting permits. A
            # separation is useful only for strategies with at least two bands.
            check_size(num_steps, 2)

    def accountant(
        self, matrix: LowerTriangular, confidence: float | None = None
    ) -> Accountant:
        from tf_bandmf.accounting.b_min_sep import BMinSepAccountant
        from tf_bandmf.accounting.cyclic_poisson import CyclicPoissonAccountant

        rate = self.batch_size / self.num_examples
        if self.num_parts == 1 and matrix.bands == 1:
            norms = matrix.column_norms()
            # If all column norms are equal, `CyclicPoissonAccountant` is exact.
            if norms.min() == norms.max():
                return CyclicPoissonAccountant.of_strategy(matrix, 1, rate)
        return BMinSepAccountant(matrix, self.num_parts, rate, confidence)

    def amplification(self) -> str:
        return "Amplification by b-min-sep sampling is claimed."

    def describe(self) -> str:
        return (
            f"b-min-sep sampling: of {self.num_examples} examples, each step samples every "
            f"example that was not in the last {self.num_parts - 1} batches with "
            f"probability {self.sampling_probability:.6g}, independently. The batch "
            f"schedule enforces this; its random numbers stay secret."
        )
