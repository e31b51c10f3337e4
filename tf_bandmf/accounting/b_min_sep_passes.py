"""The pair of distributions that dominates b-min-sep sampling: a forward pass.

For a `C >= 0` an example's participations S give `P = sum_S P(S) N(m_S, sigma^2 I)` against
`Q = N(0, sigma^2 I)`, `m_S` the sum of the columns of S (arXiv:2410.06266). With at most b
bands the columns of one S do not overlap, `|m_S|^2 = sum_i |c_i|^2`, and the likelihood
ratio at `y` is a forward pass over the steps since the last participation (compare Dong and
Ganesh, arXiv:2602.09338):

    F[t + 1] = (1 - p) F[t] + p F[t + 1 - b] v[t + 1 - b],
    v[t] = exp(<c_t, y> / sigma^2 - |c_t|^2 / (2 sigma^2)).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from tf_bandmf import matrices
from tf_bandmf.accounting.threads import one_thread

# Sums are rescaled before those who rest at no step fall below exp(_LEAST_LOG), after
# _RESCALED steps at most, and where sums may have grown by a factor of so large a
# logarithm; larger exponents are added by logarithms.
_RESCALED, _LEAST_LOG = (25, 100), -100.0
_LARGEST_GROWTH, _LARGEST_EXPONENT = 600.0, 250.0
# Columns of C that are multiplied at once, at least.
_BLOCK = 24


class Passes:
    """Participations and likelihood ratios of one strategy and sampling.

    Passes go from step to step: arrays [N, n] are returned, and best given, with the N
    numbers of a step side by side in memory (Fortran order).

    Args:
      rows: `rows[i, j] = C[i, i - j]`, shape [n, bands], not negative.
      separation: b >= bands.
      rate: q, the probability of a participation at a step.
    """

    def __init__(self, rows: np.ndarray, separation: int, rate: float) -> None:
        self.separation, self.rate = separation, rate
        self.probability = min(rate / (1.0 - rate * (separation - 1)), 1.0)
        self.columns = matrices.columns_from_rows(rows)
        self._blocks = list(self._column_blocks())
        self.squares = (self.columns**2).sum(axis=0)
        self.mean = self._outputs(np.full((1, len(rows)), rate))[0]

    @property
    def num_steps(self) -> int:
        return self.squares.size

    def largest_squared_norm(self) -> float:
        """The largest squared norm of the sum of one example's columns."""
        found = np.zeros(self.num_steps + self.separation)
        for t in range(self.num_steps - 1, -1, -1):
            found[t] = max(found[t + 1], self.squares[t] + found[t + self.separation])
        return float(found[0])

    def _outputs(self, x: np.ndarray) -> np.ndarray:
        """C times rows of x, shape [N, n]."""
        result = np.zeros(x.shape[::-1])
        with one_thread():
            for start, stop, block in self._blocks:
                result[start : start + len(block)] += block @ x.T[start:stop]
        return result.T

    def inner_products(self, y: np.ndarray) -> np.ndarray:
        """`<c_t, y>` for rows of y, shape [N, n]."""
        result = np.empty(y.shape[::-1])
        with one_thread():
            for start, stop, block in self._blocks:
                rows = y.T[start : start + len(block)]
                np.matmul(block.T, rows, out=result[start:stop])
        return result.T

    def _column_blocks(self) -> Iterator[tuple[int, int, np.ndarray]]:
        """Columns of C from `start` to `stop`, their rows from `start` on."""
        (bands, n), size = self.columns.shape, max(_BLOCK, self.columns.shape[0])
        for start in range(0, n, size):
            stop = min(start + size, n)
            steps = np.arange(stop - start)
            block = np.zeros((stop - start + bands - 1, stop - start))
            for j, column in enumerate(self.columns):
                block[steps + j, steps] = column[start:stop]
            yield start, stop, block[: n - start]

    def draw(
        self, generator: np.random.Generator, probability: np.ndarray
    ) -> np.ndarray:
        """Means `m_S` of random participations, one for each probability, shape [N, n]."""
        count, b = probability.size, self.separation
        uniform = generator.random(count)
        # At first a rest of 1 .. b - 1 steps with probability q each.
        free = np.where(uniform < self.rate * (b - 1), 1 + uniform // self.rate, 0)
        free = free.astype(np.int64)
        taken = np.zeros((self.num_steps, count))
        rows = np.arange(count)
        # From one participation to the next: a rest, then a geometric number of steps.
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
        """Means `m_S` under `P(S) prod_{t in S} exp(log_weights[t]) / Z`, shape [count, n].

        `Z` is the exponential of `log_ratio` at the log weights.
        """
        n, b = self.num_steps, self.separation
        p = self.probability
        # Log of the expected weight from step t on, of whoever is free then.
        ahead = np.zeros(n + b)
        with np.errstate(divide="ignore"):
            take, leave = math.log(p), np.log1p(-p)
            first = np.log(np.append(1.0 - self.rate * (b - 1), [self.rate] * (b - 1)))
        for t in range(n - 1, -1, -1):
            taken = take + log_weights[t] + ahead[t + b]
            ahead[t] = np.logaddexp(leave + ahead[t + 1], taken)
        first = first + ahead[:b]
        start = np.exp(first - np.logaddexp.reduce(first))
        free = np.searchsorted(np.cumsum(start), generator.random(count), side="right")
        free = np.minimum(free, b - 1)
        now = np.exp(take + log_weights + ahead[b:] - ahead[:n])
        found = np.zeros((n, count))
        for t in range(n):
            takes = (free <= t) & (generator.random(count) < now[t])
            found[t] = takes
            free[takes] = t + b
        return self._outputs(found.T)

    def log_ratio(self, exponents: np.ndarray, probability: float) -> np.ndarray:
        """`log sum_S P(S) prod_{t in S} exp(exponents[:, t])`, shape [N, n] -> [N]."""
        return self.log_ratios(exponents, [probability])[0]

    def log_ratios(
        self,
        exponents: np.ndarray,
        probabilities: Sequence[float],
        overwrite: bool = False,
    ) -> np.ndarray:
        """`log_ratio` with each of the probabilities > 0, shape [len, N].

        Args:
          exponents: shape [N, n].
          probabilities: of a participation.
          overwrite: the exponents may be changed.
        """
        least, most = exponents.min(initial=0.0), exponents.max(initial=0.0)
        if not -_LARGEST_EXPONENT <= least <= most <= _LARGEST_EXPONENT:
            return np.stack(
                [self._log_ratio_by_logs(exponents, p) for p in probabilities]
            )
        largest = exponents.T.max(axis=1, initial=0.0)
        in_place = overwrite and exponents.flags.f_contiguous
        factors = np.exp(exponents.T, out=exponents.T if in_place else None, order="C")
        found = np.empty((len(probabilities), len(exponents)))
        before = 1.0
        for row, probability in zip(found, probabilities):
            factors *= probability / before
            before = probability
            row[:] = self._log_total_of(factors, probability, largest)
        return found

    def _log_total_of(
        self, factors: np.ndarray, probability: float, largest: np.ndarray
    ) -> np.ndarray:
        """`log_ratio` of the exponentials times the probability, shape [n, N] -> [N].

        Args:
          factors: at most `probability * exp(largest)` at each step.
          probability: of a participation.
          largest: shape [n], >= 0.
        """
        n, count = factors.shape
        b, rate = self.separation, self.rate
        free = np.full(count, max(1.0 - rate * (b - 1), 0.0))
        # Whoever took part at the last b steps, at step t in row t mod b.
        taken = np.zeros((min(b, n), count))
        logs = np.zeros(count)
        # What a rest at the beginning adds, in units that change with the scale.
        begin = np.full(count, rate)
        # A step multiplies the largest of the sums by at most 2 exp(largest).
        growth = np.cumsum(largest + math.log(2.0))
        rescaled, period = 0.0, _rescaled_after(b, probability)
        for t in range(n):
            if t:
                free *= 1.0 - probability
                free += taken[t % b] if t >= b else begin
            np.multiply(free, factors[t], out=taken[t % b])
            ahead = growth[min(t + 1, n - 1)] - rescaled
            if t % period == period - 1 or ahead > _LARGEST_GROWTH:
                rescaled = growth[t]
                scale = np.maximum(free, taken.max(axis=0))
                free /= scale
                taken /= scale
                if t < b:
                    begin /= scale
                logs += np.log(scale)
        total = free * (1.0 - probability) + taken.sum(axis=0)
        if b > n:  # rests that last beyond the end
            total += (b - n) * begin
        return np.log(total) + logs

    def _log_ratio_by_logs(
        self, exponents: np.ndarray, probability: float
    ) -> np.ndarray:
        count, n = exponents.shape
        b = self.separation
        with np.errstate(divide="ignore"):
            take, leave = np.log(probability), np.log1p(-probability)
            first = np.log(max(1.0 - self.rate * (b - 1), 0.0))
        free = np.full(count, first)
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


def _rescaled_after(separation: int, probability: float) -> int:
    """Steps between rescalings, which cost as much as b steps."""
    least, most = _RESCALED
    if probability >= 1.0:  # nobody who is free stays so
        return least
    by_decay = int(_LEAST_LOG / math.log1p(-probability))
    return max(1, min(by_decay, max(least, min(separation // 4, most))))
