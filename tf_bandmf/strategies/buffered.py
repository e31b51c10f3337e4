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
# The search tries another buffer as long as the last one reduced the squared error by
# at least this fraction.
_LEAST_GAIN = 1e-4
# The number of iterations after which the two best starting points are chosen, and the
# maximum number of iterations of a search from a chosen starting point.
_SCREENING_ITERATIONS, _MOST_ITERATIONS = 12, 1_000
# The maximum absolute value of a logit, the variable of the search. It is beyond the
# range in which float64 can distinguish the decays of a BLT.
_LARGEST_LOGIT = 34.0


def blt(
    workload: Workload,
    participation: Participation,
    num_buffers: int = DEFAULT_BUFFERS,
    objective: str = "mean",
) -> Strategy:
    """Returns the BLT strategy with the smallest error for up to `num_buffers` buffers.

    The first column of `C` is positive and decreasing, so the sensitivity under
    min-separation is exact (arXiv:2601.22334, Theorem 1). The variables of the
    optimization determine the buffers' decays; see `decays_of`. L-BFGS with exact
    gradients minimizes the logarithm of the error, which is not convex, for 1, 2, ...
    buffers in turn. Each search starts from the previous optimum, with a new buffer
    added at several positions. The search ends early if another buffer gives no
    improvement, which is common with many participations. Each evaluation of the error
    costs O(d^3 log n).

    Args:
      workload: the workload, with n steps. The strategy does not depend on its
        learning-rate schedule.
      participation: participation that determines the min separation and the maximum
        number of participations.
      num_buffers: d, maximum number of model-sized vectors that the noise generator may
        store, from 1 to 10. Beyond 4 buffers, the error hardly decreases
        (arXiv:2505.12128, section 4).
      objective: "mean" for the RMSE, "max" for the MaxSE.

    Returns:
      The strategy. Its diagnostics contain `converged`, `objective`, `gradient_norm`
      (the maximum absolute derivative of the logarithm of the squared error with
      respect to a variable) and `iterations`. There is no certificate, so
      `optimality_gap` is None.

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
    """Returns SciPy's result for the best minimum, and the number of iterations."""
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
    """Computes the logarithm of error^2 sensitivity^2 of a BLT, and its gradient.

    The time is O(d^3 log n) for n steps and d buffers. A linear recurrence
    `s[t + 1] = F s[t]`, with a matrix F, generates the first column of the strategy
    matrix `C` and, up to sign, the derivatives of this column with respect to the
    decays: entry t of each of these vectors is an entry of the state `s[t]`. With the
    workload matrix A, another recurrence generates the first column of `A C^-1` and its
    derivatives. `_sum` adds up products of entries of `s[t]` over all steps t.
    """

    def __init__(
        self, workload: Workload, participation: Participation, objective: str
    ) -> None:
        self.num_steps, self._is_mean = workload.num_steps, objective == "mean"
        self._separation = participation.separation()
        self._participations = participation.participations(self.num_steps)
        # The generating function of A is 1 divided by a product of factors `1 - p x`.
        # Each p, a pole of this function in the variable 1 / x, is stored as `1 - p`.
        self._poles = 1.0 - np.sort(np.roots(workload.inverse_coefficients))[::-1]

    def minimize(self, start: np.ndarray, max_iterations: int) -> Any:
        # SciPy is imported here because the import is slow.
        import scipy.optimize

        return scipy.optimize.minimize(
            self.loss,
            start,
            jac=True,
            method="L-BFGS-B",
            bounds=[(-_LARGEST_LOGIT, _LARGEST_LOGIT)] * start.size,
            options={"maxiter": max_iterations, "ftol": 1e-14, "gtol": 1e-9},
        )

    def loss(self, variables: np.ndarray) -> tuple[float, np.ndarray]:
        """Returns the loss and its gradient at the variables of `decays_of`, [2 d]."""
        # `rests` contains 1 - decay, with full precision for decays close to 1.
        rests = -np.expm1(-np.log1p(np.exp(-variables)).cumsum())
        response = self._response(*_recurrence(rests[0::2], rests[1::2], rests))
        poles = np.concatenate([self._poles, rests[1::2]])
        change, start = _recurrence(poles, rests[0::2], rests)
        # A C^-1 is a lower triangular Toeplitz matrix. Therefore each of its last n - t
        # rows contains entry t of the first column, and the mean squared error contains
        # the square of this entry n - t times. The last row has the maximum error.
        powers = _powers(change, self.num_steps)[0]
        error = _of_output(_sum(powers, np.outer(start, start), self._is_mean), start)
        # The generating function C(x) has d log C / d theta = x / (1 - theta x) for a
        # decay theta of C, and d log C / d theta = -x / (1 - theta x) for one of C^-1.
        by_decay = 2.0 * (response[1:] / response[0] - error[1:] / error[0])
        by_decay[1::2] *= -1.0
        # Each decay is a product of ratios sigmoid(v), where each v is a variable. The
        # derivative of log(sigmoid(v)) is 1 - sigmoid(v).
        tails = (by_decay * (1.0 - rests))[::-1].cumsum()[::-1]
        return math.log(error[0] * response[0]), tails / (1.0 + np.exp(variables))

    def _response(self, change: np.ndarray, start: np.ndarray) -> np.ndarray:
        """Returns the squared sensitivity, and inner products for its derivatives.

        Let v be the sum of the columns of `C` for the steps at which an example takes
        part. The squared sensitivity is `||v||^2`. The inner products are those of v
        with the derivatives of v with respect to the decays (up to sign).

        Args:
          change: `F` minus the identity, shape [m, m], for the recurrence
            `s[t + 1] = F s[t]` that generates the first column of `C`.
          start: `s[0]` of this recurrence, shape [m].
        """
        others, size = self._participations - 1, start.size
        # `following` is M - I, where I is the identity. With the min separation b, the
        # matrix M advances a state s by b steps and adds a participation: it maps
        # (s, 1) to (F^b s + s[0], 1).
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
    """Returns a linear recurrence that generates a power series in x.

    The series is the product of factors `(1 - z x) / (1 - p x)`. As a function of the
    variable `1 / x`, it has the zeros z and the poles p. The recurrence is
    `s[t + 1] = F s[t]`, with a matrix F, and one entry of the state `s[t]` is
    coefficient t of the series. The recurrence multiplies by one factor after another,
    and the state has an entry for each factor. If poles and zeros interlace, this
    method avoids cancellation.

    Args:
      poles: `1 - p` for each pole p.
      zeros: `1 - z` for each zero z, at most as many as poles.
      decays: `1 - theta` for each decay theta. A decay adds an entry to the state:
        the coefficient of the series times `x / (1 - theta x)`.

    Returns:
      `F` minus the identity, shape [m, m], and `s[0]`, shape [m]. In the state, the
      entries of the factors come first, then the entry of the series, then those of the
      decays. In `s[0]`, the entries of the factors and of the series are 1, and those
      of the decays are 0.
    """
    # The state has an entry for each pole and one for the series. The recurrence treats
    # the series like one more factor, with pole 0.
    size = len(poles) + 1
    zeros = np.append(zeros, np.ones(poles.size - zeros.size))
    change = np.zeros((size + decays.size, size + decays.size), poles.dtype)
    change[:size, : size - 1] = np.tri(size, size - 1, -1) * (zeros - poles)
    np.fill_diagonal(change, -np.concatenate([poles, [1.0], decays]))
    change[size:, size - 1] = 1.0
    return change, np.append(np.ones(size), np.zeros(decays.size))


