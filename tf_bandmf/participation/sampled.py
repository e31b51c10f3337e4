"""Participations whose sampler is random and secret.

Each guarantee depends on the secrecy of the sampler's random numbers. They are no part
of these objects: a schedule takes them from the operating system, see `tf_bandmf.sampling`.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from tf_bandmf.participation.base import (
    Participation,
    check_sizes,
    check_whole_epochs,
)


class _Cyclic(Participation):
    """The examples are split into b fixed parts, which take turns."""

    num_examples: int
    batch_size: int
    num_parts: int
    has_fixed_positions: ClassVar[bool] = True

    def separation(self) -> int:
        return self.num_parts

    def participations(self, num_steps: int) -> int:
        return -(-num_steps // self.num_parts)

    def validate_num_steps(self, num_steps: int) -> None:
        if num_steps < self.num_parts:
            raise ValueError(
                f"num_steps must be >= num_parts = {self.num_parts}, found {num_steps}: "
                f"some examples would never be used. Use fewer parts."
            )


@dataclasses.dataclass(frozen=True)
class CyclicPoisson(_Cyclic):
    """Step `i` takes each example of part `i mod b` with probability q, independently.

    amplified-banded-mf, section 5. The parts are fixed and public: example `j` belongs to
    part `j mod b`. Their sizes differ by at most one, which Poisson sampling permits.

    Args:
      num_examples: m, size of the training set.
      batch_size: B, the expected number of examples per step;
        `q = batch_size * num_parts / num_examples`.
      num_parts: b; strategies with at most b bands can be accounted for.
    """

    num_examples: int
    batch_size: int
    num_parts: int
    kind: ClassVar[str] = "cyclic_poisson"

    def __post_init__(self) -> None:
        check_sizes(self, "num_examples", "batch_size", "num_parts")
        if self.batch_size * self.num_parts > self.num_examples:
            largest = self.num_examples // self.batch_size
            raise ValueError(
                f"num_parts must be <= num_examples / batch_size = {largest}, found "
                f"{self.num_parts}: no part has {self.batch_size} examples. With "
                f"num_parts = {largest} nothing is amplified."
            )

    @property
    def sampling_probability(self) -> float:
        """q, of an example whose part it is the turn of."""
        return self.batch_size * self.num_parts / self.num_examples

    def amplification(self) -> str:
        return "Amplification by Poisson sampling is claimed."

    def describe(self) -> str:
        return (
            f"Cyclic Poisson sampling: {self.num_examples} examples in {self.num_parts} "
            f"fixed parts; each step takes each example of the part whose turn it is "
            f"with probability {self.sampling_probability:.6g}, independently. The batch "
            f"schedule enforces this; its random numbers stay secret."
        )


@dataclasses.dataclass(frozen=True)
class Poisson(CyclicPoisson):
    """Every step takes each example with probability q, independently: DP-SGD's sampler.

    `CyclicPoisson` with one part.

    Args:
      num_examples: m.
      batch_size: B, the expected number of examples per step; `q = B / m`.
    """

    num_parts: int = 1
    kind: ClassVar[str] = "poisson"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_parts != 1:
            raise ValueError(
                f"Poisson sampling has one part, found num_parts = {self.num_parts}. "
                f"Use CyclicPoisson."
            )

    def describe(self) -> str:
        return (
            f"Poisson sampling: each step takes each of {self.num_examples} examples "
            f"with probability {self.sampling_probability:.6g}, independently. The batch "
            f"schedule enforces this; its random numbers stay secret."
        )


@dataclasses.dataclass(frozen=True)
class CyclicFixedSize(_Cyclic):
    """Step `i` takes B examples of part `i mod b`, uniformly without replacement.

    amplified-banded-mf, Alg. 2. Example `j` belongs to part `j mod b`; as in Alg. 2, the
    last `m mod b` examples are in no part and never used, so that all parts are equal.

    Args:
      num_examples: m, size of the training set.
      batch_size: B.
      num_parts: b; strategies with at most b bands can be accounted for.
    """

    num_examples: int
    batch_size: int
    num_parts: int
    kind: ClassVar[str] = "cyclic_fixed_size"

    def __post_init__(self) -> None:
        check_sizes(self, "num_examples", "batch_size", "num_parts")
        if self.batch_size > self.part_size:
            raise ValueError(
                f"num_parts must be <= num_examples / batch_size = "
                f"{self.num_examples // self.batch_size}, found {self.num_parts}: a part "
                f"has {self.part_size} examples, a batch {self.batch_size}."
            )

    @property
    def part_size(self) -> int:
        """Examples of each part, `floor(m / b)`."""
        return self.num_examples // self.num_parts

    def amplification(self) -> str:
        return "Amplification by sampling without replacement is claimed, if it helps."

    def describe(self) -> str:
        unused = self.num_examples - self.part_size * self.num_parts
        discarded = f" ({unused} examples are never used)" if unused else ""
        return (
            f"Cyclic sampling without replacement: {self.num_parts} fixed parts of "
            f"{self.part_size} examples{discarded}; each step takes {self.batch_size} "
            f"examples of the part whose turn it is, uniformly. The batch schedule "
            f"enforces this; its random numbers stay secret."
        )


@dataclasses.dataclass(frozen=True)
class _Epochs(Participation):
    """Each example once per epoch, at the same position of all epochs."""

    num_examples: int
    batch_size: int
    epochs: int
    has_fixed_positions: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_sizes(self, "num_examples", "batch_size", "epochs")

    @property
    def steps_per_epoch(self) -> int:
        """b, the number of batches of an epoch."""
        return -(-self.num_examples // self.batch_size)

    @property
    def num_steps(self) -> int:
        return self.epochs * self.steps_per_epoch

    def separation(self) -> int:
        return self.steps_per_epoch

    def participations(self, num_steps: int) -> int:
        return min(self.epochs, -(-num_steps // self.steps_per_epoch))

    def validate_num_steps(self, num_steps: int) -> None:
        check_whole_epochs(self, num_steps)


@dataclasses.dataclass(frozen=True)
class BallsInBins(_Epochs):
    """Each example falls into one of b bins, uniformly, independently and once.

    The bin is its step in every epoch (dp-lambda-cgd, section 5.1). Batches vary in size
    like a binomial; an epoch has `b = ceil(num_examples / batch_size)` of them.

    Args:
      num_examples: m, size of the training set.
      batch_size: about how many examples a step has; `m / b` are expected.
      epochs: k.
    """

    kind: ClassVar[str] = "balls_in_bins"

    @property
    def num_bins(self) -> int:
        """B."""
        return self.steps_per_epoch

    def amplification(self) -> str:
        return "Amplification by the random bins is claimed."

    def describe(self) -> str:
        return (
            f"Balls in bins: each of {self.num_examples} examples is put into one of "
            f"{self.num_bins} bins at random, once, and takes part at the step of its "
            f"bin in all {self.epochs} epochs. The batch schedule enforces this; its "
            f"random numbers stay secret."
        )


@dataclasses.dataclass(frozen=True)
class Shuffled(_Epochs):
    """One secret shuffle of the examples, then the same batches in every epoch.

    amplified-banded-mf, Cor. F.1. No bound that amplifies is known for batches of many
    examples under zero-out adjacency; the accountant claims nothing from the shuffle and
    uses the guarantee of a fixed order, which convexity gives. It is not Poisson's.

    Args:
      num_examples: m, size of the training set.
      batch_size: examples per step; if it does not divide `num_examples` the batches of
        an epoch differ by one example in size.
      epochs: k.
    """

    kind: ClassVar[str] = "shuffled"

    def describe(self) -> str:
        return (
            f"Shuffled: {self.num_examples} examples in one random order, each exactly "
            f"once per epoch of {self.steps_per_epoch} steps, at the same position in "
            f"all {self.epochs} epochs. The batch schedule enforces this."
        )
