"""Accounting of cyclic fixed-size sampling without replacement: a proven bound.

The `m` examples are split into `b` parts of `floor(m / b)` examples. Each of the `n`
steps takes `B` examples from one part (step `i` from part `i mod b`), uniformly without
replacement (arXiv:2306.08153, Alg. 2, Theorem 4). `tilted` composes the privacy losses
of the `ceil(n / b)` queries on one part, for neighboring data sets in which **one
example is replaced by another**. The contributions then differ by up to twice the
clipping norm, so the sensitivity of each query is twice as large as for zero-out
adjacency. Setting an example's contribution to zero is such a replacement, so zero-out
adjacency is included.

The accountant returns the better of two bounds: the bound with amplification by
sampling, and the bound without it, for which the run is one Gaussian mechanism. Results
for Poisson sampling do not hold for this sampler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tf_bandmf.accounting.checks import whole_number
from tf_bandmf.accounting.cyclic_poisson import SampledQueries
from tf_bandmf.accounting.guarantee import REPLACE_ONE, UNAMPLIFIED, ZERO_OUT

if TYPE_CHECKING:
    import dp_accounting

NAME = "sampling without replacement (tilted Fourier transform; replace-one)"


class CyclicFixedSizeAccountant(SampledQueries):
    """Computes (epsilon, delta) of `num_queries` Gaussian queries on fixed-size samples.

    Formal guarantee: an upper bound for replace-one adjacency, which includes zero-out
    adjacency with a public number of examples.

    Args:
      num_queries: `ceil(n / b)`, the number of steps that can sample a given example.
      part_size: `floor(m / b)`, the number of examples in each part.
      batch_size: B, the number of examples per step; at most `part_size`.
      column_norm: kappa, the sensitivity of each query if one example is zeroed out.
    """

    claims = (
        (NAME, "bound", REPLACE_ONE),
        (f"fixed size {UNAMPLIFIED}", "bound", ZERO_OUT),
    )
    moved_by = 2.0

    def __init__(
        self,
        num_queries: int,
        part_size: int,
        batch_size: int,
        column_norm: float = 1.0,
    ) -> None:
        self.part_size = whole_number("part_size", part_size)
        self.batch_size = whole_number(
            "batch_size", batch_size, most=self.part_size, most_is="part_size"
        )
        super().__init__(num_queries, batch_size / part_size, column_norm)

    def sampled(self, query: dp_accounting.DpEvent) -> dp_accounting.DpEvent:
        # Importing dp-accounting is slow, so this module does it only where needed.
        import dp_accounting

        return dp_accounting.SampledWithoutReplacementDpEvent(
            self.part_size, self.batch_size, query
        )
