"""Cyclic sampling of a fixed number of examples per step, without replacement."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, ClassVar

from tf_bandmf.matrices import LowerTriangular
from tf_bandmf.participation.base import register
from tf_bandmf.participation.cyclic import Cyclic

if TYPE_CHECKING:
    from tf_bandmf.accounting.base import Accountant
    from tf_bandmf.sampling.samplers import Sampler, Words


@register
@dataclasses.dataclass(frozen=True)
class CyclicFixedSize(Cyclic):
    """Step `i` samples B examples of part `i mod b`, uniformly without replacement.

    This is Alg. 2 of arXiv:2306.08153. Example `j` belongs to part `j mod b`. As in
    Alg. 2, the last `m mod b` examples are not used, so all parts have the same size.

    Args:
      num_examples: m, size of the training set.
      batch_size: B, the number of examples per step.
      num_parts: b, the number of parts. Strategies must have at most b bands.
    """

    demands: ClassVar[str] = (
        "access to any example of a part at its steps, and secret batch membership"
    )
    kind: ClassVar[str] = "cyclic_fixed_size"
    sampling: ClassVar[str | None] = "cyclic-fixed-size"

    @property
    def part_size(self) -> int:
        """The number of examples in each part, `floor(m / b)`."""
        return self.num_examples // self.num_parts

    def sampler(self, words: Words) -> Sampler:
        from tf_bandmf.sampling.samplers import FixedSizeSampler

        return FixedSizeSampler(
            words, self.num_examples, self.batch_size, self.num_parts
        )

    def largest_batch_size(self, num_steps: int, overflow: float) -> int:
        return self.batch_size

    def accountant(
        self, matrix: LowerTriangular, confidence: float | None = None
    ) -> Accountant:
        from tf_bandmf.accounting.cyclic_fixed_size import CyclicFixedSizeAccountant

        return CyclicFixedSizeAccountant.of_strategy(
            matrix, self.num_parts, self.part_size, self.batch_size
        )

    def amplification(self) -> str:
        return "Amplification by sampling without replacement is claimed if useful."

    def describe(self) -> str:
        unused = self.num_examples - self.part_size * self.num_parts
        discarded = f" ({unused} examples are never used)" if unused else ""
        return (
            f"Cyclic sampling without replacement: {self.num_parts} fixed parts of "
            f"{self.part_size} examples{discarded}, which take turns; each step samples "
            f"{self.batch_size} examples of the current part, uniformly. The batch "
            f"schedule enforces this; its random numbers stay secret."
        )
