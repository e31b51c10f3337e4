"""The dominating pair of b-min-sep sampling, and forward passes for likelihood ratios.

Let C be the strategy with columns `c_t`, sigma the standard deviation of the noise, S
the set of steps at which an example takes part, and `P(S)` its probability. If C has no
negative entries, the dominating pair is `P = sum_S P(S) N(m_S, sigma^2 I)` (the output
with the example) against `Q = N(0, sigma^2 I)` (without it), with `m_S` the sum of the
columns `c_t` for t in S (arXiv:2410.06266). If C has at most b bands, the columns of
one set S do not overlap, so `|m_S|^2 = sum_{t in S} |c_t|^2`.

After a participation, an example rests: it cannot take part in the next b - 1 steps. At
any other step it takes part with probability p. A forward pass computes the likelihood
ratio `dP/dQ` at an output `y` step by step (see Dong and Ganesh, arXiv:2602.09338).
`F[t]` is the likelihood ratio of the steps before t, restricted to those sets S for
which the example is not resting at step t, and `v[t]` is the factor of a participation
at step t:

    F[t + 1] = (1 - p) F[t] + p F[t + 1 - b] v[t + 1 - b],
    v[t] = exp(<c_t, y> / sigma^2 - |c_t|^2 / (2 sigma^2)).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import scipy.sparse

from tf_bandmf import matrices
from tf_bandmf.matrices.threads import one_blas_thread

# `_log_total_of` rescales its sums so that they do not overflow or underflow. As
# rescaling costs as much as b steps, it happens only every b / 4 steps. This period is
# limited to the range from _LEAST_PERIOD to _LARGEST_PERIOD. The period is shorter if
# the sums could otherwise fall by a factor of exp(_LARGEST_DECAY) or grow by a factor
# of exp(_LARGEST_GROWTH). If an exponent is larger than _LARGEST_EXPONENT in absolute
# value, the slower `_log_ratio_by_logs` computes the sums.
_LEAST_PERIOD, _LARGEST_PERIOD = 25, 100
_LARGEST_DECAY, _LARGEST_GROWTH, _LARGEST_EXPONENT = 100.0, 600.0, 250.0
# Products with C are computed for max(_BLOCK, bands) columns of C at a time.
_BLOCK = 24


class Passes:
    """Draws participations and computes likelihood ratios for one strategy and sampler.

    A forward pass processes N draws of n steps, step by step. Therefore arrays of shape
    [N, n] are returned in Fortran order, with the N values of a step adjacent in
    memory. Arguments in Fortran order are processed fastest.

    Args:
      rows: the bands of the strategy, `rows[i, j] = C[i, i - j] >= 0`, of shape [n,
        bands].
      separation: b, the minimum number of steps between two participations; b >= bands.
      rate: q, the unconditional probability that an example takes part at a given step.
    """

    def __init__(self, rows: np.ndarray, separation: int, rate: float) -> None:
        self.num_steps, self.separation, self.rate = len(rows), separation, rate
        self.probability = min(rate / (1.0 - rate * (separation - 1)), 1.0)
        (n, bands), size = rows.shape, max(_BLOCK, rows.shape[1])
        diagonals = matrices.columns_from_rows(rows), -np.arange(bands)
        strategy = scipy.sparse.dia_array(diagonals, shape=(n, n)).tocsc()
        # Each pair in `places` consists of a slice of columns of C, and a slice of the
        # rows in which these columns may be non-zero. `_blocks` contains each pair
        # together with the entries of C in these columns and rows.
        places = [
            (slice(start, start + size), slice(start, start + size + bands - 1))
            for start in range(0, n, size)
        ]
        self._blocks = [(c, r, strategy[r, c].toarray()) for c, r in places]
        self.squares = (diagonals[0] ** 2).sum(axis=0)
        self.mean = self._outputs(np.full((1, n), rate))[0]

    def largest_squared_norm(self) -> float:
        """Returns the maximum squared norm of one example's effect on the output."""
        largest = np.zeros(self.num_steps + self.separation)
        for t in range(self.num_steps - 1, -1, -1):
            taken = self.squares[t] + largest[t + self.separation]
            largest[t] = max(largest[t + 1], taken)
        return float(largest[0])

    def _outputs(self, x: np.ndarray) -> np.ndarray:
        """Returns the products of C with the N rows of `x`, as an array [N, n]."""
        result = np.zeros(x.shape[::-1])
        with one_blas_thread():
            for columns, rows, block in self._blocks:
                result[rows] += block @ x.T[columns]
        return result.T

    def inner_products(self, y: np.ndarray) -> np.ndarray:
        """Returns inner products of N rows of `y` and n columns of C, shape [N, n]."""
        result = np.empty(y.shape[::-1])
        with one_blas_thread():
            for columns, rows, block in self._blocks:
                np.matmul(block.T, y.T[rows], out=result[columns])
        return result.T

    def draw(
        self, generator: np.random.Generator, probability: np.ndarray
    ) -> np.ndarray:
        """Draws N sets of participations; returns the sum of C's columns for each set.

        In the i-th draw, `probability[i]` is the probability that an example takes part
        at a step at which it is not resting. The result has the shape [N, n].
        """
        count, b = probability.size, self.separation
        uniform = generator.random(count)
        # At the start of the run, an example may be resting. It then rests for the
        # first 1, 2, ..., or b - 1 steps; each case has the probability `self.rate`.
        free = np.where(uniform < self.rate * (b - 1), 1 + uniform // self.rate, 0)
        free = free.astype(np.int64)
        taken, rows = np.zeros((self.num_steps, count)), np.arange(count)
        # The number of steps from the end of a rest to the next participation has a
        # geometric distribution.
        while rows.size:
            now = free + generator.geometric(probability[rows]) - 1
            within = now < self.num_steps
            rows, now = rows[within], now[within]
            taken[now, rows] = 1.0
            free = now + b
        return self._outputs(taken.T)

    def draw_weighted(
        self, generator: np.random.Generator, count: int, log_weights: np.ndarray
    ) -> np.ndarray:
        """Draws sets S of participations with weighted probabilities.

        If `P(S)` is the probability of S under b-min-sep sampling, the weighted
        probability is proportional to `P(S) prod_{t in S} exp(log_weights[t])`. The
        method returns the sum of C's columns for each drawn set, shape [count, n].
        """
        n, b = self.num_steps, self.separation
        # Suppose that an example is not resting at step t. Then exp(ahead[t]) is the
        # expectation of the product of exp(log_weights[s]) over all steps s >= t at
        # which the example takes part.
        ahead = np.zeros(n + b)
        with np.errstate(divide="ignore"):
            take, leave = math.log(self.probability), np.log1p(-self.probability)
            first = np.log(np.append(1.0 - self.rate * (b - 1), [self.rate] * (b - 1)))
        for t in range(n - 1, -1, -1):
            taken = take + log_weights[t] + ahead[t + b]
            ahead[t] = np.logaddexp(leave + ahead[t + 1], taken)
        first = first + ahead[:b]
        start = np.exp(first - np.logaddexp.reduce(first))
        free = generator.choice(b, count, p=start)
        now = np.exp(take + log_weights + ahead[b:] - ahead[:n])
        participations = np.zeros((n, count))
        for t in range(n):
            takes = (free <= t) & (generator.random(count) < now[t])
            participations[t] = takes
            free[takes] = t + b
        return self._outputs(participations.T)

    def log_ratios(
        self, exponents: np.ndarray, probabilities: Sequence[float]
    ) -> np.ndarray:
        """Returns `log sum_S P(S) prod_{t in S} exp(exponents[:, t])`, shape [R, N].

        The sum is over all sets S of steps at which one example can take part, and
        `P(S)` is the probability of S.

        Args:
          exponents: shape [N, n]; the method overwrites them.
          probabilities: R values (> 0) of p, the probability that the example takes
            part at a step at which it is not resting. Each value defines the `P(S)` of
            one row of the result.
        """
        least, most = exponents.min(initial=0.0), float(exponents.max(initial=0.0))
        if not -_LARGEST_EXPONENT <= least <= most <= _LARGEST_EXPONENT:
            ratios = [self._log_ratio_by_logs(exponents, p) for p in probabilities]
            return np.stack(ratios)
        factors, before, ratios = np.exp(exponents.T, out=exponents.T), 1.0, []
        for probability in probabilities:
            factors *= probability / before
            before = probability
            ratios.append(self._log_total_of(factors, probability, most))
        return np.stack(ratios)

    def _log_total_of(
        self, factors: np.ndarray, probability: float, largest: float
    ) -> np.ndarray:
        """Returns one row of `log_ratios`, shape [N].

        This method is faster than `_log_ratio_by_logs`, which adds in log space.

        Args:
          factors: `probability * exp(exponents)`, shape [n, N].
          probability: probability of a participation at a step at which the example
            does not rest.
          largest: an upper bound (>= 0) on all exponents.
        """
        (n, count), b = factors.shape, self.separation
        decay = -math.log1p(-probability) if probability < 1.0 else 0.0
        # One step multiplies the maximum of `free` and `taken` by <= 2 exp(largest).
        limit = min(
            _LARGEST_DECAY / max(decay, 1.0),
            _LARGEST_GROWTH / (largest + math.log(2.0)),
        )
        period = int(min(max(_LEAST_PERIOD, min(b // 4, _LARGEST_PERIOD)), limit))
        free = np.full(count, max(1.0 - self.rate * (b - 1), 0.0))
        # The sum over sets S of participations is computed in parts. `free` is the part
        # for which the example is not resting. Row t mod b of `taken` is the part for
        # which the last participation is at step t.
        taken, logs = np.zeros((min(b, n), count)), np.zeros(count)
        for t in range(n):
            if t:
                free *= 1.0 - probability
                # `free` gains the part of the sum for which a rest ends at step t. The
                # rest followed a participation at step t - b or, if t < b, was under
                # way at step 0.
                free += taken[t % b] if t >= b else self.rate * np.exp(-logs)
            np.multiply(free, factors[t], out=taken[t % b])
            if t % period == period - 1:
                scale = np.maximum(free, taken.max(axis=0))
                free /= scale
                taken /= scale
                logs += np.log(scale)
        total = free * (1.0 - probability) + taken.sum(axis=0)
        if b > n:  # An example that rests at step 0 may rest until the end of the run.
            total += (b - n) * self.rate * np.exp(-logs)
        return np.log(total) + logs

    def _log_ratio_by_logs(
        self, exponents: np.ndarray, probability: float
    ) -> np.ndarray:
        (count, n), b = exponents.shape, self.separation
        with np.errstate(divide="ignore"):
            take, leave = np.log(probability), np.log1p(-probability)
            free = np.full(count, np.log(max(1.0 - self.rate * (b - 1), 0.0)))
        taken = np.empty((n, count))
        for t in range(n):
            if t:
                back = taken[t - b] if t >= b else math.log(self.rate)
                free = np.logaddexp(free + leave, back)
            taken[t] = take + free + exponents[:, t]
        ends = [free + leave, *taken[max(n - b, 0) :]]
        if b > n:
            ends.append(np.full(count, math.log(self.rate * (b - n))))
        return np.logaddexp.reduce(np.stack(ends), axis=0)
