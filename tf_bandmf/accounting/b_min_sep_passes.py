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

import numpy as np


class Passes:
    """Participations and likelihood ratios of one strategy and sampling.

    Args:
      rows: `rows[i, j] = C[i, i - j]`, shape [n, bands], not negative.
      separation: b >= bands.
      rate: q, the probability of a participation at a step.
    """

    def __init__(self, rows: np.ndarray, separation: int, rate: float) -> None:
        n, bands = rows.shape
        self.separation, self.rate = separation, rate
        self.probability = min(rate / (1.0 - rate * (separation - 1)), 1.0)
        self.columns = np.zeros((bands, n))
        for j in range(bands):
            self.columns[j, : n - j] = rows[j:, j]
        self.squares = (self.columns**2).sum(axis=0)
        self.mean = self._outputs(np.full((1, n), rate))[0]

    @property
    def num_steps(self) -> int:
        return self.squares.size

    def largest_squared_norm(self) -> float:
        """Of the sum of one example's columns, at most."""
        found = np.zeros(self.num_steps + self.separation)
        for t in range(self.num_steps - 1, -1, -1):
            found[t] = max(found[t + 1], self.squares[t] + found[t + self.separation])
        return float(found[0])

    def _outputs(self, x: np.ndarray) -> np.ndarray:
        """C times rows of x, shape [N, n]."""
        n, result = self.num_steps, np.zeros_like(x)
        for j, column in enumerate(self.columns):
            result[:, j:] += (x * column)[:, : n - j]
        return result

    def inner_products(self, y: np.ndarray) -> np.ndarray:
        """`<c_t, y>` for rows of y, shape [N, n]."""
        n, result = self.num_steps, np.zeros_like(y)
        for j, column in enumerate(self.columns):
            result[:, : n - j] += y[:, j:] * column[: n - j]
        return result

    def draw(
        self, generator: np.random.Generator, probability: np.ndarray
    ) -> np.ndarray:
        """Means `m_S` of random participations, one for each probability, shape [N, n]."""
        count, b = probability.size, self.separation
        uniform = generator.random(count)
        # At first a rest of 1 .. b - 1 steps with probability q each.
        free = np.where(uniform < self.rate * (b - 1), 1 + uniform // self.rate, 0)
        taken = np.zeros((count, self.num_steps))
        for t in range(self.num_steps):
            now = (free <= t) & (generator.random(count) < probability)
            taken[:, t] = now
            free = np.where(now, t + b, free)
        return self._outputs(taken)

    def log_ratio(self, exponents: np.ndarray, probability: float) -> np.ndarray:
        """`log sum_S P(S) prod_{t in S} exp(exponents[:, t])`, shape [N, n] -> [N]."""
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
        return np.logaddexp.reduce(np.stack(ends), axis=0)
