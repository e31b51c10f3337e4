"""Bounds on delta and epsilon by simulation, at a stated confidence.

A run of independent draws whose values are bounded for certain (`importance.
largest_value`) gives a bound by betting (`monte_carlo.betting_upper_bound`), for each
direction of adjacency with a part of the probability of failure.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Protocol

import scipy.optimize

from tf_bandmf.accounting.importance import Run
from tf_bandmf.accounting.monte_carlo import Bound
from tf_bandmf.accounting.root_finding import log

# Which random numbers a stage uses; (CHECK, i) for the i-th check.
PILOT, MAIN, CHECK = (0, 0), (1, 0), 2
Stage = tuple[int, int]

# What a bound may cost: added to delta, as a part of it.
BOUND_SLACK = 0.3
# The direction with the smaller delta gets this part of the probability of failure.
_MINOR_PART = 0.1
_LARGEST_BOUND_DRAWS, _LARGEST_BOUND_ENTRIES = 5e7, 2e10
_ATTEMPTS = 8


class TooManyDraws(ValueError):
    """A bound by simulation would take too many draws."""


class Simulator(Protocol):
    """What simulates the privacy loss, in both directions of adjacency."""

    @property
    def entries(self) -> int:
        """Numbers per draw."""

    @property
    def num_draws(self) -> int:
        """The draws of a main run in each direction."""

    def rough_runs(self, noise: float) -> list[Run]:
        """Both directions from few draws."""

    def runs(self, epsilon: float, noise: float, stage: Stage = MAIN) -> list[Run]:
        """Both directions, each from a proposal that suits epsilon."""

    def propose_for_bound(
        self, add: bool, epsilon: float, noise: float, log_odds: float, slack: float
    ) -> tuple[Any, float, int]:
        """The cheapest mixture for a confidence bound: `importance.cheapest_shares`.

        Args:
          add: direction.
          epsilon: where delta is wanted, or the least epsilon of interest.
          noise: sigma.
          log_odds: log of one over the probability with which the bound may fail.
          slack: by how much the bound may exceed delta.

        Returns:
          The proposal, the largest value, and how many draws it takes.
        """

    def bound_run(
        self, add: bool, noise: float, proposal: Any, count: int, stage: Stage
    ) -> Run:
        """A run of at least `count` draws."""


def delta_bound(
    simulator: Simulator,
    epsilon: float,
    noise: float,
    beta: float,
    aim: float,
    stage: Stage,
) -> Bound:
    """Delta at confidence 1 - beta, both directions together."""
    runs = bound_runs(simulator, epsilon, noise, beta, aim, stage)
    found = max(run.bound(epsilon, largest, part, 1e-12) for run, largest, part in runs)
    count = sum(run.losses.size for run, _, _ in runs)
    return Bound(min(found, 1.0), 1.0 - beta, count)


def bound_runs(
    simulator: Simulator,
    epsilon: float,
    noise: float,
    beta: float,
    aim: float,
    stage: Stage,
) -> list[tuple[Run, float, float]]:
    """For both directions: a run, the largest value from `epsilon` on, its beta.

    With so many draws that the bound exceeds a delta of `aim` by a part BOUND_SLACK of it.

    Raises:
      TooManyDraws: if that takes too many draws.
    """
    rough = [run.estimate(epsilon).value for run in simulator.rough_runs(noise)]
    minor = int(rough[0] > rough[1])
    runs = []
    for add in (False, True):
        part = beta * (_MINOR_PART if add == minor else 1.0 - _MINOR_PART)
        # Betting on several bets at once costs a factor of 2.
        log_odds = math.log(2.0 / part)
        proposal, largest, count = simulator.propose_for_bound(
            add, epsilon, noise, log_odds, BOUND_SLACK * aim
        )
        if not (
            count <= _LARGEST_BOUND_DRAWS
            and count * simulator.entries <= _LARGEST_BOUND_ENTRIES
        ):
            raise TooManyDraws(
                f"A bound at delta = {aim:.3g} and confidence 1 - {beta:.2g} would take "
                f"{count:.3g} draws of {simulator.entries} numbers. Use a larger delta "
                f"or an estimate (confidence=None)."
            )
        run = simulator.bound_run(add, noise, proposal, count, stage)
        runs.append((run, largest, part))
    return runs


def epsilon_bound(
    simulator: Simulator,
    delta: float,
    noise: float,
    rough: float,
    upper: float,
    confidence: float,
) -> Bound:
    """Epsilon at delta and a confidence.

    Args:
      simulator: of the privacy loss.
      delta: in (0, 1).
      noise: sigma.
      rough: an estimate of epsilon.
      upper: an epsilon that holds for certain.
      confidence: 1 - beta.

    Raises:
      TooManyDraws: if that takes too many draws.
    """
    # The largest value is valid from here on, whatever the main draws say.
    least = 0.97 * rough
    runs = bound_runs(simulator, least, noise, 1.0 - confidence, delta, MAIN)

    def bound(epsilon: float) -> float:
        return max(
            run.bound(epsilon, largest, part, 1e-4 * delta)
            for run, largest, part in runs
        )

    if bound(upper) > delta:
        value = upper
    elif bound(least) <= delta:
        value = least
    else:
        value = falling_root(bound, delta, upper, least)
        value *= 1.0 + 1e-6
    count = sum(run.losses.size for run, _, _ in runs)
    return Bound(min(value, upper), confidence, count)


def enough_noise(
    simulator: Simulator,
    epsilon: float,
    delta: float,
    noise: float,
    largest: float,
    confidence: float,
) -> tuple[float, Bound]:
    """Noise at which the bound on delta is within the budget, and the bound.

    Args:
      simulator: of the privacy loss.
      epsilon: of the budget.
      delta: of the budget.
      noise: where to begin, found by draws of another stage than CHECK.
      largest: noise that holds for certain.
      confidence: of all attempts together.

    Raises:
      TooManyDraws: if that takes too many draws.
    """
    beta = 1.0 - confidence
    for attempt in range(_ATTEMPTS):
        # The first attempt may fail with half of beta, the next with a quarter, ...
        part = beta * 0.5 ** (attempt + 1)
        found = delta_bound(simulator, epsilon, noise, part, delta, (CHECK, attempt))
        if found.value <= delta:
            return noise, Bound(found.value, confidence, found.num_draws)
        noise *= 1.0 + 2e-3 * 2**attempt
        if noise >= largest:
            break
    # Certain: without amplification.
    return largest, Bound(delta, confidence, 0)


def falling_root(
    function: Callable[[float], float], delta: float, upper: float, lower: float = 0.0
) -> float:
    """Where a falling function of epsilon equals delta, within [lower, upper]."""

    def excess(epsilon: float) -> float:
        return log(function(epsilon)) - math.log(delta)

    if excess(lower) <= 0.0:
        return lower
    if excess(upper) >= 0.0:
        return upper
    return float(scipy.optimize.brentq(excess, lower, upper, xtol=1e-9, rtol=1e-8))
