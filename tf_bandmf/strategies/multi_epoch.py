"""Dense multi-epoch matrix factorization (MULTI-EPOCH MF), with a certificate.

The mechanism is that of Choquette-Choo, McMahan, Rush, Thakurta, "Multi-Epoch Matrix
Factorization Mechanisms for Private Machine Learning", arXiv:2211.06530. In
arXiv:2306.08153, Table 2, it is the baseline 'MF [15]'. For the workload matrix A and
the strategy matrix C, the mechanism minimizes `tr(A^T A X^-1)` over the Gram matrix
`X = C^T C`, subject to a constraint: if one example can take part in two steps, the
columns of `C` for these two steps are orthogonal. Under a fixed epoch order, the
sensitivity then depends only on the column norms. With one participation per example,
there is no such constraint, and the result is the best of all factorizations.
"""

from __future__ import annotations

from typing import Callable

import numpy as np

from tf_bandmf import matrices
from tf_bandmf.participation import FixedEpochOrder, Participation
from tf_bandmf.strategies.base import Strategy
from tf_bandmf.strategies.registry import Family, register
from tf_bandmf.workloads import Workload, check_workload

# The maximum number of steps: each iteration needs several n x n arrays and an
# eigendecomposition.
_LARGEST_NUM_STEPS = 8_192
# The exponent w of the iteration in the docstring of `dense`. For a diagonal Gram
# matrix, w = 2 would give the optimum in one iteration.
_RELAXATION = 1.8
# The number of earlier results that Anderson acceleration combines.
_DEPTH = 12


