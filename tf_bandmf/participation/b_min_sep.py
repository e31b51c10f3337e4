"""Whoever has not taken part in the last b - 1 steps takes part with probability p."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from tf_bandmf.accounting.base import Simulation
from tf_bandmf.matrices import LowerTriangular
from tf_bandmf.participation.base import WHOLE_RUN, Sampler, Words, register
from tf_bandmf.participation.checks import largest_binomial
from tf_bandmf.participation.cyclic import CyclicByChance

if TYPE_CHECKING:
    from tf_bandmf.accounting.base import Accountant


@register
@dataclasses.dataclass(frozen=True)
class BMinSepSampling(CyclicByChance):
    """b-min-sep sampling: independent except for a rest of b - 1 steps.

    Dong and Ganesh, arXiv:2602.09338. A step takes each example that has not taken part
    in the last `b - 1` steps with probability p, independently. The rests at the
    beginning are drawn as if the run had no beginning: every step takes `batch_size`
    examples in expectation, `p = q / (1 - (b - 1) q)` with
    `q = batch_size / num_examples`. With b = 1 this is Poisson sampling.

    Args:
      num_examples: m, size of the training set.
      batch_size: B, the expected number of examples per step.
      num_parts: b, the separation; strategies with at most b bands can be accounted for.
    """

    demands: ClassVar[str] = (
        "access to any example at any step, batches of varying size, that nobody learns "
        "who is in which batch, a record of who rests, and a C with bands"
    )
    kind: ClassVar[str] = "b_min_sep_sampling"
    sampling: ClassVar[str | None] = "b-min-sep"
    has_fixed_positions: ClassVar[bool] = False
    is_cyclic: ClassVar[bool] = True
    is_simulated: ClassVar[bool] = True
    too_many: ClassVar[str] = "of those who need no rest fewer than a batch are left."

    @property
    def sampling_probability(self) -> float:
        """p: the probability that a step takes an example that does not rest."""
        return self.batch_size / self._rested

    @property
    def _rested(self) -> int:
        """Expected number of examples that do not rest."""
        return self.num_examples - self.batch_size * (self.num_parts - 1)

    def sampler(self, words: Words) -> RestSampler:
        return RestSampler(self, words)

    def largest_batch_size(self, num_steps: int, overflow: float) -> int:
        q = self.batch_size / self.num_examples
        return largest_binomial(self.num_examples, q, overflow / num_steps)

    def check_accounting(self, num_steps: int) -> None:
        from tf_bandmf.accounting.b_min_sep import check_size

        if self.num_parts > 1:
            check_size(num_steps, 2)  # the least that a rest is for

    def accountant(
        self, matrix: LowerTriangular, simulation: Simulation | None = None
    ) -> Accountant:
        from tf_bandmf.accounting.b_min_sep import BMinSepAccountant
        from tf_bandmf.accounting.cyclic_poisson import CyclicPoissonAccountant

        if self.num_parts == 1 and matrix.bands == 1:
            norms = matrix.column_norms()
            if norms.min() == norms.max():  # as `CyclicPoissonAccountant` counts them
                return CyclicPoissonAccountant.of_strategy(
                    matrix, 1, self.batch_size / self.num_examples
                )
        return BMinSepAccountant.of_strategy(
            matrix,
            self.num_parts,
            self.batch_size / self.num_examples,
            simulation or Simulation(),
        )

    def amplification(self) -> str:
        return "Amplification by b-min-sep sampling is claimed."

    def describe(self) -> str:
        return (
            f"Sampling with rests (b-min-sep): each step takes each of {self.num_examples} "
            f"examples that took no part in the last {self.num_parts - 1} steps with "
            f"probability {self.sampling_probability:.6g}, independently. The batch "
            f"schedule enforces this; its random numbers stay secret."
        )


class RestSampler(Sampler):
    """Examples that do not rest, each with probability p.

    Steps in their order cost O(m) each; an earlier step begins again at step 0.
    """

    spans_run: ClassVar[bool] = True

    def __init__(self, participation: BMinSepSampling, words: Words) -> None:
        self._participation, self._words = participation, words
        self._restart()

    def example_indices(self, step: int) -> np.ndarray:
        if step < self._next - 1:
            self._restart()
        while self._next <= step:
            self._advance()
        return self._chosen

    def _restart(self) -> None:
        m, b = self._participation.num_examples, self._participation.num_parts
        batch = self._participation.batch_size
        words = self._words(WHOLE_RUN, m)
        # The first step without rest: 1 .. b - 1 with probability q each, otherwise 0.
        edges = [(batch * j << 64) // m for j in range(1, b)]
        # 2^64 itself is the end of the last cell, where b batches are all examples.
        limits = np.array([min(e, (1 << 64) - 1) for e in edges], dtype=np.uint64)
        cell = np.searchsorted(limits, words, side="right")
        self._free = np.where(cell == b - 1, 0, cell + 1).astype(np.int64)
        self._next = 0
        self._chosen = np.zeros(0, np.int64)

    def _advance(self) -> None:
        participation, step = self._participation, self._next
        rested = self._free <= step
        threshold = (participation.batch_size << 64) // participation._rested
        if threshold < 1 << 64:
            words = self._words(step, participation.num_examples)
            rested &= words < np.uint64(threshold)
        self._chosen = np.flatnonzero(rested).astype(np.int64)
        self._free[self._chosen] = step + participation.num_parts
        self._next = step + 1
