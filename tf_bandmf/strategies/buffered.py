"""Buffered linear Toeplitz (BLT) strategies: long memory from a few buffers.

Sources: Dvijotham, McMahan, Pillutla, Steinke, Thakurta, "Efficient and Near-Optimal Noise
Generation for Streaming Differential Privacy", arXiv:2404.16706, for one participation;
McMahan, Xu, Zhang, "A Hassle-free Algorithm for Private Learning in Practice",
arXiv:2408.08868, for several participations under min-separation.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tf_bandmf import matrices
from tf_bandmf.accounting.checks import check_word, whole_number
from tf_bandmf.participation import Participation
from tf_bandmf.strategies.base import Strategy
from tf_bandmf.strategies.registry import Family, Option, register
from tf_bandmf.workloads import Workload, check_workload

_MAX_BUFFERS = 10
DEFAULT_BUFFERS = 4
# The minimum relative decrease of the squared error that justifies another buffer.
_LEAST_GAIN = 1e-4
# The number of iterations after which the best starting points are chosen.
_SCREENING_ITERATIONS, _MOST_ITERATIONS = 12, 1_000
# The maximum absolute logit. It is far beyond the range in which float64 resolves
# interlaced decays.
_LARGEST_LOGIT = 34.0


def blt(
    workload: Workload,
    participation: Participation,
    num_buffers: int = DEFAULT_BUFFERS,
    objective: str = "mean",
) -> Strategy:
    """Returns the BLT strategy with the smallest error for a number of buffers.

    The first column of `C` is positive and decreasing by construction, so the
    sensitivity under min-separation is exact (arXiv:2601.22334, Theorem 1). The
    logarithm of the error, which is not convex in the decays, is minimized by L-BFGS
    with exact gradients, for 1, 2, ... buffers in turn. Each search starts from the
    previous optimum, with a new buffer added at several positions. The search ends
    early if another buffer gives no improvement, which is common with many
    participations. Each evaluation costs O(d^3 log n).

    Args:
      workload: A. The strategy depends only on the Toeplitz factor of A, not on a
        learning-rate schedule.
      participation: participation that determines the min separation and the maximum
        number of participations.
      num_buffers: d, maximum number of model-sized vectors that the noise generator may
        store, from 1 to 10. Beyond 4 buffers, the error hardly decreases
        (arXiv:2505.12128, section 4).
      objective: "mean" for the RMSE, "max" for the MaxSE.

    Returns:
      The strategy. Its diagnostics contain `converged`, `objective`, `gradient_norm` (of
      the logarithm of the squared error, in the variables of the search) and `iterations`.
      There is no certificate, so `optimality_gap` is None.

    Raises:
      ValueError: for an unknown objective, or a number of buffers out of range.
    """
    check_workload(workload)
    check_word("objective", objective, ("mean", "max"))
    num_buffers = whole_number("num_buffers", num_buffers, most=_MAX_BUFFERS)
    problem = _Problem(workload, participation, objective)
    best, iterations = _optimum(problem, num_buffers)
    matrix = matrices.BufferedToeplitz(*decays_of(best.x), workload.num_steps)
    return Strategy(
        "blt",
        matrix,
        {"num_buffers": matrix.decays.size},
        {
            "objective": objective,
            "converged": bool(best.success),
            "optimality_gap": None,
            "gradient_norm": float(np.max(np.abs(best.jac))),
            "iterations": iterations,
        },
    )


def _optimum(problem: _Problem, num_buffers: int) -> tuple[Any, int]:
    """Returns the best local minimum, and the total number of iterations."""
    decays, inverse_decays = np.zeros(0), np.zeros(0)
    best, iterations = None, 0
    for _ in range(num_buffers):
        starts = _starts(problem, decays, inverse_decays)
        screened = [problem.minimize(start, _SCREENING_ITERATIONS) for start in starts]
        screened.sort(key=lambda run: run.fun)
        runs = [problem.minimize(run.x, _MOST_ITERATIONS) for run in screened[:2]]
        iterations += sum(int(run.nit) for run in [*screened, *runs])
        better = min(runs, key=lambda run: run.fun)
        if best is not None and better.fun > best.fun - _LEAST_GAIN:
            break
        best = better
        decays, inverse_decays = decays_of(best.x)
    return best, iterations


class _Problem:
    """Computes log(error^2 sens^2) of a BLT and its gradient, in time O(d^3 log n).

    The first columns of `C` and `A C^-1`, and (up to sign) their derivatives with
    respect to the decays, are states of linear recurrences `s[t + 1] = F s[t]`; `_sum`
    adds up the products of two states over all steps.
    """

    def __init__(
        self, workload: Workload, participation: Participation, objective: str
    ) -> None:
        self.num_steps, self._is_mean = workload.num_steps, objective == "mean"
        self._separation = participation.separation()
        self._participations = participation.participations(self.num_steps)
        # The generating function of A is a reciprocal of factors `1 - p x`. The poles
        # are stored as `1 - p`.
        self._poles = 1.0 - np.sort(np.roots(workload.inverse_coefficients))[::-1]

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
        """Returns loss and gradient at `variables`, logits of decay ratios, [2 d]."""
        # The values are 1 - decay, to full precision for decays close to 1.
        rests = -np.expm1(-np.log1p(np.exp(-variables)).cumsum())
        response = self._response(*_recurrence(rests[0::2], rests[1::2], rests))
        poles = np.concatenate([self._poles, rests[1::2]])
        change, start = _recurrence(poles, rests[0::2], rests)
        # The mean error counts entry t of the first column n - t times, once for each
        # row that contains it. The maximum error is that of the last row.
        powers = _powers(change, self.num_steps)[0]
        error = _of_output(_sum(powers, np.outer(start, start), self._is_mean), start)
        # d log C / d theta = x / (1 - theta x), and the negative for the inverse decays.
        by_decay = 2.0 * (response[1:] / response[0] - error[1:] / error[0])
        by_decay[1::2] *= -1.0
        # Each decay is a product of ratios; d log(sigmoid(v)) / dv = 1 - sigmoid(v).
        tails = (by_decay * (1.0 - rests))[::-1].cumsum()[::-1]
        return math.log(error[0] * response[0]), tails / (1.0 + np.exp(variables))

    def _response(self, change: np.ndarray, start: np.ndarray) -> np.ndarray:
        """Returns the squared sensitivity, and inner products for its derivatives.

        The squared sensitivity is the squared norm of the sum of the columns of `C` in
        which an example takes part. The inner products are those of this sum with its
        derivatives; see `_of_output`.
        """
        others, size = self._participations - 1, start.size
        # The next participation adds a new start to the old state after b steps.
        powers, last = _powers(change, self._separation)
        following = np.zeros((size + 1, size + 1))
        following[:size, :size], following[:size, size] = last, start
        state = np.append(start, 1.0)
        repeated, last = _powers(following, others)
        begun = _sum(repeated, np.outer(state, state))[:size, :size]
        state = (state + last.dot(state))[:size]
        left = _powers(change, self.num_steps - others * self._separation)[0]
        products = _sum(powers, begun) + _sum(left, np.outer(state, state))
        return _of_output(products, start)


def _recurrence(
    poles: np.ndarray, zeros: np.ndarray, decays: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns `F - 1` and `s[0]` for the series `prod (1 - z x) / prod (1 - p x)`.

    Factors are applied one after another, each to the result of the previous factor. If
    poles and zeros interlace, this avoids cancellation.

    Args:
      poles: `1 - p`.
      zeros: `1 - z`, at most as many as poles.
      decays: `1 - theta`. Each decay adds a state at the end: the series times
        `x / (1 - theta x)`.

    Returns:
      Shapes [m, m] and [m]. The states that start at 1 belong to the factors; the last of
      these states is the series itself.
    """
    size = len(poles) + 1  # One additional pole is at 0.
    zeros = np.append(zeros, np.ones(poles.size - zeros.size))
    change = np.zeros((size + decays.size, size + decays.size), poles.dtype)
    change[:size, : size - 1] = np.tri(size, size - 1, -1) * (zeros - poles)
    np.fill_diagonal(change, -np.concatenate([poles, [1.0], decays]))
    change[size:, size - 1] = 1.0
    return change, np.append(np.ones(size), np.zeros(decays.size))