def _powers(
    change: np.ndarray, num_steps: int
) -> tuple[list[tuple[np.ndarray, np.ndarray | None]], np.ndarray]:
    """Returns the powers of a matrix F that lead to `F^n` by repeated squaring.

    The computation uses `F^k - I` in place of `F^k`, where I is the identity, because
    precision would otherwise be lost for decays close to 1.

    Args:
      change: `F - I`, shape [m, m], where F is the matrix of a recurrence.
      num_steps: n >= 0.

    Returns:
      A list with a pair for each binary digit of n, starting with the highest digit;
      and `F^n - I`. For each digit, let k be the number formed by the digits that
      precede it. The digit's pair is `(F^k, F^(2 k))` if the digit is 1, else
      `(F^k, None)`.
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
    """Returns the sum of `s[t] s[t]^H` over the n states s[t] of a recurrence.

    The recurrence is `s[t + 1] = F s[t]`, and `^H` is the conjugate transpose.

    Args:
      powers: the powers of F that `_powers` returns for n steps.
      first: `s[0] s[0]^H`, or a sum of such products for several states, shape [m, m].
      is_mean: True to return the mean of the sums over the first 1, 2, ..., n steps.
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
    """Returns the inner products of a series with itself and with its derivatives.

    Args:
      products: result of `_sum` for the states s[t] of a recurrence, shape [m, m].
      start: `s[0]`, shape [m], from `_recurrence`. The last entry of `s[0]` that is 1
        is the entry of the series. The entries after that one belong (up to sign) to
        the derivatives with respect to the decays.
    """
    output = int(start.sum()) - 1
    return products[output, output:].real


def decays_of(variables: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the decays theta of `C` and theta_inverse of `C^-1`.

    The decays interlace: `1 > theta[0] > theta_inverse[0] > theta[1] > ...`.

    Args:
      variables: logits of the ratios of consecutive decays in this order, shape [2 d].
    """
    decays = np.cumprod(1.0 / (1.0 + np.exp(-variables)))
    return decays[0::2], decays[1::2]


def variables_of(theta: np.ndarray, theta_inverse: np.ndarray) -> np.ndarray:
    """Returns variables, shape [2 d], for which `decays_of` returns the arguments."""
    decays = np.append(1.0, np.stack([theta, theta_inverse], axis=1))
    ratios = decays[1:] / decays[:-1]
    # If two decays hardly differ, their ratio is rounded to 1, whose logit is infinite.
    with np.errstate(divide="ignore"):
        logits = np.log(ratios) - np.log1p(-ratios)
    return np.clip(logits, -_LARGEST_LOGIT, _LARGEST_LOGIT)


def _starts(
    problem: _Problem, theta: np.ndarray, theta_inverse: np.ndarray
) -> list[np.ndarray]:
    """Returns starting points with one more buffer than theta has decays.

    A new buffer has a pair of decays, one of `C` and one of `C^-1`. The decay of `C` is
    placed at each point of a grid. The decay of `C^-1` is either close to the decay of
    `C`, which gives the new buffer almost no weight, or far from it. The result
    contains the three best starting points with close decays, the three best with
    distant decays, and one that ignores the previous optimum.

    Args:
      problem: the optimization problem.
      theta: decays of `C` at the previous optimum.
      theta_inverse: decays of `C^-1` at the previous optimum.
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
            # The new decay of `C^-1` lies between `place`, the new decay of `C`, and
            # `below`, the next smaller decay of `C` (0 if there is none).
            below = np.max(theta[~larger], initial=0.0)
            paired = place - fraction * min(place - below, 1.0 - place)
            pairs = np.append(theta, place), np.append(theta_inverse, paired)
            candidates.append(variables_of(*(np.sort(x)[::-1] for x in pairs)))
        candidates.sort(key=lambda start: problem.loss(start)[0])
        starts.extend(candidates[:3])
    # The last start ignores the previous optimum: it spreads the values 1 - decay evenly
    # on a logarithmic scale.
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
