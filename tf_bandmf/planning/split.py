"""Plans of several runs that share one budget: phases of training, trials.

head, whole = tf_bandmf.split(
4, 1e-6, [0.3, 0.7], [{"epochs": 4}, {"epochs": 8}], num_examples=60_000, batch_size=512
)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tf_bandmf.accounting.gaussian import calibrate_noise_stddev, gaussian_epsilon
from tf_bandmf.planning import build
from tf_bandmf.planning.arguments import check_budget
from tf_bandmf.planning.composition import compose
from tf_bandmf.planning.plan import Plan

# Plans that spend this part of the budget are good enough; what was rounded may exceed it.
_ENOUGH, _ROUNDING = 0.995, 1e-9
_MOST_TRIALS = 40


def split(
    epsilon: float,
    delta: float,
    shares: Sequence[float],
    runs: Sequence[Mapping[str, Any]] | None = None,
    **common: Any,
) -> tuple[Plan, ...]:
    """Plans of several runs on the same data that together are (epsilon, delta)-DP.

    Runs with Gaussian noise of `sigma_i` per unit of sensitivity amount to one whose
    inverse variance is the sum of theirs (Dong, Roth, Su, 2019, arXiv:1905.02383,
    Corollary 3.3): a share is a part of that sum. For sampled runs the noise is searched
    for, so that `compose(plans).epsilon(delta)` is at most epsilon, and at least 99.5% of
    it; shares are then those of runs whose own guarantees are Gaussian ones.

    The plans are fixed before the first run. State them together:
    `compose(plans).statement()`. The optimizers of runs after the first need
    `additional_run=True`.

    Args:
      epsilon: budget of all runs together, > 0.
      delta: budget of all runs together, in [1e-20, 1).
      shares: of the runs, > 0; they are divided by their sum.
      runs: for each run the arguments of `tf_bandmf.plan` that are its own; None if all
        runs have the same.
      **common: arguments of `tf_bandmf.plan` of all runs.

    Returns:
      One plan for each share.

    Raises:
      ValueError: if a share is not positive, the lists have different lengths, a run has
        a budget of its own, or no noise keeps the budget.
    """
    check_budget(epsilon, delta, None, None)
    if not shares or not all(0.0 < share < math.inf for share in shares):
        raise ValueError(f"shares must be positive numbers, found {shares!r}.")
    runs = [{} for _ in shares] if runs is None else runs
    if len(runs) != len(shares):
        raise ValueError(
            f"Each run has one share, found {len(shares)} shares and {len(runs)} runs."
        )
    for given in (common, *runs):
        own = {"epsilon", "delta", "noise_multiplier"}.intersection(given)
        if own:
            raise ValueError(
                f"The runs share one budget: give epsilon and delta to split alone, found "
                f"{', '.join(sorted(own))} of a run."
            )
    noise = calibrate_noise_stddev(epsilon, delta)
    parts = [share / math.fsum(shares) for share in shares]
    arguments: list[dict[str, Any]] = [{**common, **given} for given in runs]
    scale, below, above, best = 1.0, 0.0, math.inf, None
    for _ in range(_MOST_TRIALS):
        plans = []
        for part, given in zip(parts, arguments):
            own_epsilon = gaussian_epsilon(noise / (scale * math.sqrt(part)), delta)
            plans.append(build.plan(epsilon=own_epsilon, delta=delta, **given))
            given.setdefault("mechanism", plans[-1].strategy)
        joint = compose(plans).epsilon(delta)
        if joint <= epsilon * (1.0 + _ROUNDING):
            below, best = scale, tuple(plans)
            if joint >= _ENOUGH * epsilon:
                break
        else:
            above = scale
        guess = scale * epsilon / joint
        is_between = below < guess < above
        scale = guess if is_between else 0.5 * (below + above)
    if best is None:
        raise ValueError(
            f"No plans of these runs keep epsilon = {epsilon:g} at delta = {delta:g}. Use "
            f"a larger epsilon, or fewer runs."
        )
    return best
