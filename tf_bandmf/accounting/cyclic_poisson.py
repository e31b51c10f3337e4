"""Accounting of cyclic Poisson sampling for banded strategies; DP-SGD is the case b = 1.

The examples are split into `b` parts; step `i` samples each example of part `i mod b`
with probability `q`. If the strategy `C` has at most `b` bands, a run of `n` steps is
as private as `ceil(n / b)` Poisson-sampled Gaussian queries (arXiv:2306.08153, Theorem
4 and Theorem 5), each with sensitivity `kappa`, the largest column norm of `C`.

The module `tilted` composes the queries. Its numerical errors only increase delta, by a
small fraction.
"""

from __future__ import annotations

import abc
import collections
import dataclasses
import math
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from tf_bandmf import matrices
from tf_bandmf.accounting import tilted
from tf_bandmf.accounting.base import Accountant
from tf_bandmf.accounting.checks import check_delta, check_positive, whole_number
from tf_bandmf.accounting.guarantee import ZERO_OUT

if TYPE_CHECKING:
    import dp_accounting

Self = TypeVar("Self", bound="SampledQueries")

NAME = "Poisson-sampled Gaussian queries (tilted Fourier transform)"


def check_bands(matrix: matrices.LowerTriangular, num_parts: int) -> None:
    """Raises ValueError if the strategy has more bands than the data has parts."""
    if matrix.bands > num_parts:
        raise ValueError(
            f"With num_parts = {num_parts}, the strategy matrix C must have at most "
            f"{num_parts} bands, but found {matrix.bands} (lambda_cgd, bisr and blt have "
            f"one band per step). Use BallsInBins, or fewer bands (bsr, toeplitz), or "
            f"num_parts >= {matrix.bands} (with CyclicPoisson or BMinSep)."
        )


class ComposedQueries(Accountant):
    """The accountant for a composition of Gaussian queries on samples of the same data.

    Args:
      given: the queries for noise_stddev = 1. The noise of each query is proportional
        to `noise_stddev`.

    Attributes:
      kinds: the distinct queries of `given`. Equal queries are merged into one, and
        their counts are added.
    """

    claims: tuple[tuple[str, str, str], ...] = ((NAME, "bound", ZERO_OUT),)

    def __init__(self, given: tuple[tilted.Query, ...]) -> None:
        counts: collections.Counter[tilted.Query] = collections.Counter()
        for query in given:
            counts[dataclasses.replace(query, count=1)] += query.count
        self.kinds = [dataclasses.replace(q, count=k) for q, k in counts.items()]
        squares = (query.count / query.noise**2 for query in given)
        self.whole_sensitivity = math.sqrt(math.fsum(squares))
        self.sampling_probability = min(query.probability for query in given)

    def queries(self, noise_stddev: float) -> list[tilted.Query]:
        """Returns the distinct queries, with their noise for this `noise_stddev`."""
        scaled = ((query, noise_stddev * query.noise) for query in self.kinds)
        return [dataclasses.replace(query, noise=noise) for query, noise in scaled]

    def sampled_delta(
        self, epsilon: float, noise_stddev: float, rough: bool = False
    ) -> float:
        queries = self.queries(noise_stddev)
        return tilted.delta(queries, epsilon, tilted.ROUGH if rough else tilted.FINE)


