"""Cyclic Poisson sampling. With one part it is Poisson sampling, as in DP-SGD."""

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
class CyclicPoisson(Cyclic):
    """Step `i` samples each example of part `i mod b` with probability q, independently.

    This is the sampler of arXiv:2306.08153, section 5. The parts are fixed and public:
    example `j` belongs to part `j mod b`. Part sizes differ by at most one, which
    Poisson sampling permits.

    Args:
      num_examples: m, size of the training set.
      batch_size: B, the expected number of examples per step;
        `q = batch_size * num_parts / num_examples`.
      num_parts: b, the number of parts. Strategies must have at most b bands.
    """

    demands: ClassVar[str] = (
        "access to any example of a part at its steps, batches of varying size, "
        "secret batch membership, and a banded C"
    )
    kind: ClassVar[str] = "cyclic_poisson"
    sampling: ClassVar[str | None] = "cyclic-poisson"

    @property
    def sampling_probability(self) -> float:
        """The probability q that a step samples an example of the current part."""
        return self.batch_size * self.num_parts / self.num_examples

    def sampler(self, words: Words) -> Sampler:
        from tf_bandmf.sampling.samplers import PoissonSampler

        return PoissonSampler(words, self.num_examples, self.batch_size, self.num_parts)

    def largest_batch_size(self, num_steps: int, overflow: float) -> int:
        trials = -(-self.num_examples // self.num_parts)
        return largest_binomial(trials, self.sampling_probability, overflow / num_steps)

    def accountant(
        self, matrix: LowerTriangular, confidence: float | None = None
    ) -> Accountant:
        from tf_bandmf.accounting.cyclic_poisson import CyclicPoissonAccountant

        return CyclicPoissonAccountant.of_strategy(
            matrix, self.num_parts, self.sampling_probability
        )

    def amplification(self) -> str:
        return "Amplification by Poisson sampling is claimed."

    def describe(self) -> str:
        return (
            f"Cyclic Poisson sampling: {self.num_examples} examples in {self.num_parts} "
            f"fixed parts, which take turns; each step samples each example of the current "
            f"part with probability {self.sampling_probability:.6g}, independently. The "
            f"batch schedule enforces this; its random numbers stay secret."
        )


@register
@dataclasses.dataclass(frozen=True)
class Poisson(CyclicPoisson):
    """Every step samples each example with probability q, independently, as in DP-SGD.

    This is `CyclicPoisson` with one part.

    Args:
      num_examples: m, size of the training set.
      batch_size: B, the expected number of examples per step; `q = B / m`.
    """

    num_parts: int = 1
    demands: ClassVar[str] = (
        "access to any example at any step, batches of varying size, secret batch "
        "membership, and noise without correlation"
    )
    kind: ClassVar[str] = "poisson"
    sampling: ClassVar[str | None] = "poisson"
    is_cyclic: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_parts != 1:
            raise ValueError(
                f"Poisson sampling needs num_parts = 1, but found {self.num_parts}. To "
                f"sample from several parts of the data in turn, use CyclicPoisson."
            )

    def describe(self) -> str:
        return (
            f"Poisson sampling: each step samples each of {self.num_examples} examples "
            f"with probability {self.sampling_probability:.6g}, independently. The batch "
            f"schedule enforces this; its random numbers stay secret."
        )

    @classmethod
    def example(cls, num_steps: int) -> Poisson:
        return cls(40, 10)
