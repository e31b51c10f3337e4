"""Privacy profiles, and the privacy losses that dominate every mechanism that has them.

A profile is delta as a function of epsilon >= 0: an upper bound on the hockey-stick
divergence of the outputs on any two neighbors, in both directions. Two mechanisms whose
profiles are known compose, also adaptively, like pairs of distributions that have these
profiles (Zhu, Dong, Wang, 2022, arXiv:2106.08567, Theorem 10): `dominating_loss` makes
the privacy loss of such a pair, which dp-accounting composes with any other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Callable

import numpy as np
from dp_accounting.pld import pld_pmf, privacy_loss_distribution

# Delta for each epsilon >= 0, of the same shape.
Profile = Callable[[np.ndarray], np.ndarray]

# Points at which a profile is asked; what is below this much of its mass is given to an
# infinite loss; no larger loss is looked at (its exponential is still a number).
_POINTS, _NEGLIGIBLE, _LARGEST_LOSS = 2_048, 1e-17, 500.0
_LENGTHS, _BISECTIONS = 512, 60


def pair_profile(epsilon: float, delta: float) -> Profile:
    """A profile that holds for any (epsilon, delta)-DP mechanism.

    The largest there is (Kairouz, Oh, Viswanath, 2015, arXiv:1311.0776, Theorem 3.3):
    with probability delta all is revealed, else it is randomized response.
    """

    def profile(epsilons: np.ndarray) -> np.ndarray:
        ratio = np.exp(np.minimum(epsilons - epsilon, 0.0))
        response = (1.0 - ratio) / (1.0 + math.exp(-epsilon))
        return delta + (1.0 - delta) * np.maximum(response, 0.0)

    return profile


def zcdp_profile(rho: float) -> Profile:
    """The profile of a rho-zCDP mechanism: Renyi divergences at most `rho alpha`.

    For each order alpha, delta is at most

        exp((alpha - 1) (rho alpha - epsilon)) (1 - 1 / alpha)^alpha / (alpha - 1)

    (Canonne, Kamath, Steinke, 2020, arXiv:2004.00010, Proposition 12). The best order is
    where the derivative of the exponent, `(2 alpha - 1) rho - epsilon + log(1 - 1 /
    alpha)`, which rises, is 0; any order is on the safe side.
    """

    def profile(epsilons: np.ndarray) -> np.ndarray:
        excess = np.asarray(epsilons, np.float64)
        # alpha - 1, in logarithms.
        lower = np.full_like(excess, -40.0)
        upper = np.log(1.0 + np.maximum(excess, 0.0) / rho + 1.0 / rho)
        for _ in range(_BISECTIONS):
            middle = 0.5 * (lower + upper)
            order = np.exp(middle)
            # log(1 - 1 / alpha) for alpha = 1 + order.
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
    """The profile between data sets that are neighbors of a common neighbor.

    Group privacy: `D_(2 e)(P, R) <= D_e(P, Q) + exp(e) D_e(Q, R)`.
    """

    def doubled(epsilons: np.ndarray) -> np.ndarray:
        half = 0.5 * np.asarray(epsilons, np.float64)
        return np.minimum((1.0 + np.exp(half)) * profile(half), 1.0)

    return doubled


def least(*profiles: Profile) -> Profile:
    """The profile of a mechanism for which all of these hold."""
    return lambda epsilons: np.minimum.reduce([p(epsilons) for p in profiles])


def dominating_loss(
    profile: Profile, interval: float, kinks: Iterable[float] = ()
) -> privacy_loss_distribution.PrivacyLossDistribution:
    """A privacy loss that dominates every mechanism with this profile.

    True profiles are convex in `exp(epsilon)`. So the lower convex hull of what is known at
    some points, among them those of the other direction, `1 - exp(-e) + exp(-e)
    delta(e)` at `-e`, is above every one of them; it is the profile of a pair of
    distributions whose losses are these points (arXiv:2207.04380, Algorithm 1). As both
    directions are bounded alike, the loss `-e` has `exp(-e)` times the probability of
    `e`.

    Args:
      profile: asked at some 2,000 points, must be an upper bound at each.
      interval: of the losses, which are multiples of it.
      kinks: values of epsilon where the profile has a corner.
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
        raise ArithmeticError(f"The profile has values that are no deltas: {deltas}.")
    index, losses, deltas = _hull(index, losses, deltas)
    slopes = np.append(np.diff(deltas) / np.diff(np.exp(losses)), 0.0)
    first, before = _centre(losses, deltas, slopes)
    # Probabilities of the other data set; there the loss is the opposite one.
    other = np.maximum(np.diff(slopes[first:], prepend=before), 0.0)
    above = np.exp(losses[first:]) * other
    probabilities = dict(zip((-index[first:]).tolist(), other.tolist()))
    probabilities.update(zip(index[first:].tolist(), above.tolist()))
    if index[first] == 0:
        probabilities[0] = 0.0
    rest = 1.0 - math.fsum(probabilities.values()) - float(deltas[-1])
    probabilities[0] = probabilities.get(0, 0.0) + max(rest, 0.0)
    ordered = dict(sorted(probabilities.items()))
    pmf = pld_pmf.create_pmf(
        loss_probs=ordered,
        discretization=interval,
        infinity_mass=float(deltas[-1]),
        pessimistic_estimate=True,
    )
    return privacy_loss_distribution.PrivacyLossDistribution(pmf)


def _largest(profile: Profile, interval: float) -> int:
    """The index from which on the profile falls no further, nearly.

    What is asked may rise again, by errors of tails that are taken twice.
    """
    tried = np.append(0.0, np.geomspace(4.0 * interval, _LARGEST_LOSS, _LENGTHS))
    deltas = np.asarray(profile(tried), np.float64)
    enough = deltas.min() * (1.0 + 1e-9) + _NEGLIGIBLE
    return math.ceil(tried[np.argmax(deltas <= enough)] / interval) + 1


def _hull(
    index: np.ndarray, losses: np.ndarray, deltas: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The points on the lower convex hull of delta as a function of exp(loss)."""
    weights = np.exp(losses)
    kept: list[int] = []
    for i in range(index.size):
        while len(kept) > 1:
            a, b = kept[-2:]
            first = (deltas[b] - deltas[a]) / (weights[b] - weights[a])
            second = (deltas[i] - deltas[b]) / (weights[i] - weights[b])
            if first < second:
                break
            kept.pop()
        kept.append(i)
    return index[kept], losses[kept], deltas[kept]


def _centre(
    losses: np.ndarray, deltas: np.ndarray, slopes: np.ndarray
) -> tuple[int, float]:
    """The first point of the hull of both directions, and the slope before it.

    The hull is its own mirror image: between the point and its image is a chord, or at
    loss 0 a point.
    """
    if 1.0 - deltas[0] + 2.0 * slopes[0] >= 0.0:
        # The slope on the other side, by symmetry.
        return 0, float(deltas[0] - 1.0 - slopes[0])
    for i in range(1, losses.size):
        loss = float(losses[i])
        chord = math.expm1(-loss) * (1.0 - deltas[i]) / (2.0 * math.sinh(loss))
        if chord <= slopes[i]:
            return i, float(chord)
    return losses.size - 1, float(slopes[-1])
