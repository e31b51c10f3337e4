"""Balls-in-bins sampling: each example is in the same random batch of every epoch."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, ClassVar

from tf_bandmf.matrices import LowerTriangular
from tf_bandmf.participation.base import register
from tf_bandmf.participation.checks import largest_binomial
from tf_bandmf.participation.whole_epochs import WholeEpochs

if TYPE_CHECKING:
    from tf_bandmf.accounting.base import Accountant
    from tf_bandmf.sampling.samplers import Sampler, Words


@register
@dataclasses.dataclass(frozen=True)
class BallsInBins(WholeEpochs):
    """Each example is assigned once to one of b bins, uniformly and independently.

    The examples of bin i are the batch of step i in every epoch (arXiv:2601.22334,
    section 5.1). Batch sizes are binomial; an epoch has
    `b = ceil(num_examples / batch_size)` batches.

    Args:
      num_examples: m, size of the training set.
      batch_size: approximate number of examples per step; the expected number is `m / b`.
      epochs: number of epochs.
    """

    demands: ClassVar[str] = (
        "access to any example at any step, batches of varying size, and secret bin "
        "membership"
    )
    kind: ClassVar[str] = "balls_in_bins"
    sampling: ClassVar[str | None] = "balls-in-bins"
    is_amplified: ClassVar[bool] = True
    is_simulated: ClassVar[bool] = True

    @property
    def num_bins(self) -> int:
        """The number b of bins, which equals the number of steps per epoch."""
        return self.steps_per_epoch

    def sampler(self, words: Words) -> Sampler:
        from tf_bandmf.sampling.samplers import BinsSampler

        return BinsSampler(words, self.num_examples, self.num_bins)

    def largest_batch_size(self, num_steps: int, overflow: float) -> int:
        trials, bins = self.num_examples, self.num_bins
        return largest_binomial(trials, 1.0 / bins, overflow / bins)

    def check_accounting(self, num_steps: int) -> None:
        from tf_bandmf.accounting.bins_simulator import check_bins

        check_bins(self.num_bins)

    def accountant(
        self, matrix: LowerTriangular, confidence: float | None = None
    ) -> Accountant:
        from tf_bandmf.accounting.balls_in_bins import BallsInBinsAccountant
        from tf_bandmf.accounting.bins_simulator import gram_matrix

        return BallsInBinsAccountant(gram_matrix(matrix, self.num_bins), confidence)

    def amplification(self) -> str:
        return "Amplification by the random bins is claimed."

    def describe(self) -> str:
        return (
            f"Balls in bins: each of {self.num_examples} examples is assigned once, at "
            f"random, to one of {self.num_bins} bins, and participates in the step of its "
            f"bin in all {self.epochs} epochs. The batch schedule enforces this; its "
            f"random numbers stay secret."
        )