def _powers(
    change: np.ndarray, num_steps: int
) -> tuple[list[tuple[np.ndarray, np.ndarray | None]], np.ndarray]:
    """Returns powers of a recurrence for the binary digits of a number of steps.

    The computation subtracts the identity from all powers, because decays close to 1
    would lose digits otherwise.

    Args:
      change: `F - 1`, [m, m].
      num_steps: n >= 0.

    Returns:
      A pair for each digit, and `F^n - 1`. If the digits before a digit form the number m,
      its pair is `F^m`, and `F^(2 m)` if the digit is 1, else None.
    """
    one, power, powers = np.eye(len(change)), np.zeros_like(change), []
    for digit in f"{num_steps:b}":
        half, whole = one + power, None
        power = power + power + power.dot(power)
        if digit == "1":
            whole = one + power
            power = power + whole.dot(change)
        powers.append((half, whole))
    return powers, power


def _sum(
    powers: list[tuple[np.ndarray, np.ndarray | None]],
    first: np.ndarray,
    is_mean: bool = False,
) -> np.ndarray:
    """Returns the sum of `s[t] s[t]^H` over t < n, or the mean of these sums up to n.

    The mean is that of the sums for 1, ..., n steps.

    Args:
      powers: result of `_powers`.
      first: `s[0] s[0]^H`, or a sum of such products, [m, m].
      is_mean: True to return the mean.
    """
    products = running = np.zeros_like(first)
    steps = 0
    for half, whole in powers:
        if is_mean:
            running = running + steps * products + half.dot(running).dot(half.conj().T)
        products = products + half.dot(products).dot(half.conj().T)
        steps *= 2
        if whole is not None:
            products = products + whole.dot(first).dot(whole.conj().T)
            running, steps = running + products, steps + 1
    return running / steps if is_mean else products


