"""The privacy cost of releasing only the best of a random number of private runs.

A number K is drawn from a public distribution, and one private mechanism is run K times
on the same data. (If each run draws its hyperparameters at random, the mechanism
includes this draw.) Only the output of the run with the best score is released; the
output includes the score. K has a truncated negative binomial distribution with shape
eta >= 0 and parameter gamma in (0, 1]; special cases are the logarithmic (eta = 0) and
the geometric distribution (eta = 1). See Papernot and Steinke, 2022, arXiv:2110.03620,
Definition 1.

`profile_epsilon` computes an upper bound on the epsilon of this release. Its input is a
function that returns the epsilon of a single run for any delta (Koskela, Redberg and
Wang, 2024, arXiv:2402.06701).
"""

from __future__ import annotations

import math
from typing import Callable

import numpy as np
import scipy.optimize

from tf_bandmf.accounting.checks import check_delta, is_number

# Maps the name of a distribution of K, the number of runs, to its shape parameter eta.
DISTRIBUTIONS = {"geometric": 1.0, "logarithmic": 0.0}
_SMALLEST_GAMMA = 1e-12
_SMALLEST_SHAPE, _LARGEST_SHAPE = 1e-3, 1e3
# The default number of values of delta' that `profile_epsilon` tries.
_TRIED_DELTAS = 24
# A bound on the relative error by which rounding may reduce an epsilon.
_RELATIVE_MARGIN = 1e-9


def shape_of(distribution: str | float) -> float:
    """Returns the shape eta of the distribution of K, the number of runs.

    Args:
      distribution: a name in `DISTRIBUTIONS`, or the shape eta of a truncated negative
        binomial distribution. This eta must be 0 or from 0.001 to 1000.

    Raises:
      ValueError: if `distribution` is neither such a name nor such a number.
    """
    if isinstance(distribution, str):
        if distribution in DISTRIBUTIONS:
            return DISTRIBUTIONS[distribution]
    elif is_number(distribution):
        if distribution == 0.0 or _SMALLEST_SHAPE <= distribution <= _LARGEST_SHAPE:
            return float(distribution)
    raise ValueError(
        f"distribution must be one of {', '.join(DISTRIBUTIONS)}, or the shape "
        f"parameter of a truncated negative binomial distribution (0 or from "
        f"{_SMALLEST_SHAPE:g} to {_LARGEST_SHAPE:g}), but found {distribution!r}."
    )


def check_expected_runs(name: str, value: float) -> float:
    """Returns an expected number of runs as a float, after checking its range.

    Raises:
      ValueError: unless the value is a number from 1 to 10**6.
    """
    if not is_number(value) or not 1.0 <= value <= 1e6:
        raise ValueError(f"{name} must be a number from 1 to 10**6, found {value!r}.")
    return float(value)


def gamma_of_mean(mean: float, shape: float) -> float:
    """Returns the gamma for which the number K of runs has this mean, rounded down.

    K has a truncated negative binomial distribution with the parameter gamma, and
    E[K] = eta (1 - gamma) / (gamma (1 - gamma^eta)), with the limit
    (1/gamma - 1) / log(1/gamma) for eta = 0 (arXiv:2110.03620, Definition 1).

    Args:
      mean: the expected number of runs, E[K] >= 1.
      shape: the shape parameter eta, finite and >= 0.

    Raises:
      ValueError: if gamma would be below 10^-12.
    """
    if mean == 1.0:
        return 1.0

    def excess(log_gamma: float) -> float:
        return math.log(_mean(log_gamma, shape)) - math.log(mean)

    lower = math.log(_SMALLEST_GAMMA)
    if excess(lower) <= 0.0:
        raise ValueError(
            f"An expected number of {mean:g} runs is too large for the shape parameter "
            f"{shape:g}: gamma would be below {_SMALLEST_GAMMA:g}. Use fewer runs."
        )
    log_gamma = scipy.optimize.brentq(excess, lower, -1e-15, xtol=1e-13)
    # Gamma is rounded down, because a smaller gamma gives a larger epsilon.
    return math.exp(log_gamma - 1e-12)


def _mean(log_gamma: float, shape: float) -> float:
    # `odds` is 1 / gamma - 1.
    odds = math.expm1(-log_gamma)
    if shape == 0.0:
        return odds / -log_gamma
    return shape * odds / -math.expm1(shape * log_gamma)


def draw_number(mean: float, shape: float, rng: np.random.Generator) -> int:
    """Draws the number K >= 1 of runs, whose distribution has this mean and shape."""
    gamma = gamma_of_mean(mean, shape)
    if gamma == 1.0:
        return 1
    if shape == 0.0:
        return int(rng.logseries(1.0 - gamma))
    while True:
        number = int(rng.negative_binomial(shape, gamma))
        if number > 0:
            return number


def profile_epsilon(
    epsilon_at: Callable[[float], float],
    mean: float,
    shape: float,
    delta: float,
    num_tried: int = _TRIED_DELTAS,
) -> float:
    """Returns an upper bound on epsilon at delta for releasing only the best of K runs.

    K has a truncated negative binomial distribution with the parameters eta and gamma.
    By arXiv:2402.06701, for every delta' in (0, 1) and `e' = epsilon_at(delta')`,
    releasing the best run is (epsilon, delta)-DP with

        epsilon = epsilon_at(delta / E[K])
                  + (eta + 1) log(exp(e') + (1 - gamma) / gamma * delta').

    Sketch of the proof: let f be the probability generating function of K, and f' its
    derivative. Let Q be the distribution of one run's output, q its density, Q' the
    distribution on a neighboring data set, and S(y) the set of outputs with a lower
    score than y. The density of the released output is f'(Q(S(y))) q(y), where f'(x) is
    proportional to (1 - (1 - gamma) x)^-(eta + 1) and at most E[K]. The ratio of
    f'(Q(S(y))) to f'(Q'(S(y))) is at most
    (exp(e') + (1 - gamma) / gamma * delta')^(eta + 1), because the event that the
    output is not in S(y) satisfies (e', delta')-DP. The other factor, q(y), changes as
    in one run, at the cost `epsilon_at(delta / E[K])`. As f' is at most E[K], the delta
    of one run is multiplied by at most E[K].

    Args:
      epsilon_at: returns an epsilon >= 0 of one run for any delta in (0, 1). It must
        hold for both directions of adjacency.
      mean: the expected number of runs, E[K] >= 1.
      shape: the shape parameter eta of the distribution of K.
      delta: in (0, 1).
      num_tried: number of values of delta' to try; the smallest is `delta / mean`.
    """
    check_delta(delta)
    gamma = gamma_of_mean(mean, shape)
    odds = (1.0 - gamma) / gamma
    tried = np.geomspace(delta / mean, 0.9, num_tried)
    epsilons = np.array([epsilon_at(float(other)) for other in tried])
    with np.errstate(divide="ignore"):
        factors = np.logaddexp(epsilons, np.log(odds * tried))
    epsilon = float(epsilons[0] + (shape + 1.0) * factors.min())
    return epsilon * (1.0 + _RELATIVE_MARGIN)
