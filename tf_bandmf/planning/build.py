"""Builds a `Plan` from a privacy budget and a description of how data is used.

    plan = tf_bandmf.plan(epsilon=4, delta=1e-6, num_examples=60_000, batch_size=512,
                          epochs=10)
    head, whole = tf_bandmf.split(4, 1e-6, [0.3, 0.7], [{"epochs": 4}, {"epochs": 8}],
                                  num_examples=60_000, batch_size=512)

`split` divides one budget among several runs on the same data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tf_bandmf import workloads
from tf_bandmf.accounting import gaussian
from tf_bandmf.accounting.checks import LARGEST_EPSILON, check_positive, no_privacy
from tf_bandmf.participation import Participation
from tf_bandmf.planning.arguments import DataUse, check_budget, resolve_data
from tf_bandmf.planning.compare import Search
from tf_bandmf.planning.plan import Plan, multiplier_of, stated
from tf_bandmf.planning.statement import ONE_EXAMPLE
from tf_bandmf.strategies import Strategy, registry
from tf_bandmf.workloads import Workload

# `_ENOUGH` is the minimum fraction of the budget that the plans of `split` must spend.
# `_ROUNDING` is the relative amount by which they may exceed the budget.
_ENOUGH, _ROUNDING = 0.995, 1e-9
_MOST_TRIALS = 40


def plan(
    mechanism: str | Strategy = "auto",
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    noise_multiplier: float | None = None,
    num_examples: int | None = None,
    batch_size: int | None = None,
    epochs: int | None = None,
    num_steps: int | None = None,
    sampling: str | Participation | None = None,
    workload: Workload | str | None = None,
    l2_norm_clip: float = 1.0,
    unit: str = ONE_EXAMPLE,
) -> Plan:
    """Plans a private run: chooses a strategy and its noise for a budget.

    There are two ways to describe how the run uses the data. One is `num_examples`,
    `batch_size`, `epochs` and the name of a `sampling` (by default a fixed order of the
    examples in all epochs, which `Plan.batches` enforces). The other is a
    `Participation` as `sampling`, with `num_steps` unless the participation determines
    it. The sampling determines the accountant: amplification is claimed only for
    participations that this library samples (`CyclicPoisson`, `Poisson`,
    `CyclicFixedSize`, `BMinSepSampling`, `BallsInBins`).

    Formal guarantee: a run of at most `num_steps` training steps of the plan, on
    batches that respect the participation, is (epsilon, delta)-DP under the adjacency
    that the plan states. This assumes ideal real arithmetic, a secret noise key, and a
    sampler with secret random numbers. If `Plan.kind` is "estimate", epsilon is only an
    estimate.

    Args:
      mechanism: "auto", a name, or a `Strategy`. "auto" compares the mechanisms that
        fit the sampling and store at most 31 vectors of the model's size, and chooses
        the best one. To use less memory, name a mechanism from
        `compare(max_memory_vectors=...)`. `Plan.choice` contains the comparison and the
        reason for the choice; the logger "tf_bandmf" reports progress at level INFO. A
        name is "identity" (DP-SGD), for example, or has parameters: "lambda_cgd:0.9",
        "bisr:4" or "bsr:4:normalized" (columns of norm 1). The ending ":max", as in
        "banded:max" or "auto:max", minimizes the largest error of a step instead of the
        mean error. See `strategies.registry.parse`. Omitted parameters are chosen to
        minimize the error, with amplification if the sampling has it. If the number of
        bands is omitted, at most 32 bands are used, and usually no more than the
        minimum separation b of an example's participations.
      epsilon: epsilon of the budget, > 0; requires delta.
      delta: delta of the budget, in [1e-20, 1). A value of 1 / num_examples or more
        triggers a warning.
      noise_multiplier: the noise standard deviation divided by the sensitivity of the
        whole run, in place of epsilon, which is then computed for delta. If you know
        the noise of one step in clip norms, as in TF Privacy and Opacus, divide it by
        `plan(...).sensitivity.value`.
      num_examples: size of the training set.
      batch_size: examples per step. With a `Participation`, it is the expected batch
        size, by which the noisy sum is divided.
      epochs: passes over the data.
      num_steps: n, the number of steps; only with a `Participation`.
      sampling: a name from `participation.samplings()`, with `num_examples`,
        `batch_size` and `epochs`, or a participation, for example
        `MinSep(min_separation=342, max_participations=6)`. "cyclic-poisson" and
        "cyclic-fixed-size" divide the data into as many parts as the strategy has
        bands. For "balls-in-bins" and "b-min-sep", a simulation estimates epsilon;
        `Plan.bounded` turns the estimate into a bound.
      workload: the linear map by which the optimizer turns noisy gradients into models:
        "prefix" (plain SGD, the default), "sgd:momentum=0.9,decay=0.999", "identity", or a
        `Workload`, such as `workloads.momentum_sgd(num_steps, learning_rates=rates)` for a
        schedule. See `workloads.parse`.
      l2_norm_clip: zeta > 0, the bound on the l2 norm of each example's gradient.
      unit: one line that names the privacy unit, whose presence in the data is hidden;
        each example is one privacy unit. With "one user", `num_examples` is the number
        of users, and `batch_size` is the number of users per step; outside federated
        learning, see `users` of `Plan.batches`.

    Returns:
      A `Plan` that generates noise with Philox. `dataclasses.replace(plan,
      generator="chacha20")` uses a stream cipher instead, whose output is
      computationally indistinguishable from random; generating the noise then takes
      about three times as long as with Philox. `Ledger.bind` binds a plan to the budget
      of a data set.

    Raises:
      ValueError: if arguments are missing, invalid or contradictory, or if the budget
        is infeasible.
    """
    name, options = "", dict[str, Any]()
    if not isinstance(mechanism, Strategy):
        name, options = _parsed(mechanism)
    data = resolve_data(num_examples, batch_size, epochs, num_steps, sampling)
    delta = check_budget(epsilon, delta, noise_multiplier, data.num_examples)
    check_positive("l2_norm_clip", l2_norm_clip)
    workload = workloads.resolve(workload, data.num_steps)
    if isinstance(mechanism, Strategy):
        strategy = mechanism
    elif _is_open(name, options, data, epsilon):
        if epsilon is None:
            raise ValueError(
                "Pass epsilon instead of noise_multiplier: omitted parameters can be "
                "chosen only for a given epsilon. Or name a mechanism with all its "
                "parameters, as in 'banded:16'. For cyclic sampling, then also pass "
                "num_steps and sampling=CyclicPoisson(..., num_parts=16)."
            )
        budget, is_auto = (float(epsilon), delta), name == "auto"
        objective = options.get("objective", "mean")
        wanted = None if is_auto else [mechanism.strip().removesuffix(":max")]
        strategy = Search(workload, data, budget, objective).best(wanted)
    else:
        # The sampling is not cyclic, so it does not depend on the number of bands.
        use = data.participation(1)
        strategy = registry.build_strategy(name, workload, use, **options)
    strategy = strategy.in_float32()
    participation = data.participation(strategy.matrix.bands)
    sensitivity = strategy.sensitivity(participation).value
    accountant = participation.accountant(strategy.matrix)
    if noise_multiplier is not None:
        noise_stddev = noise_multiplier * sensitivity
        guarantee = accountant.guarantee(noise_stddev, delta)
        if guarantee.epsilon > LARGEST_EPSILON * (1.0 + 1e-9):
            raise no_privacy(noise_stddev, delta, LARGEST_EPSILON)
        # This call warns of a large epsilon.
        check_budget(guarantee.epsilon, delta, None, None)
    else:
        # `check_budget` ensures that the caller passed epsilon or a noise multiplier.
        assert epsilon is not None
        made = accountant.calibrate(float(epsilon), delta)
        guarantee = made.guarantee
        noise_multiplier = multiplier_of(made.noise_stddev, sensitivity)
    return Plan(
        workload=workload,
        strategy=strategy,
        participation=participation,
        l2_norm_clip=float(l2_norm_clip),
        noise_multiplier=float(noise_multiplier),
        delta=delta,
        expected_batch_size=data.expected_batch_size,
        unit=unit,
        **stated(guarantee),
    )


def _parsed(text: str) -> tuple[str, dict[str, Any]]:
    """Parses the text of a mechanism into a name, which may be "auto", and parameters.

    Raises:
      ValueError: for an unknown name, or for parameters that the mechanism does not
        have.
    """
    if not isinstance(text, str) or text.strip().partition(":")[0] != "auto":
        return registry.parse(text)
    goal = text.strip().split(":")[1:]
    if goal not in ([], ["max"]):
        raise ValueError(
            f'The only suffix of mechanism "auto" is ":max", but found {text!r}. To '
            f'set parameters, name a mechanism instead of "auto", as in "bisr:16".'
        )
    return "auto", {"objective": "max"} if goal else {}


def _is_open(
    name: str, options: dict[str, Any], data: DataUse, epsilon: float | None
) -> bool:
    """Returns True if `plan` needs the budget to search for the best parameters."""
    if name == "auto" or data.is_cyclic:
        return True
    family = registry.family_of(name)
    searched = (one.name for one in family.numbers if one.default is None)
    is_amplified = data.sampling.is_simulated and epsilon is not None
    return family.needs_budget or (is_amplified and not options.keys() >= set(searched))


def split(
    epsilon: float,
    delta: float,
    shares: Sequence[float],
    runs: Sequence[Mapping[str, Any]] | None = None,
    **common: Any,
) -> tuple[Plan, ...]:
    """Plans several runs on the same data whose composition is (epsilon, delta)-DP.

    Runs with noise multipliers `sigma_i` compose to one Gaussian mechanism with
    `1 / sigma^2 = sum_i 1 / sigma_i^2` (Dong, Roth, Su, 2019, arXiv:1905.02383,
    Corollary 3.3); each run's share is its fraction of this sum. For sampled runs, a
    search finds noise for which `compose(plans).epsilon(delta)` lies between 99.5% of
    epsilon and epsilon; the shares then refer to Gaussian mechanisms with the same
    guarantees as the individual runs.

    All plans must be fixed before the first run. State the joint guarantee of all runs:
    `compose(plans).statement()`. From the second run on, the optimizer needs
    `additional_run=True`.

    Args:
      epsilon: total epsilon of all runs, > 0.
      delta: total delta of all runs, in [1e-20, 1).
      shares: each run's share of the budget, > 0; the shares are normalized to sum to
        1.
      runs: for each run, a dictionary with its own arguments of `tf_bandmf.plan`; None if
        all runs have the same arguments.
      **common: arguments of `tf_bandmf.plan` for all runs.

    Returns:
      One plan for each share.

    Raises:
      ValueError: if a share is not positive, if `shares` and `runs` have different
        lengths, if a run has a budget of its own, or if no noise level meets the
        budget.
    """
    check_budget(epsilon, delta, None, None)
    if not shares or not all(0.0 < share < math.inf for share in shares):
        raise ValueError(f"Pass one or more positive shares, found {shares!r}.")
    runs = [{} for _ in shares] if runs is None else runs
    if len(runs) != len(shares):
        raise ValueError(
            f"Pass one share per run. Found {len(shares)} shares and {len(runs)} runs."
        )
    for given in (common, *runs):
        budget = {"epsilon", "delta", "noise_multiplier"}.intersection(given)
        if budget:
            raise ValueError(
                f"Do not pass {', '.join(sorted(budget))} for a run: the runs share one "
                f"budget, the epsilon and delta of split(...)."
            )
    # Importing this module is slow, because it imports dp-accounting.
    from tf_bandmf.planning.composition import compose

    noise = gaussian.calibrate_noise_stddev(epsilon, delta)
    parts = [share / math.fsum(shares) for share in shares]
    arguments: list[dict[str, Any]] = [{**common, **given} for given in runs]
    scale, below, above, best = 1.0, 0.0, math.inf, None
    for _ in range(_MOST_TRIALS):
        plans = []
        for part, given in zip(parts, arguments):
            own_epsilon = gaussian.gaussian_epsilon(
                noise / (scale * math.sqrt(part)), delta
            )
            plans.append(plan(epsilon=own_epsilon, delta=delta, **given))
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
            f"The runs cannot have a joint epsilon of {epsilon:g} at delta = {delta:g}. "
            f"Use a larger epsilon, or fewer runs."
        )
    return best
