"""Buffered linear Toeplitz (BLT) strategies: long memory from a few buffers.

Dvijotham, McMahan, Pillutla, Steinke, Thakurta, "Efficient and Near-Optimal Noise
Generation for Streaming Differential Privacy", arXiv:2404.16706, for one participation;
McMahan, Xu, Zhang, "A Hassle-free Algorithm for Private Learning in Practice",
arXiv:2408.08868, for many under min-separation.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from tf_bandmf import matrices
from tf_bandmf.accounting.checks import whole_number
from tf_bandmf.participation import Participation
from tf_bandmf.strategies.base import Strategy
from tf_bandmf.strategies.registry import Family, Option, register
from tf_bandmf.workloads import Workload, check_workload

_MAX_BUFFERS = 10
DEFAULT_BUFFERS = 4
# Relative gain in squared error for which one more vector of memory is taken.
_LEAST_GAIN = 1e-4
# Iterations after which the best starting points are chosen.
_SCREENING_ITERATIONS = 12
# Runs of more steps begin with the optimum of so many times fewer ones.
_MOST_SEARCHED, _FEWER = 2**14, 16
# Bounds of the logits, far outside of what float64 resolves as interlaced decays.
_LARGEST_LOGIT = 34.0


def blt(
    workload: Workload,
    participation: Participation,
    num_buffers: int = DEFAULT_BUFFERS,
    objective: str = "mean",
    max_iterations: int = 1_000,
) -> Strategy:
    """The BLT strategy with the least error for a number of buffers.

    Its first column is positive and decreasing by construction, so the sensitivity
    under min-separation is exact (arXiv:2601.22334, Theorem 1). The logarithm of the
    error, not convex in the decays, is minimized by L-BFGS with exact gradients, for 1,
    2, ... buffers in turn, each from the previous optimum with a new buffer added at
    several places. It ends early when another buffer gains nothing, as happens for many
    participations. Every evaluation costs O(n d).

    Args:
      workload: A. Only the Toeplitz part matters; a learning-rate schedule does not
        change the strategy.
      participation: gives b and k.
      num_buffers: d, vectors of the model's size that the noise generator may keep, from
        1 to 10. The error hardly falls beyond 4 (arXiv:2505.12128, section 4).
      objective: "mean" for the RMSE, "max" for the MaxSE.
      max_iterations: of each L-BFGS run.

    Returns:
      The strategy. Its diagnostics have `converged`, `objective`, `gradient_norm` (of
      the logarithm of the squared error, in the variables of the search) and
      `iterations`. There is no certificate: `optimality_gap` is None.

    Raises:
      ValueError: for an unknown objective, or a number of buffers out of range.
    """
    check_workload(workload)
    if objective not in ("mean", "max"):
        raise ValueError(f'objective must be "mean" or "max", found {objective!r}.')
    num_buffers = whole_number("num_buffers", num_buffers, most=_MAX_BUFFERS)
    n = workload.num_steps
    rates = participation.separation(), participation.participations(n)
    problem = _Problem(workload, *rates, objective)
    best, iterations = _optimum(problem, num_buffers, max_iterations)
    decays, inverse_decays = decays_of(best.x)
    matrix = matrices.BufferedToeplitz(decays, inverse_decays, workload.num_steps)
    return Strategy(
        "blt",
        matrix,
        {"num_buffers": decays.size},
        {
            "objective": objective,
            "converged": bool(best.success),
            "optimality_gap": None,
            "gradient_norm": float(np.max(np.abs(problem.loss(best.x)[1]))),
            "iterations": iterations,
        },
    )


def _optimum(
    problem: _Problem, num_buffers: int, max_iterations: int
) -> tuple[Any, int]:
    """Where the best minimization ended, and the iterations of all.

    With one participation a run of many steps has decays like those of a shorter one, on a
    longer logarithmic scale: from there one minimization finds the optimum (measured:
    within 1e-12). With more of them it may end in another minimum.
    """
    n = problem.workload.num_steps
    if n > _MOST_SEARCHED and problem.is_single and problem.workload.is_toeplitz:
        shorter = problem.of_fewer_steps(-(-n // _FEWER))
        best, iterations = _optimum(shorter, num_buffers, max_iterations)
        longer = math.log(n) / math.log(shorter.workload.num_steps)
        start = variables_of(*(1.0 - (1.0 - x) ** longer for x in decays_of(best.x)))
        best = problem.minimize(start, max_iterations)
        return best, iterations + int(best.nit)
    decays, inverse_decays = np.zeros(0), np.zeros(0)
    best, iterations = None, 0
    for _ in range(num_buffers):
        starts = _starts(problem, decays, inverse_decays, n)
        screened = [problem.minimize(start, _SCREENING_ITERATIONS) for start in starts]
        screened.sort(key=lambda run: run.fun)
        runs = [problem.minimize(run.x, max_iterations) for run in screened[:2]]
        iterations += sum(int(run.nit) for run in [*screened, *runs])
        found = min(runs, key=lambda run: run.fun)
        if best is not None and found.fun > best.fun - _LEAST_GAIN:
            break
        best = found
        decays, inverse_decays = decays_of(best.x)
    return best, iterations


class _Problem:
    """log(error^2 sens^2) of a BLT and its gradient."""

    def __init__(
        self,
        workload: Workload,
        separation: int,
        participations: int,
        objective: str,
    ) -> None:
        n = workload.num_steps
        self.workload, self._objective = workload, objective
        self.column = workload.first_column()
        self.pattern = np.zeros(n)
        self.pattern[::separation][:participations] = 1.0
        # Entry t of B's first column is in n - t rows; the last row has the largest.
        self.weights = np.ones(n)
        if objective == "mean":
            self.weights = (n - np.arange(n)) / n

    @property
    def is_single(self) -> bool:
        """Whether an example takes part once."""
        return bool(self.pattern.sum() == 1.0)

    def of_fewer_steps(self, num_steps: int) -> _Problem:
        """With one participation."""
        workload = dataclasses.replace(self.workload, num_steps=num_steps)
        return _Problem(workload, num_steps, 1, self._objective)

    def minimize(self, start: np.ndarray, max_iterations: int) -> Any:
        import scipy.optimize  # slow to import

        return scipy.optimize.minimize(
            self.loss,
            start,
            jac=True,
            method="L-BFGS-B",
            bounds=[(-_LARGEST_LOGIT, _LARGEST_LOGIT)] * start.size,
            options={"maxiter": max_iterations, "ftol": 1e-14, "gtol": 1e-9},
        )

    def loss(self, variables: np.ndarray) -> tuple[float, np.ndarray]:
        theta, theta_inverse = decays_of(variables)
        if np.min(-np.diff(_interlaced(theta, theta_inverse)), initial=1.0) <= 0.0:
            return np.inf, np.zeros_like(variables)
        matrix = matrices.BufferedToeplitz(theta, theta_inverse, self.column.size)
        error = matrix.solve(self.column)
        response = matrix.matmul(self.pattern)
        squared_error = float(self.weights @ error**2)
        squared_response = float(response @ response)
        # d log C / d theta = x / (1 - theta x), and the negative for the inverse decays.
        gradient = []
        for decay, sign in _interlaced_signs(theta, theta_inverse):
            by_response = 2.0 * (response @ _delayed(response, decay))
            by_error = 2.0 * ((self.weights * error) @ _delayed(error, decay))
            gradient.append(
                sign * (by_response / squared_response - by_error / squared_error)
            )
        value = np.log(squared_error) + np.log(squared_response)
        return value, _chain(variables, np.array(gradient))


def _sigmoid(x: np.ndarray) -> np.ndarray:
    import scipy.special  # slow to import

    return scipy.special.expit(x)


def _delayed(x: np.ndarray, decay: float) -> np.ndarray:
    """The series `x` times `x / (1 - decay x)`."""
    import scipy.signal  # slow to import

    return scipy.signal.lfilter([0.0, 1.0], [1.0, -decay], x)


def _interlaced(theta: np.ndarray, theta_inverse: np.ndarray) -> np.ndarray:
    return np.stack([theta, theta_inverse], axis=1).ravel()


def _interlaced_signs(
    theta: np.ndarray, theta_inverse: np.ndarray
) -> list[tuple[float, float]]:
    decays = _interlaced(theta, theta_inverse)
    return [(float(d), 1.0 if m % 2 == 0 else -1.0) for m, d in enumerate(decays)]


def decays_of(variables: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """theta[0] > theta_inverse[0] > theta[1] > ...: each the last times a sigmoid."""
    ratios = _sigmoid(variables)
    decays = np.cumprod(ratios)
    return decays[0::2], decays[1::2]


def _chain(variables: np.ndarray, by_decay: np.ndarray) -> np.ndarray:
    """The gradient by the variables from that by the interlaced decays."""
    decays = np.cumprod(_sigmoid(variables))
    tails = np.cumsum((by_decay * decays)[::-1])[::-1]
    # d log(sigmoid(v)) / dv = 1 - sigmoid(v).
    return tails * _sigmoid(-variables)


def variables_of(theta: np.ndarray, theta_inverse: np.ndarray) -> np.ndarray:
    """Logits of the ratios of interlaced decays, [2 d]; the inverse of `decays_of`."""
    decays = np.concatenate([[1.0], _interlaced(theta, theta_inverse)])
    ratios = decays[1:] / decays[:-1]
    with np.errstate(divide="ignore"):  # of 1, where the difference is below rounding
        logits = np.log(ratios) - np.log1p(-ratios)
    return np.clip(logits, -_LARGEST_LOGIT, _LARGEST_LOGIT)


def _starts(
    problem: _Problem, theta: np.ndarray, theta_inverse: np.ndarray, num_steps: int
) -> list[np.ndarray]:
    """Starting points for one more buffer than theta has.

    The new pair of decays goes to the places of a grid, close together (almost no
    weight) or far apart; of each kind the three best are tried.
    """
    slow = 1.0 - np.geomspace(min(0.5, 1e-2 / num_steps), 0.5, 12)
    places = np.concatenate([slow, [0.35, 0.2, 0.1, 0.03]])
    starts: list[np.ndarray] = []
    for fraction in (0.1, 0.6):
        candidates = []
        for place in places:
            larger = theta > place
            if np.any(theta == place) or np.any(theta_inverse[larger] <= place):
                continue
            # The pair lies between this place and the next smaller decay, or 0.
            below = np.max(theta[~larger], initial=0.0)
            paired = place - fraction * min(place - below, 1.0 - place)
            candidates.append(
                variables_of(
                    np.concatenate([theta[larger], [place], theta[~larger]]),
                    np.concatenate(
                        [theta_inverse[larger], [paired], theta_inverse[~larger]]
                    ),
                )
            )
        candidates.sort(key=lambda start: problem.loss(start)[0])
        starts.extend(candidates[:3])
    # Decays spread evenly on a logarithmic scale, as a start from nothing.
    spread = (
        1.0 - np.geomspace(1.0 / (num_steps + 1), 0.9, 2 * (theta.size + 1) + 1)[:-1]
    )
    starts.append(variables_of(spread[0::2], spread[1::2]))
    return starts


def _build(
    workload: Workload,
    participation: Participation,
    buffers: int = DEFAULT_BUFFERS,
    objective: str = "mean",
) -> Strategy:
    return blt(workload, participation, buffers, objective)


register(
    Family(
        "blt",
        _build,
        "a few geometric sequences",
        (Option("buffers", default=DEFAULT_BUFFERS),),
        auto=7,
        is_optimized=True,
    )
)
