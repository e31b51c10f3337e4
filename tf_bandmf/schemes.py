"""Ways to sample by name, for plans that state examples, batch size and epochs.

Cyclic sampling has as many parts as the strategy has bands: its participation is not
known before the strategy is. A `Scheme` is what is known before.
"""

from __future__ import annotations

import dataclasses

from tf_bandmf.participation import (
    BallsInBins,
    CyclicFixedSize,
    CyclicPoisson,
    FixedEpochOrder,
    Participation,
    Poisson,
    Shuffled,
)

_EPOCHS = {
    "fixed-order": FixedEpochOrder,
    "shuffled": Shuffled,
    "balls-in-bins": BallsInBins,
}
_CYCLIC = {"cyclic-poisson": CyclicPoisson, "cyclic-fixed-size": CyclicFixedSize}
SAMPLINGS = ("fixed-order", "shuffled", "balls-in-bins", *_CYCLIC, "poisson")


@dataclasses.dataclass(frozen=True)
class Scheme:
    """How a run samples its batches.

    Args:
      sampling: one of `SAMPLINGS`.
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
        if self.sampling not in SAMPLINGS:
            raise ValueError(
                f"sampling must be one of {', '.join(SAMPLINGS)}, found "
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
        return self.sampling in _CYCLIC

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
        if self.is_cyclic:
            cyclic = _CYCLIC[self.sampling]
            return cyclic(self.num_examples, self.batch_size, num_parts)  # type: ignore[call-arg, arg-type]
        if self.sampling == "poisson":
            return Poisson(self.num_examples, self.batch_size)
        build = _EPOCHS[self.sampling]
        return build(self.num_examples, self.batch_size, self.epochs)
