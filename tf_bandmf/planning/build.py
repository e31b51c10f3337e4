"""Planning: from a budget and the use of the data to a `Plan`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Callable

from tf_bandmf import workloads
from tf_bandmf.accounting.checks import (
    check_positive,
)
from tf_bandmf.accounting.guarantee import Guarantee
from tf_bandmf.matrices import LARGEST_NUM_STEPS
from tf_bandmf.participation import Participation
from tf_bandmf.participation.checks import positive_int
from tf_bandmf.participation.scheme import Scheme
from tf_bandmf.planning import choosing, sampling_advice
from tf_bandmf.planning.arguments import (
    check_budget,
    resolve_participation,
    resolve_scheme,
)
from tf_bandmf.planning.calibration import accountant_for, calibrated
from tf_bandmf.planning.plan import Plan
from tf_bandmf.planning.statement import ONE_EXAMPLE, check_generator
from tf_bandmf.strategies import Strategy, registry
from tf_bandmf.workloads import Workload

# Of the noise, relative.
_ROUNDING = 5e-10


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
    participation: Participation | None = None,
    sampling: str | None = None,
    workload: Workload | None = None,
    momentum: float = 0.0,
    decay: float = 1.0,
    learning_rates: Sequence[float] | None = None,
    l2_norm_clip: float = 1.0,
    bands: int | None = None,
    lambda_: float | None = None,
    gamma: float | None = None,
    column_normalized: bool | None = None,
    objective: str | None = None,
    max_memory_vectors: int | None = None,
    confidence: float | None = None,
    progress: bool | Callable[[str], None] = False,
    test_seed: int | None = None,
    unit: str = ONE_EXAMPLE,
    generator: str = "philox",
) -> Plan:
    """Plans a private run: from a budget to a strategy and its noise.

    Say how the data are used in one of two ways: `num_examples`, `batch_size`, `epochs`
    and `sampling` (by default a fixed epoch order; `Plan.batches` enforces it), or
    `participation` and, where it does not say so itself, `num_steps`. The participation
    decides who accounts: amplification by sampling is claimed for those only
    whose sampler is ours
    (`CyclicPoisson`, `Poisson`, `CyclicFixedSize`, `BallsInBins`).

    Formal guarantee: a run of the plan's training step over at most `num_steps` steps,
    on batches that respect the participation, is (epsilon, delta)-DP under the adjacency
    that the plan states, in ideal real arithmetic, with a secret noise key and secret
    random numbers of the sampler. If `Plan.kind` is "estimate", epsilon is one.

    Args:
      mechanism: "auto" compares those that fit `max_memory_vectors` and the sampling and
        takes the best; `Plan.choice` says what was compared and why it was chosen. Or a
        name, such as "identity" (DP-SGD), "lambda_cgd", "bisr:4", or a `Strategy`.
        Parameters that are not given are chosen for the smallest error, with
        amplification where it is claimed.
      epsilon: budget, > 0; together with delta.
      delta: budget, in [1e-20, 1); warned about if it is not below 1 / num_examples.
      noise_multiplier: instead of epsilon: noise standard deviation per unit of
        sensitivity; epsilon is then computed at delta.
      num_examples: size of the training set.
      batch_size: examples per step (with a participation: the expected number by which
        the noisy sum is divided).
      epochs: passes over the data.
      num_steps: n, with `participation`.
      participation: for example `MinSep(min_separation=342, max_participations=6)` or
        `BallsInBins(num_examples=60_000, batch_size=512, epochs=10)`.
      sampling: one of `participation.scheme.samplings()`, with `num_examples`,
        `batch_size` and `epochs`. "cyclic-poisson" and "cyclic-fixed-size" have as many
        parts as the strategy has bands.
      workload: what the released models sum; by default SGD with the given `momentum`,
        `decay` and `learning_rates`.
      momentum: of the SGD optimizer that consumes the noisy gradients, in [0, 1).
      decay: factor by which a step shrinks the weights, in (0, 1].
      learning_rates: relative learning rate of each step, shape [n]; None: constant.
      l2_norm_clip: zeta > 0.
      bands: of the mechanisms that have bands. By default at most 32 and b: the best
        power of two for closed forms, the most for optimized ones.
      lambda_: of "lambda_cgd"; by default the one with the smallest error.
      gamma: of "bifr", likewise; together with `bands`.
      column_normalized: scale the columns of C to norm 1; default False.
      objective: "mean" (RMSE, the default) or "max" (MaxSE), of the mechanisms that
        optimize something: all but "identity", "bsr", "bisr", "tree" and "dense".
      max_memory_vectors: vectors of the model's size that the noise may keep between
        steps; by default 31 for "auto", otherwise the mechanism's default. A strategy
        that keeps more is refused.
      confidence: of accounting by simulation (`BallsInBins`, `BMinSepSampling`): None
        for an estimate, or for example `1 - 1e-6` for a bound; under balls in bins 1 for
        a bound without simulation, which takes more noise.
      progress: True to name on stderr what is compared, and to show a bar for simulations
        that take longer than 2 seconds; or a function that takes such names. They go to
        the logger "tf_bandmf" in any case.
      test_seed: for tests only: noise from a known seed. The statement says so.
      unit: whose presence is hidden, in one line. With "one user" `num_examples` is the
        number of users and `batch_size` the users of a step: see `users` of
        `Plan.batches`, outside of federated learning.
      generator: of the noise: "philox", or "chacha20", a stream cipher, whose noise
        takes about three times as long and nobody who is bound to feasible computation
        tells from random numbers.

    Returns:
      A `Plan`.

    Raises:
      ValueError: if the budget is missing, contradictory, invalid or infeasible, or the
        use of the data is missing, contradictory or invalid.
    """
    if participation is not None and not isinstance(participation, Participation):
        raise ValueError(
            f"participation must be a Participation, such as MinSep(342), found "
            f'{participation!r}. For a name use sampling="poisson", for instance.'
        )
    check_generator(generator)
    if not isinstance(mechanism, (str, Strategy)):
        registry.parse(mechanism)  # refuses it
    if workload is not None:
        workloads.check_workload(workload)
    if num_steps is not None:
        num_steps = positive_int("num_steps", num_steps)
    scheme: Scheme | None = None
    if sampling is not None:
        scheme = resolve_scheme(
            sampling, num_examples, batch_size, epochs, num_steps, participation
        )
        if not scheme.is_cyclic:
            participation = scheme.participation()
            num_steps, epochs, scheme = scheme.num_steps, None, None
    steps: int
    expected_batch_size: float | None
    if scheme is None:
        participation, steps, expected_batch_size = resolve_participation(
            num_examples, batch_size, epochs, num_steps, participation
        )
    else:
        steps, expected_batch_size = scheme.num_steps, float(scheme.batch_size)
    if steps > LARGEST_NUM_STEPS:
        found = float(min(steps, 10**300))
        raise ValueError(
            f"num_steps (epochs * num_examples / batch_size) must be <= "
            f"{LARGEST_NUM_STEPS:,}, found {found:g}: the keys of the steps alone would "
            f"take {16.0 * found:.3g} bytes. Use larger batches or fewer epochs."
        )
    if num_examples is None:
        num_examples = getattr(participation, "num_examples", None)
    delta = check_budget(epsilon, delta, noise_multiplier, num_examples)
    tell = progress if callable(progress) else (_announce if progress else None)
    # A function shows what it is told in its own way: bars would get between its lines.
    has_bars = bool(progress) and not callable(progress)
    sampled = participation if scheme is None else scheme
    is_simulated = sampled is not None and sampled.is_simulated
    if confidence is not None and not is_simulated:
        raise ValueError(
            f"confidence is of accounting by simulation (BallsInBins, BMinSepSampling, "
            f'sampling="balls-in-bins" or "b-min-sep"), found {confidence!r}: no other '
            f"accounting simulates. Leave it out."
        )
    check_positive("l2_norm_clip", l2_norm_clip)
    if workload is None:
        workload = workloads.momentum_sgd(steps, momentum, decay, learning_rates)
    elif momentum != 0.0 or decay != 1.0 or learning_rates is not None:
        raise ValueError(
            "Give either workload or momentum, decay and learning_rates: a workload "
            "contains them."
        )
    options = {
        "bands": bands,
        "lambda_": lambda_,
        "gamma": gamma,
        "column_normalized": column_normalized,
        "objective": objective,
    }
    if isinstance(mechanism, Strategy):
        given = [name for name, value in options.items() if value is not None]
        if given:
            raise ValueError(
                f"{', '.join(given)} has no effect on a ready-made strategy: omit it."
            )
        choosing.check_memory(mechanism, max_memory_vectors)
        strategy = mechanism
        if scheme is not None:
            participation = scheme.participation(strategy.matrix.bands)
    elif (
        scheme is not None
        or max_memory_vectors is not None
        or _is_to_be_chosen(mechanism, options, participation, epsilon)
    ):
        choice = choosing.choose(
            workload,
            scheme or participation,  # type: ignore[arg-type]
            epsilon=_needed(epsilon),
            delta=delta,
            mechanism_names=_names(mechanism, options, participation),
            max_memory_vectors=max_memory_vectors,
            objective=objective or "mean",
            confidence=confidence,
            progress=tell,
        )
        assert choice.strategy is not None
        strategy, participation = choice.strategy, choice.participation
    else:
        assert participation is not None
        family, parsed = registry.parse(mechanism)
        strategy = registry.build_strategy(
            family, workload, participation, **_merged(options, parsed)
        )
    assert participation is not None
    if mechanism == "auto":
        strategy = sampling_advice.advised(
            strategy, workload, participation, float(_needed(epsilon)), delta, tell
        )
    strategy = strategy.in_float32()
    noise_multiplier, guarantee = _account(
        strategy,
        participation,
        epsilon,
        delta,
        noise_multiplier,
        confidence,
        has_bars,
    )
    return Plan(
        workload=workload,
        strategy=strategy,
        participation=participation,
        l2_norm_clip=float(l2_norm_clip),
        noise_multiplier=noise_multiplier,
        epsilon=guarantee.epsilon,
        delta=delta,
        expected_batch_size=expected_batch_size,
        accountant=guarantee.accountant,
        kind=guarantee.kind,
        adjacency=guarantee.adjacency,
        confidence=guarantee.confidence,
        test_seed=test_seed,
        unit=unit,
        generator=generator,
    )


def _is_to_be_chosen(
    mechanism: str,
    options: dict[str, Any],
    participation: Participation | None,
    epsilon: float | None,
) -> bool:
    """Whether parameters depend on the accountant, not on the sensitivity alone."""
    if mechanism == "auto":
        return True
    name, parsed = registry.parse(mechanism)
    family = registry.family_of(name)
    given = _merged(options, parsed)
    if family.needs_budget:
        return True
    if participation is None or not participation.is_simulated or epsilon is None:
        return False
    return any(
        option.name not in given
        for option in family.numbers
        if option.name == "bands" or option.grid
    )


def _merged(options: dict[str, Any], parsed: dict[str, Any]) -> dict[str, Any]:
    """The options of `plan` that were given, with those of the mechanism's name.

    Raises:
      ValueError: if one was given in both places.
    """
    given = {name: value for name, value in options.items() if value is not None}
    twice = ", ".join(sorted(set(given) & set(parsed)))
    if twice:
        raise ValueError(
            f"Give {twice} in one place, found it in the mechanism's name and as an "
            f"argument."
        )
    return {**given, **parsed}


def _names(
    mechanism: str, options: dict[str, Any], participation: Participation | None
) -> tuple[str, ...]:
    """What to choose from."""
    options = {k: v for k, v in options.items() if v is not None and k != "objective"}
    if mechanism == "auto":
        if options:
            raise ValueError(
                f"auto chooses {', '.join(options)} itself: name a mechanism to set it."
            )
        is_simulated = participation is not None and participation.is_simulated
        return registry.auto_names(is_simulated)
    name, parsed = registry.parse(mechanism)
    family = registry.family_of(name)
    values = _merged(options, parsed)
    normalized = values.pop("column_normalized", False)
    for option in family.numbers:
        if option.name not in values:
            break
        name += f":{values.pop(option.name)}"
    if values:
        raise ValueError(f"{family.name} does not take {', '.join(values)}.")
    return (name + (":normalized" if normalized else ""),)


def _needed(epsilon: float | None) -> float:
    if epsilon is None:
        raise ValueError(
            "A mechanism is chosen for a budget: give epsilon instead of "
            "noise_multiplier, or the mechanism with its parameters."
        )
    return float(epsilon)


def _announce(name: str) -> None:
    print(f"{name} ...", file=sys.stderr, flush=True)


def _account(
    strategy: Strategy,
    participation: Participation,
    epsilon: float | None,
    delta: float,
    noise_multiplier: float | None,
    confidence: float | None,
    progress: bool,
) -> tuple[float, Guarantee]:
    """The noise per unit of sensitivity, and the guarantee."""
    sensitivity = strategy.sensitivity(participation).value
    if epsilon is None:
        assert noise_multiplier is not None
        accountant = accountant_for(
            strategy, participation, confidence, progress=progress
        )
        guarantee = accountant.guarantee(noise_multiplier * sensitivity, delta)
        return float(noise_multiplier), guarantee
    found = calibrated(
        strategy, participation, float(epsilon), delta, confidence, progress
    )
    assert found.guarantee is not None
    # Rounded up: the product with the sensitivity must not be smaller, and the epsilon
    # of a later account, itself rounded up by 1e-10, not larger than the budget.
    return found.noise_stddev / sensitivity * (1.0 + _ROUNDING), found.guarantee
