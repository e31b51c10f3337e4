"""Bounds on delta of balls in bins, by simulation, at a stated confidence."""

from __future__ import annotations

import math

from tf_bandmf.accounting.bins_simulator import BinsSimulator, Stage
from tf_bandmf.accounting.importance import Run
from tf_bandmf.accounting.monte_carlo import Bound

# What a bound may cost: added to delta, as a part of it.
BOUND_SLACK = 0.3
# The direction with the smaller delta gets this part of the probability of failure.
_MINOR_PART = 0.1
_LARGEST_BOUND_DRAWS, _LARGEST_BOUND_ENTRIES = 5e7, 2e10


class TooManyDraws(ValueError):
    """A bound by simulation would take too many draws."""


def delta_bound(
    simulator: BinsSimulator,
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
    simulator: BinsSimulator,
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
    num_bins = simulator.gram.shape[0]
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
            count <= _LARGEST_BOUND_DRAWS and count * num_bins <= _LARGEST_BOUND_ENTRIES
        ):
            raise TooManyDraws(
                f"A bound at delta = {aim:.3g}, confidence 1 - {beta:.2g} and "
                f"{num_bins} bins would take {count:.3g} draws. Use a larger "
                f"delta or an estimate (confidence=None)."
            )
        draws = simulator.draws(max(count, simulator.num_draws), add, stage)
        run = simulator.simulate(noise, proposal, draws, add)
        runs.append((run, largest, part))
    return runs