def dense(
    workload: Workload,
    participation: Participation,
    equal_column_norms: bool | None = None,
    tolerance: float = 1e-6,
    max_iterations: int = 300,
) -> Strategy:
    """Returns the dense strategy with the smallest mean error in a class of strategies.

    The class depends on the participation, with min separation b.
    `diagnostics["optimal_among"]` names the class:

    | participations per example | class |
    |---|---|
    | one | all strategies: `sens(C)` is the largest column norm |
    | several, fixed epoch order | columns b, 2b, ... steps apart are orthogonal |
    | several, min-separation | as for fixed epoch order, and columns have equal norms |

    With several participations, a strategy outside the class may be better. Without
    orthogonal columns, the sensitivity is not a function of the column norms, and the
    optimum is unknown. Under a fixed epoch order, the sensitivity of the result is
    exact; under min-separation, it is an upper bound (arXiv:2306.08153, Alg. 4).

    The noise of each step depends on the normals of all earlier steps. Therefore a
    generator either stores `n` vectors or regenerates up to `n - 1` vectors per step;
    `Strategy` assumes that it regenerates them.

    **Method.** Steps with the same position in the epoch form a group, so matrices
    consist of blocks, one for each pair of groups. Let A be the matrix of the workload,
    `X = C^T C`, and `L = X^-1 A^T A X^-1`. At the optimum, L is block diagonal, and the
    diagonal blocks of `X` are diagonal matrices. L determines X:
    `X = L^-1/2 (L^1/2 A^T A L^1/2)^1/2 L^-1/2`. The iteration is
    `L <- L^1/2 P^w L^1/2`, where `P` consists of the diagonal blocks of `X` divided by
    the squared column norms that they should have, and w is a fixed exponent. For
    blocks of size one and `w = 1`, this is the fixed-point iteration of Denisov et al.,
    2022 (arXiv:2202.08312, Theorem 3.2). Whitening the diagonal blocks of `X` gives a
    feasible matrix, that is, one that meets the constraints. By Lagrange duality, `L`
    gives a lower bound on the error of every feasible matrix. The iterations end when
    the error of the feasible matrix and this lower bound agree to `tolerance`.

    Args:
      workload: the workload, with n steps.
      participation: participation that determines the min separation b and the maximum
        number k of participations. With k = 1, b does not matter. Otherwise k must be
        `ceil(n / b)`, unless `equal_column_norms` is True.
      equal_column_norms: True if the columns of `C` must have equal norms. The default
        is False for a fixed epoch order. Otherwise it is True, as arXiv:2306.08153,
        Table 2, recommends for long runs.
      tolerance: iterations end once the certified relative gap of the squared error is
        at most this value.
      max_iterations: maximum number of iterations, each with one eigendecomposition and
        about 10 n^3 operations.

    Returns:
      The strategy, which has sensitivity 1 under a fixed epoch order. Its diagnostics
      contain `converged`, `optimality_gap` (the relative gap of the mean squared error
      in the class `optimal_among`), `iterations` and `mean_squared_error`.

    Raises:
      ValueError: if there are more than 8,192 steps, if the tolerance is not positive,
        or if k is below `ceil(n / b)` and `equal_column_norms` is False.
    """
    check_workload(workload)
    n = workload.num_steps
    if n > _LARGEST_NUM_STEPS:
        raise ValueError(
            f"num_steps must be <= {_LARGEST_NUM_STEPS} for a dense strategy, found "
            f"{n}. Use a banded or a Toeplitz strategy."
        )
    if not tolerance > 0.0 or max_iterations < 1:
        raise ValueError(
            f"tolerance must be > 0, and max_iterations must be >= 1, found tolerance = "
            f"{tolerance} and max_iterations = {max_iterations}."
        )
    k = participation.participations(n)
    b = participation.separation() if k > 1 else n
    if equal_column_norms is None:
        equal_column_norms = not isinstance(participation, FixedEpochOrder)
    if not equal_column_norms and k < -(-n // b):
        raise ValueError(
            f"max_participations must be {-(-n // b)} (num_steps / min_separation, rounded "
            f"up) unless equal_column_norms=True, found {k}."
        )
    gram, squared_error, gap, iterations = _optimize(
        workload, min(b, n), k, equal_column_norms, tolerance, max_iterations
    )
    optimal_among = "orthogonal columns" + " of equal norm" * equal_column_norms
    return Strategy(
        "dense",
        matrices.Dense(matrices.lower_triangular_factor(gram)),
        {"min_separation": b, "equal_column_norms": bool(equal_column_norms)},
        {
            "converged": gap <= tolerance,
            "optimality_gap": gap,
            "optimal_among": "all strategies" if k == 1 else optimal_among,
            "iterations": iterations,
            "mean_squared_error": squared_error / n,
        },
    )


class _Blocks:
    """The layout of block-diagonal matrices, with one block per position in the epoch.

    Let n be the number of steps and b the number of positions. The first `n mod b`
    positions have one step more than the others. Therefore a block-diagonal matrix is
    stored as a list of up to two arrays, one for each block size. The shape of an array
    is [number of blocks, size, size].
    """

    def __init__(self, num_steps: int, min_separation: int) -> None:
        n, b = num_steps, min_separation
        position = np.arange(n) % b
        self.order = np.argsort(position, kind="stable")
        longer = n % b
        groups = [(longer, -(-n // b)), (b - longer, n // b)]
        self.groups = [(count, size) for count, size in groups if count and size]

    def split(self, x: np.ndarray) -> list[np.ndarray]:
        """Splits the rows of x into one array per block size.

        Returns:
          For each block size, an array of shape [number of blocks, size, ...].
        """
        parts = np.split(
            x, np.cumsum([count * size for count, size in self.groups])[:-1]
        )
        shapes = [(*group, *x.shape[1:]) for group in self.groups]
        return [part.reshape(shape) for part, shape in zip(parts, shapes)]

    def join(self, parts: list[np.ndarray]) -> np.ndarray:
        return np.concatenate([part.reshape(-1, *part.shape[2:]) for part in parts])

    def diagonal(self, v: np.ndarray) -> list[np.ndarray]:
        return [part[:, :, None] * np.eye(part.shape[1]) for part in self.split(v)]

    def apply(self, blocks: list[np.ndarray], x: np.ndarray) -> np.ndarray:
        """Returns the product of a block-diagonal and a dense matrix, [n, m]."""
        return self.join([g @ part for g, part in zip(blocks, self.split(x))])


def _function(block: np.ndarray, function: Callable) -> np.ndarray:
    """Applies a scalar function to symmetric matrices, through their eigenvalues.

    Args:
      block: the matrices, shape [number of matrices, size, size].
      function: function of an array of eigenvalues.
    """
    values, vectors = np.linalg.eigh(0.5 * (block + block.transpose(0, 2, 1)))
    return (vectors * function(values)[:, None, :]) @ vectors.transpose(0, 2, 1)


def _power(blocks: list[np.ndarray], exponent: float) -> list[np.ndarray]:
    tiny = np.finfo(float).tiny
    return [_function(g, lambda v: np.maximum(v, tiny) ** exponent) for g in blocks]


def _diagonals(blocks: list[np.ndarray]) -> list[np.ndarray]:
    return [np.diagonal(block, axis1=1, axis2=2) for block in blocks]


def _scaled(blocks: list[np.ndarray], factors: list[np.ndarray]) -> list[np.ndarray]:
    """Returns `diag(f) block diag(f)` for each block and its vector f in `factors`."""
    return [f[:, :, None] * g * f[:, None, :] for g, f in zip(blocks, factors)]


def _optimize(
    workload: Workload,
    min_separation: int,
    max_participations: int,
    equal_column_norms: bool,
    tolerance: float,
    max_iterations: int,
) -> tuple[np.ndarray, float, float, int]:
    """Minimizes `tr(A^T A X^-1)` over feasible Gram matrices X, as `dense` explains.

    Let `X = D^1/2 Y D^1/2`, where the diagonal blocks of Y are identity matrices and
    the diagonal matrix D contains the squared column norms. In this function, L is the
    Lagrange multiplier for the diagonal blocks of Y; for those of X, the multiplier is
    `D^-1/2 L D^-1/2`. Unless `equal_column_norms` is True, the column norms are
    optimized, too: at the optimum, the diagonal of `D^-1/2 L D^-1/2` is constant within
    each position in the epoch. Damped steps converge to norms with this property.

    Returns:
      X, its squared error, the relative gap, and the number of iterations.
    """
    n = workload.num_steps
    blocks = _Blocks(n, min_separation)
    inverse_order = np.argsort(blocks.order)
    inverse_workload = workload.inverse()
    dense_workload = workload.to_dense()[:, blocks.order]
    gram_workload = dense_workload.T @ dense_workload
    size = float(max_participations)
    norms = np.full(n, 1.0 / size)
    if not equal_column_norms:
        norms = blocks.join([np.full(g, 1.0 / g[1]) for g in blocks.groups])
    multiplier = blocks.diagonal(np.sqrt(np.diag(gram_workload) / norms))
    accelerator = _Anderson()
    best: tuple[float, np.ndarray] | None = None
    lower, gap, iteration = 0.0, np.inf, 0
    for iteration in range(1, max_iterations + 1):  # noqa: B007, read after it
        root = _power(multiplier, 0.5)
        inverse_root = _power(multiplier, -0.5)
        scale = 1.0 / np.sqrt(norms)
        # `middle` is L^1/2 D^-1/2 A^T A D^-1/2 L^1/2, with L and D from the docstring.
        middle = blocks.apply(root, scale[:, None] * gram_workload * scale)
        middle = blocks.apply(root, middle.T)
        values, vectors = np.linalg.eigh(0.5 * (middle + middle.T))
        values = np.sqrt(np.maximum(values, np.finfo(float).tiny))
        diagonal = [d / s for d, s in zip(_diagonals(multiplier), blocks.split(norms))]
        lower = max(
            lower,
            values.sum() ** 2 / _largest_inner(diagonal, equal_column_norms, size),
        )
        # `left left^T` is Y from the docstring; `current` contains Y's diagonal blocks.
        left = blocks.apply(inverse_root, vectors * np.sqrt(values))
        current = [part @ part.transpose(0, 2, 1) for part in blocks.split(left)]
        whiten, color = _power(current, -0.5), _power(current, 0.5)
        # Whitening the diagonal blocks of Y makes X feasible. `error` is the squared
        # error of this feasible X.
        inverse = blocks.apply(color, blocks.apply(root, vectors / np.sqrt(values)))
        inverse = (scale[:, None] * inverse)[inverse_order]
        error = float(np.sum(inverse_workload.solve(inverse) ** 2))
        if best is None or error < best[0]:
            best = (error, np.sqrt(norms)[:, None] * blocks.apply(whiten, left))
        gap = best[0] / lower - 1.0
        if gap <= tolerance:
            break
        update = _power(current, _RELAXATION)
        following = [r @ p @ r for r, p in zip(root, update)]
        targets = blocks.split(norms)
        if not equal_column_norms:
            targets = [np.sqrt(s * d) for s, d in zip(targets, _diagonals(following))]
            targets = [t / t.sum(axis=1, keepdims=True) for t in targets]
            ratio = [np.sqrt(t / s) for t, s in zip(targets, blocks.split(norms))]
            following = _scaled(following, ratio)
        multiplier, targets = accelerator.step(
            (multiplier, blocks.split(norms)), (following, targets)
        )
        if not equal_column_norms:
            targets = [t / t.sum(axis=1, keepdims=True) for t in targets]
        norms = blocks.join(targets)
    assert best is not None
    factor = best[1][inverse_order]
    gap = max(float(gap), 0.0)
    return factor @ factor.T, best[0], gap, iteration


class _Anderson:
    """Anderson acceleration of the iteration in `_optimize`.

    The next point is the combination of the last few results that would have the
    smallest residual if the iteration were linear. The combination is computed from the
    logarithms of the Lagrange multiplier and of the squared column norms.
    """

    def __init__(self) -> None:
        self._residuals: list[np.ndarray] = []
        self._results: list[np.ndarray] = []

    def step(
        self,
        point: tuple[list[np.ndarray], list[np.ndarray]],
        result: tuple[list[np.ndarray], list[np.ndarray]],
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        before, after = self._flatten(point), self._flatten(result)
        self._residuals = [*self._residuals[1 - _DEPTH :], after - before]
        self._results = [*self._results[1 - _DEPTH :], after]
        if len(self._results) == 1:
            return result
        change = np.diff(np.stack(self._residuals, axis=1), axis=1)
        weights = np.linalg.lstsq(change, self._residuals[-1], rcond=1e-8)[0]
        combined = after - np.diff(np.stack(self._results, axis=1), axis=1) @ weights
        return self._unflatten(combined, result)

    @staticmethod
    def _flatten(point: tuple[list[np.ndarray], list[np.ndarray]]) -> np.ndarray:
        matrices = [_function(block, np.log).ravel() for block in point[0]]
        return np.concatenate(matrices + [np.log(v).ravel() for v in point[1]])

    @staticmethod
    def _unflatten(
        flat: np.ndarray, like: tuple[list[np.ndarray], list[np.ndarray]]
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        blocks = [*like[0], *like[1]]
        pieces = np.split(flat, np.cumsum([block.size for block in blocks])[:-1])
        parts = [p.reshape(block.shape) for p, block in zip(pieces, blocks)]
        matrices, vectors = parts[: len(like[0])], parts[len(like[0]) :]
        return [_function(m, np.exp) for m in matrices], [np.exp(v) for v in vectors]


def _largest_inner(
    diagonal: list[np.ndarray], equal_column_norms: bool, size: float
) -> float:
    """Returns the maximum inner product of a multiplier and feasible Gram matrices.

    Let X be the Gram matrix, Lambda its block-diagonal Lagrange multiplier, A the
    matrix of the workload, and `||.||_*` the nuclear norm. By duality,
    `tr(A^T A X^-1) + <Lambda, X> >= 2 ||A Lambda^1/2||_*` for every X. The best
    multiple of Lambda gives the lower bound
    `tr(A^T A X^-1) >= ||A Lambda^1/2||_*^2 / max <Lambda, X>`. This function returns
    `max <Lambda, X>`, for which the diagonal of Lambda suffices.

    Args:
      diagonal: the diagonal of Lambda, split into blocks.
      equal_column_norms: True if all column norms of a feasible X are equal.
      size: k, the maximum number of participations. If all column norms are equal,
        their squares are `1 / k`.
    """
    if equal_column_norms:
        return sum(float(d.sum()) for d in diagonal) / size
    return sum(float(d.max(axis=1).sum()) for d in diagonal)


register(
    Family(
        "dense",
        dense,
        is_optimized=True,
    )
)
