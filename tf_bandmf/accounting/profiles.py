"""Privacy profiles, and the privacy loss that dominates all mechanisms with a profile.

A privacy profile is delta as a function of epsilon >= 0. It is an upper bound on the
hockey-stick divergence between a mechanism's outputs on any two neighboring data sets,
in both directions. Two mechanisms with known profiles compose, even adaptively, like
two pairs of distributions that have these profiles (Zhu, Dong, Wang, 2022,
arXiv:2106.08567, Theorem 10). `dominating_loss` returns the privacy loss of such a
pair, which dp-accounting can compose with any other privacy loss.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Callable

import numpy as np
from dp_accounting.pld import pld_pmf, privacy_loss_distribution

# A function from epsilons >= 0 to deltas of the same shape.
Profile = Callable[[np.ndarray], np.ndarray]

# Limits of `dominating_loss`: the number of points at which it evaluates a profile, the
# maximum probability that it moves to the infinite loss, and the maximum finite loss
# (whose exponential must not overflow).
_POINTS, _NEGLIGIBLE, _LARGEST_LOSS = 2_048, 1e-17, 500.0
# The number of epsilons at which `_largest` evaluates a profile, and the number of
# bisection steps of `zcdp_profile`.
_LENGTHS, _BISECTIONS = 512, 60


def pair_profile(epsilon: float, delta: float) -> Profile:
    """Returns a profile that holds for any (epsilon, delta)-DP mechanism.

    It is the profile of the worst (epsilon, delta)-DP mechanism, which reveals
    everything with probability delta and otherwise performs randomized response
    (Kairouz, Oh, Viswanath, 2015, arXiv:1311.0776, Theorem 3.3).
    """

    def profile(epsilons: np.ndarray) -> np.ndarray:
        ratio = np.exp(np.minimum(epsilons - epsilon, 0.0))
        response = (1.0 - ratio) / (1.0 + math.exp(-epsilon))
        return delta + (1.0 - delta) * np.maximum(response, 0.0)

    return profile


def zcdp_profile(rho: float) -> Profile:
    """Returns a profile that holds for any rho-zCDP mechanism.

    The Renyi divergence of order alpha between the mechanism's outputs on two
    neighboring data sets is at most `rho alpha`. Therefore, for each order alpha > 1,
    delta is at most

        exp((alpha - 1) (rho alpha - epsilon)) (1 - 1 / alpha)^alpha / (alpha - 1)

    (Canonne, Kamath, Steinke, 2020, arXiv:2004.00010, Proposition 12). The smallest
    bound is at the order at which the derivative of its logarithm,
    `(2 alpha - 1) rho - epsilon + log(1 - 1 / alpha)`, is 0. The derivative increases
    with alpha, so bisection finds this order.
    """

    def profile(epsilons: np.ndarray) -> np.ndarray:
        excess = np.asarray(epsilons, np.float64)
        # The best order alpha is found by bisection on log(alpha - 1).
        lower = np.full_like(excess, -40.0)
        upper = np.log(1.0 + np.maximum(excess, 0.0) / rho + 1.0 / rho)
        for _ in range(_BISECTIONS):
            middle = 0.5 * (lower + upper)
            order = np.exp(middle)
            # For alpha = 1 + order, `-log1p(1 / order)` is log(1 - 1 / alpha).
            slope = (2.0 * order + 1.0) * rho - excess - np.log1p(1.0 / order)
            lower = np.where(slope < 0.0, middle, lower)
            upper = np.where(slope < 0.0, upper, middle)
        order = np.exp(upper)
        log_delta = (
            order * (rho * (1.0 + order) - excess)
            - (1.0 + order) * np.log1p(1.0 / order)
            - upper
        )
        return np.exp(np.minimum(log_delta * (1.0 - 1e-12) + 1e-12, 0.0))

    return profile


def twice(profile: Profile) -> Profile:
    """Returns a mechanism's profile for two data sets that have a common neighbor.

    Let P and R be the distributions of the outputs on the two data sets, Q the
    distribution on their common neighbor, and `D_e` the hockey-stick divergence at
    epsilon = e. By group privacy, `D_(2 e)(P, R) <= D_e(P, Q) + exp(e) D_e(Q, R)`.

    Args:
      profile: the mechanism's profile for neighboring data sets.
    """

    def doubled(epsilons: np.ndarray) -> np.ndarray:
        half = 0.5 * np.asarray(epsilons, np.float64)
        return np.minimum((1.0 + np.exp(half)) * profile(half), 1.0)

    return doubled


def least(*profiles: Profile) -> Profile:
    """Returns the pointwise minimum of several profiles of one mechanism."""
    return lambda epsilons: np.minimum.reduce([p(epsilons) for p in profiles])


def dominating_loss(
    profile: Profile, interval: float, kinks: Iterable[float] = ()
) -> privacy_loss_distribution.PrivacyLossDistribution:
    """Returns a discrete privacy loss that dominates every mechanism with this profile.

    The true profile of a mechanism is convex in `exp(epsilon)`. Therefore, if upper
    bounds on the profile are known at some values of epsilon, the profile is at most
    the lower convex hull of these points. At a negative epsilon `-e`, the upper bound
    is `1 - exp(-e) + exp(-e) delta(e)`, because the profile also bounds the divergence
    of swapped neighbors. The hull is the profile of a pair of distributions whose
    privacy losses are the epsilons of the points (arXiv:2207.04380, Algorithm 1).
    Because the given profile bounds both directions, the loss `-e` has `exp(-e)` times
    the probability of the loss `e`.

    Args:
      profile: an upper bound on delta for each epsilon >= 0; the function evaluates it
        at about 2,000 values of epsilon.
      interval: the spacing of the losses, which are multiples of `interval`.
      kinks: values of epsilon at which the profile is not smooth.
    """
    largest = _largest(profile, interval)
    index = np.round(np.linspace(0, largest, _POINTS)).astype(np.int64)
    corners = [math.ceil(kink / interval) + i for kink in kinks for i in (-1, 0)]
    inside = [corner for corner in corners if 0 <= corner <= largest]
    index = np.unique(np.append(index, np.array(inside, np.int64)))
    losses = index * interval
    deltas = np.minimum(np.asarray(profile(losses), np.float64), 1.0)
    deltas = np.minimum.accumulate(deltas)
    if not (np.all(np.isfinite(deltas)) and np.all(deltas >= 0.0)):
        raise ArithmeticError(f"profile must return deltas in [0, 1], found {deltas}.")
    other = -np.expm1(-losses[1:]) + np.exp(-losses[1:]) * deltas[1:]
    index = np.append(-index[:0:-1], index)
    deltas = np.minimum.accumulate(np.append(other[::-1], deltas))
    weights = np.exp(index * interval)
    kept = _hull(weights, deltas)
    slopes = np.diff(deltas[kept]) / np.diff(weights[kept])
    after = np.array(kept[1:])
    above, bends = index[after] > 0, np.maximum(np.diff(slopes, append=0.0), 0.0)
    places, bends = index[after][above].tolist(), bends[above]
    probabilities = dict(zip(places, (weights[after][above] * bends).tolist()))
    # The probability of a loss l is exp(l) times the probability of the loss -l.
    probabilities.update(zip((-place for place in places), bends.tolist()))
    rest = 1.0 - math.fsum(probabilities.values()) - float(deltas[-1])
    probabilities[0] = max(rest, 0.0)
    pmf = pld_pmf.create_pmf(
        loss_probs=dict(sorted(probabilities.items())),
        discretization=interval,
        infinity_mass=float(deltas[-1]),
        pessimistic_estimate=True,
    )
    return privacy_loss_distribution.PrivacyLossDistribution(pmf)


def _largest(profile: Profile, interval: float) -> int:
    """Returns the index `epsilon / interval` beyond which the profile hardly decreases.

    Beyond this index, a computed profile may even increase, because `twice` multiplies
    the rounding errors of small deltas.
    """
    tried = np.append(0.0, np.geomspace(4.0 * interval, _LARGEST_LOSS, _LENGTHS))
    deltas = np.asarray(profile(tried), np.float64)
    enough = deltas.min() * (1.0 + 1e-9) + _NEGLIGIBLE
    return math.ceil(tried[np.argmax(deltas <= enough)] / interval) + 1


def _hull(weights: np.ndarray, deltas: np.ndarray) -> list[int]:
    """Returns the indices of the points (weight, delta) on their lower convex hull."""
    kept: list[int] = []
    for i in range(weights.size):
        while len(kept) > 1:
            a, b = kept[-2:]
            first = (deltas[b] - deltas[a]) / (weights[b] - weights[a])
            second = (deltas[i] - deltas[b]) / (weights[i] - weights[b])
            if first < second:
                break
            kept.pop()
        kept.append(i)
    return kept
