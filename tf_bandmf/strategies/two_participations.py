"""The best strategy of all for at most two participations, with a certificate.

With two participations the squared sensitivity is a maximum of linear functions of the
Gram matrix `X = C^T C`: over steps i and j that are at least b apart and both signs,

    <Y, X> = X_ii + X_jj +- 2 X_ij,    Y = (e_i +- e_j) (e_i +- e_j)^T,

and `X_ii` for steps that have no partner. So to minimize `tr(A^T A X^-1)` subject to all of
them being at most 1 is convex, without any assumption on columns. By Lagrange duality
(arXiv:2202.08312, Theorem 3.2, has it for one participation), for all weights of the
constraints, `L = sum_m w_m Y_m`,

    min_X tr(A^T A X^-1) >= ||A L^1/2||_*^2 / sum_m w_m,

and the optimum is `X = L^-1/2 (L^1/2 A^T A L^1/2)^1/2 L^-1/2` for the best weights.
"""

from __future__ import annotations

import dataclasses

import numpy as np

# Constraints that begin, and lose, their part in the sum of weights.
_FIRST_WEIGHT, _LEAST_WEIGHT, _LEAST_LOG = 1e-3, 1e-9, -30.0
# Multiplicative steps before L-BFGS, at first and after more constraints.
_FIRST_STEPS, _STEPS, _PAIRS = 30, 8, 30
_MOST_EVALUATIONS = 200
_TINY = np.finfo(float).tiny


@dataclasses.dataclass(frozen=True)
class Optimum:
    """X, its squared error, and how far that is from the least, relatively."""

    gram: np.ndarray
    squared_error: float
    gap: float
    iterations: int


class _Reached(Exception):
    """The weights are good enough."""


def optimum(
    workload: np.ndarray,
    min_separation: int,
    tolerance: float,
    max_rounds: int,
) -> Optimum:
    """The X with the smallest squared error at sensitivity 1.

    Few of the n^2 constraints matter: rounds alternate between finding their weights and
    adding the most violated ones.

    Args:
      workload: A, invertible, [n, n].
      min_separation: b.
      tolerance: largest relative gap.
      max_rounds: of adding constraints; each takes some 200 times 10 n^3 operations.
    """
    n = len(workload)
    rows, columns = np.triu_indices(n, min_separation)
    is_pair = np.zeros((n, n), bool)
    is_pair[rows, columns] = True
    is_alone = ~(is_pair.any(axis=0) | is_pair.any(axis=1))
    # (i, j, sign); sign 0 for a step alone.
    weights = {(int(i), int(i), 0): 1.0 for i in np.flatnonzero(is_alone)}
    near = range(n - min_separation)
    weights.update({(i, i + min_separation, s): 1.0 for i in near for s in (1, -1)})
    dual = _Dual(workload)
    best, gram, lower, gap, index = np.inf, np.eye(n), 0.0, np.inf, 0
    for index in range(1, max_rounds + 1):
        steps = _FIRST_STEPS if index == 1 else _STEPS
        found, x, bound = dual.maximize(weights, steps, tolerance / 4.0)
        lower = max(lower, bound)
        norms = np.diag(x)
        sums = np.where(is_pair, norms[:, None] + norms + 2.0 * np.abs(x), 0.0)
        largest = max(sums.max(), norms[is_alone].max(initial=0.0))
        error = dual.squared_error(x) * largest
        if error < best:
            best, gram = error, x / largest
        gap = max(best / lower - 1.0, 0.0)
        if gap <= tolerance:
            break
        weights = _kept(found, min_separation)
        first = _FIRST_WEIGHT * float(np.mean(list(weights.values())))
        for i in range(n):
            for j, k in ((i, int(sums[i].argmax())), (int(sums[:, i].argmax()), i)):
                if sums[j, k] > 1.0 + tolerance / 4.0:
                    weights.setdefault((j, k, 1 if x[j, k] >= 0.0 else -1), first)
    return Optimum(gram, float(best), float(gap), index)


def _kept(
    weights: dict[tuple[int, int, int], float], min_separation: int
) -> dict[tuple[int, int, int], float]:
    """Those that matter, and those of neighbors, by which L is never singular."""
    least = _LEAST_WEIGHT * max(weights.values())
    return {
        (i, j, sign): weight
        for (i, j, sign), weight in weights.items()
        if weight > least or j - i == min_separation
    }


class _Dual:
    """The concave function of the weights, `2 ||A L^1/2||_* - sum w`."""

    def __init__(self, workload: np.ndarray) -> None:
        self._root = workload

    def squared_error(self, gram: np.ndarray) -> float:
        return float(np.trace(self._root @ np.linalg.solve(gram, self._root.T)))

    def maximize(
        self, start: dict[tuple[int, int, int], float], steps: int, tolerance: float
    ) -> tuple[dict[tuple[int, int, int], float], np.ndarray, float]:
        """Weights of these constraints, their X, and the lower bound that they give."""
        import scipy.optimize

        keys = list(start)
        i, j, sign = (np.array(part) for part in zip(*keys))
        both = sign != 0

        def primal(w: np.ndarray) -> tuple[np.ndarray, float]:
            gram = np.zeros_like(self._root)
            np.add.at(gram, (i, i), w)
            np.add.at(gram, (j[both], j[both]), w[both])
            np.add.at(gram, (i[both], j[both]), (w * sign)[both])
            np.add.at(gram, (j[both], i[both]), (w * sign)[both])
            values, vectors = np.linalg.eigh(self._root @ gram @ self._root.T)
            values = np.sqrt(np.maximum(values, _TINY))
            left = self._root.T @ (vectors / np.sqrt(values))
            return left @ left.T, float(values.sum())

        def inner(x: np.ndarray) -> np.ndarray:
            """`<Y, X>` of each constraint."""
            pairs = x[i, i] + x[j, j] + 2.0 * sign * x[i, j]
            return np.where(both, pairs, x[i, i])

        w = np.array([start[key] for key in keys])
        w *= (primal(w)[1] / w.sum()) ** 2
        for _ in range(steps):
            w = w * inner(primal(w)[0])
        last = [np.log(np.maximum(w, np.exp(_LEAST_LOG)))]
        limits = [np.inf, 0.0]

        def negative(log_w: np.ndarray) -> tuple[float, np.ndarray]:
            w = np.exp(log_w)
            x, norm = primal(w)
            found = inner(x)
            limits[0] = min(limits[0], norm * found.max())
            limits[1] = max(limits[1], norm**2 / w.sum())
            return float(w.sum() - 2.0 * norm), w * (1.0 - found)

        def after(log_w: np.ndarray) -> None:
            last[0] = log_w
            if limits[0] / limits[1] - 1.0 < tolerance:
                raise _Reached

        try:
            scipy.optimize.minimize(
                negative,
                last[0],
                jac=True,
                method="L-BFGS-B",
                callback=after,
                bounds=[(_LEAST_LOG, -_LEAST_LOG)] * len(keys),
                options={
                    "maxiter": _MOST_EVALUATIONS,
                    "maxfun": _MOST_EVALUATIONS,
                    "maxcor": _PAIRS,
                    "ftol": 0.0,
                    "gtol": 0.0,
                },
            )
        except _Reached:
            pass
        w = np.exp(last[0])
        x, norm = primal(w)
        return dict(zip(keys, w.tolist())), x, norm**2 / float(w.sum())
