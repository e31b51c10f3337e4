"""A fixed epoch order: the same batches in every epoch, without amplification."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from tf_bandmf.accounting.checks import whole_number
from tf_bandmf.participation.base import register
from tf_bandmf.participation.whole_epochs import WholeEpochs

if TYPE_CHECKING:
    from tf_bandmf.sampling.samplers import Sampler, Words


@register
@dataclasses.dataclass(frozen=True)
class FixedEpochOrder(WholeEpochs):
    """Every example participates exactly once per epoch, always at the same position.

    This is the (k, b)-participation of multi-epoch training (arXiv:2306.08153, section 2)
    for k epochs of b steps: an example participates in the steps i, i + b, ...,
    i + (k - 1) b for one i < b. The examples are put into one order and split into b
    batches, which all epochs use. Reshuffling the examples in each epoch would lower the
    separation to 1.

    Args:
      num_examples: size of the training set.
      batch_size: number of examples per step. If it does not divide `num_examples`, the
        batch sizes of an epoch differ by at most one.
      epochs: k, the number of epochs.
      order_seed: seed of the pseudorandom order of the examples. The order is not secret,
        and no amplification is claimed for it.
    """

    order_seed: int = 0
    demands: ClassVar[str] = "the same order of the examples in all epochs"
    kind: ClassVar[str] = "fixed_epoch_order"
    sampling: ClassVar[str | None] = "fixed-order"
    has_secret_sampler: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        seed = whole_number("order_seed", self.order_seed, 0, 2**32 - 1)
        object.__setattr__(self, "order_seed", seed)

    def sampler(self, words: Words) -> Sampler:
        from tf_bandmf.sampling.samplers import OrderSampler

        # NumPy's compatibility policy guarantees that the random numbers of RandomState
        # never change.
        order = np.random.RandomState(self.order_seed).permutation(self.num_examples)
        return OrderSampler(order.astype(np.int64), self.steps_per_epoch)

    def describe(self) -> str:
        return (
            f"Fixed epoch order: each of {self.num_examples} examples participates exactly "
            f"once per epoch of {self.steps_per_epoch} steps, at the same position in all "
            f"{self.epochs} epochs. The batch schedule enforces this."
        )