def _of_output(products: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Selects the products of the series with itself and with the states after it.

    Args:
      products: sums over time of the products of all states, [m, m].
      start: the initial states, [m], 1 for each state up to the series and 0 after it.
    """
    output = int(start.sum()) - 1
    return products[output, output:].real


def decays_of(variables: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns decays, interlaced and descending, from the logits of their ratios.

    The order is `theta[0] > theta_inverse[0] > theta[1] > ...`.
    """
    decays = np.cumprod(1.0 / (1.0 + np.exp(-variables)))
    return decays[0::2], decays[1::2]


def variables_of(theta: np.ndarray, theta_inverse: np.ndarray) -> np.ndarray:
    """Returns logits of ratios of interlaced decays, [2 d]; the inverse of `decays_of`."""
    decays = np.append(1.0, np.stack([theta, theta_inverse], axis=1))
    ratios = decays[1:] / decays[:-1]
    # A ratio rounds to 1 if decays hardly differ.
    with np.errstate(divide="ignore"):
        logits = np.log(ratios) - np.log1p(-ratios)
    return np.clip(logits, -_LARGEST_LOGIT, _LARGEST_LOGIT)


def _starts(
    problem: _Problem, theta: np.ndarray, theta_inverse: np.ndarray
) -> list[np.ndarray]:
    """Returns starting points with one more buffer than theta has.

    The new pair of decays is placed at each point of a grid, either close together,
    which gives the new buffer almost no weight, or far apart. The three best points of
    either kind are used.
    """
    num_steps = problem.num_steps
    slow = 1.0 - np.geomspace(min(0.5, 1e-2 / num_steps), 0.5, 12)
    places = np.concatenate([slow, [0.35, 0.2, 0.1, 0.03]])
    starts: list[np.ndarray] = []
    for fraction in (0.1, 0.6):
        candidates = []
        for place in places:
            larger = theta > place
            if np.any(theta == place) or np.any(theta_inverse[larger] <= place):
                continue
            # Both decays of the pair lie between this point and the next smaller decay,
            # or 0.
            below = np.max(theta[~larger], initial=0.0)
            paired = place - fraction * min(place - below, 1.0 - place)
            pairs = np.append(theta, place), np.append(theta_inverse, paired)
            candidates.append(variables_of(*(np.sort(x)[::-1] for x in pairs)))
        candidates.sort(key=lambda start: problem.loss(start)[0])
        starts.extend(candidates[:3])
    # The last start ignores the previous optimum: it spreads the decays evenly on a
    # logarithmic scale.
    spread = (
        1.0 - np.geomspace(1.0 / (num_steps + 1), 0.9, 2 * (theta.size + 1) + 1)[:-1]
    )
    starts.append(variables_of(spread[0::2], spread[1::2]))
    return starts


register(
    Family(
        "blt",
        blt,
        (Option("num_buffers", default=DEFAULT_BUFFERS),),
        auto=7,
        is_optimized=True,
    )
)
