"""One secret shuffle of the examples, for which no amplification is claimed."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from tf_bandmf.participation.base import register
from tf_bandmf.participation.whole_epochs import WholeEpochs

if TYPE_CHECKING:
    from tf_bandmf.sampling.samplers import Sampler, Words


@register
@dataclasses.dataclass(frozen=True)
class Shuffled(WholeEpochs):
    """The examples are shuffled once, secretly, and all epochs use the same batches.

    No amplification bound is known for shuffling, if batches have many examples and
    neighboring data sets differ by a zero-out (compare arXiv:2306.08153, Cor. F.1).
    Therefore the accountant uses the guarantee of a fixed order. By convexity, this
    guarantee also holds for a random order. Do not account for a shuffle as if it were
    Poisson sampling.

    Args:
      num_examples: size of the training set.
      batch_size: number of examples per step. If it does not divide `num_examples`, the
        batch sizes of an epoch differ by at most one.
      epochs: number of epochs.
    """

    demands: ClassVar[str] = "the same secret order of the examples in all epochs"
    kind: ClassVar[str] = "shuffled"
    sampling: ClassVar[str | None] = "shuffled"
    bound_name: ClassVar[str | None] = (
        "one shuffle, bounded by a fixed order (exact Gaussian mechanism)"
    )

    def sampler(self, words: Words) -> Sampler:
        from tf_bandmf.sampling.samplers import WHOLE_RUN, OrderSampler

        order = np.argsort(words(WHOLE_RUN, self.num_examples), kind="stable")
        return OrderSampler(order, self.steps_per_epoch)

    def describe(self) -> str:
        return (
            f"Shuffled: {self.num_examples} examples in a random order; each participates "
            f"exactly once per epoch of {self.steps_per_epoch} steps, at the same position "
            f"in all {self.epochs} epochs. The batch schedule enforces this."
        )