class SampledQueries(ComposedQueries):
    """The accountant for Gaussian queries that sample each example with probability q.

    Args:
      num_queries: `ceil(n / b)`, the number of steps that can sample a given example.
      probability: q in (0, 1], the probability that a sample contains an example.
      column_norm: kappa, the sensitivity of each query if one example is zeroed out.
    """

    def __init__(
        self, num_queries: int, probability: float, column_norm: float
    ) -> None:
        self.num_queries = whole_number("num_queries", num_queries)
        check_positive("column_norm", column_norm)
        self.sampling_probability, self.column_norm = probability, column_norm
        self.whole_sensitivity = column_norm * math.sqrt(num_queries)

    @classmethod
    def of_strategy(
        cls: type[Self], matrix: matrices.LowerTriangular, num_parts: int, *sample: Any
    ) -> Self:
        """Returns the accountant of a strategy matrix.

        Args:
          matrix: `C`.
          num_parts: b, the number of parts of the data.
          sample: the constructor's arguments between `num_queries` and `column_norm`.
            They describe the sampling.

        Raises:
          ValueError: if the strategy has more than `num_parts` bands, or if its column
            norms are not finite and > 0.
        """
        check_bands(matrix, num_parts)
        queries = -(-matrix.num_rows // num_parts)
        norm = float(np.max(matrix.column_norms()))
        return cls(queries, *sample, norm)  # type: ignore[call-arg]

    def queries(self, noise_stddev: float) -> list[tilted.Query]:
        unit, probability = noise_stddev / self.column_norm, self.sampling_probability
        unit, is_replaced = unit / self.moved_by, self.moved_by == 2.0
        queries = [tilted.Query(probability, unit, self.num_queries, is_replaced)]
        if self.releases < math.inf:
            queries.append(tilted.Query(1.0, self.releases / self.moved_by))
        return queries

    @abc.abstractmethod
    def sampled(self, query: dp_accounting.DpEvent) -> dp_accounting.DpEvent:
        """Returns the dp-accounting event of a query on a sample."""

    def event(self, noise_stddev: float) -> dp_accounting.DpEvent:
        """Returns the composition of all sampled queries and the other releases."""
        # Importing dp-accounting is slow, so this module does it only where needed.
        import dp_accounting

        unit = noise_stddev / self.column_norm / self.moved_by
        query = self.sampled(dp_accounting.GaussianDpEvent(unit))
        run = dp_accounting.SelfComposedDpEvent(query, self.num_queries)
        if self.releases == math.inf:
            return run
        both = [run, dp_accounting.GaussianDpEvent(self.releases / self.moved_by)]
        return dp_accounting.ComposedDpEvent(both)


class CyclicPoissonAccountant(SampledQueries):
    """Computes (epsilon, delta) of `num_queries` Poisson-sampled Gaussian queries.

    Formal guarantee: (epsilon, delta) holds under add-or-remove adjacency, which is
    equivalent to zero-out for these queries. Errors of discretization and truncation
    only increase epsilon and delta.

    For n steps and m examples in b parts, the correct composition consists of
    `ceil(n / b)` queries on parts of `floor(m / b)` examples. Example F.1 of
    arXiv:2306.08153 swaps n and m: it composes `ceil(m / b)` queries on parts of
    `floor(n / b)` examples.

    Args:
      num_queries: `ceil(n / b)`, the number of steps that can sample a given example.
      sampling_probability: q in (0, 1], the probability that a step samples a given
        example of its part.
      column_norm: kappa, the sensitivity of each query.
    """

    claims = ((NAME, "exact", ZERO_OUT),)

    def __init__(
        self, num_queries: int, sampling_probability: float, column_norm: float = 1.0
    ) -> None:
        if not 0.0 < sampling_probability <= 1.0:
            raise ValueError(
                f"sampling_probability must be in (0, 1], found {sampling_probability}."
            )
        super().__init__(num_queries, sampling_probability, column_norm)

    def sampled(self, query: dp_accounting.DpEvent) -> dp_accounting.DpEvent:
        # Importing dp-accounting is slow, so this module does it only where needed.
        import dp_accounting

        if self.sampling_probability == 1.0:
            return query
        return dp_accounting.PoissonSampledDpEvent(self.sampling_probability, query)

    def largest_noise(self, epsilon: float, delta: float) -> float:
        check_delta(delta)
        sampled = -math.expm1(
            self.num_queries * math.log1p(-min(self.sampling_probability, 1.0 - 1e-16))
        )
        if sampled <= delta:
            raise ValueError(
                f"delta must be below {sampled:.3g}, found {delta:g}. Even without "
                f"noise, delta is {sampled:.3g}, the probability of sampling an example."
            )
        return super().largest_noise(epsilon, delta)
