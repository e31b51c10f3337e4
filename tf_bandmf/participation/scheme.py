"""A sampling by name, for plans that state examples, batch size and epochs.

Cyclic sampling has as many parts as the strategy has bands: its participation is not
known before the strategy is. A `Scheme` is what is known before.
"""

from __future__ import annotations

import dataclasses

from tf_bandmf.participation.base import NAMED, Participation
from tf_bandmf.participation.fixed_epoch_order import FixedEpochOrder

DEFAULT_SAMPLING = "fixed-order"


def samplings() -> tuple[str, ...]:
    """The names of all samplings, the default first."""
    others = sorted(set(NAMED) - {DEFAULT_SAMPLING})
    return (DEFAULT_SAMPLING, *others)


@dataclasses.dataclass(frozen=True)
class Scheme:
    """How a run samples its batches.

    Args:
      sampling: one of `samplings()`.
      num_examples: m.
      batch_size: B; the expected number for Poisson sampling.
      epochs: k, the expected number for Poisson sampling.

    Raises:
      ValueError: for an unknown name or impossible numbers.
    """

    sampling: str
    num_examples: int
    batch_size: int
    epochs: int

    def __post_init__(self) -> None:
        if not isinstance(self.sampling, str) or self.sampling not in NAMED:
            raise ValueError(
                f"sampling must be one of {', '.join(samplings())}, found "
                f"{self.sampling!r}."
            )
        # Has the same limits, and checks them.
        FixedEpochOrder(self.num_examples, self.batch_size, self.epochs)

    @property
    def num_steps(self) -> int:
        """n: `epochs * ceil(m / B)`, the same for all ways to sample."""
        return self.epochs * -(-self.num_examples // self.batch_size)

    @property
    def is_cyclic(self) -> bool:
        """Whether the number of parts is still to be chosen."""
        return NAMED[self.sampling].is_cyclic

    @property
    def is_simulated(self) -> bool:
        """Whether the accounting is by simulation."""
        return NAMED[self.sampling].is_simulated

    @property
    def largest_cycle(self) -> int:
        """`floor(m / B)`: with as many parts nothing is amplified."""
        return self.num_examples // self.batch_size

    def participation(self, num_parts: int | None = None) -> Participation:
        """The participation; `num_parts` for cyclic sampling only.

        Raises:
          ValueError: if `num_parts` is missing, superfluous or does not fit.
        """
        if self.is_cyclic == (num_parts is None):
            raise ValueError(
                f"num_parts is for cyclic sampling, and needed there; found num_parts = "
                f"{num_parts} and sampling {self.sampling!r}."
            )
        return NAMED[self.sampling].of_data(
            self.num_examples, self.batch_size, self.epochs, num_parts
        )
