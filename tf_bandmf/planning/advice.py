"""Advice: batch size, epochs, sampling, mechanism, clip norm, rate, averaged weights.

    advice = tf_bandmf.advise(num_examples=60_000, num_parameters=39_700, epsilon=3,
                              delta=1e-5, epochs=40, momentum=0.9, fan_in=3969)
    print(advice)
    advice.plan                  # ready for PrivateOptimizer and `batches`

No private data are read: the advice costs no privacy. It is based on the noise that the
plans add, which is exact, and on rules of thumb, whose sources are given in the code.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Callable

from tf_bandmf.accounting.checks import check_positive, is_number, whole_number
from tf_bandmf.accounting.guarantee import Guarantee
from tf_bandmf.participation import NAMED
from tf_bandmf.participation.scheme import Scheme
from tf_bandmf.planning import advice_reasons as reasons_lib
from tf_bandmf.planning import build, learning_rates, run_settings
from tf_bandmf.planning.arguments import check_budget
from tf_bandmf.planning.gradient_sample import GradientSample
from tf_bandmf.planning.plan import Plan
from tf_bandmf.planning.run_settings import RunSetting
from tf_bandmf.planning.tuning import TuningCost, tuning_cost
from tf_bandmf.strategies import registry

# Both are exact; others are compared if they are named.
DEFAULT_SAMPLINGS = ("fixed-order", "poisson")
# The smallest batch within this factor of the least noise is advised: it has the most
# steps. 10% more noise cost about 0.1 points of accuracy: on Fashion-MNIST (scattering,
# linear) 2.5 times the noise cost 1.5 (benchmarks/utility/results/fashion-mnist.csv).
_AS_GOOD = 1.1
# A sampling that demands more is advised if it has less noise by this part.
_WORTH = 0.03


@dataclasses.dataclass(frozen=True, eq=False)
class Advice:
    """Advised settings for training, and the reasons for them.

    Attributes:
      plan: plan of the advised run, with its clip norm: exactly what `tf_bandmf.plan`
        makes of `arguments`.
      setting: batch size, epochs, steps, sampling and mechanism, with the plan's noise.
      learning_rate: learning rate of SGD with `momentum`, for gradients that are
        clipped to the clip norm and divided by the batch size, as `PrivateOptimizer`
        does.
      learning_rate_range: (lowest, highest) worth trying.
      momentum: as given.
      ema_momentum: momentum of the moving average of the weights, for a Keras optimizer
        with `use_ema=True`; see `learning_rates.ema_momentum`.
      noise_to_signal: noise-to-signal ratio of the advised plan; if `alignment` is
        None, a lower limit.
      alignment: alignment of the public gradients, or None.
      settings: the settings that were compared: for each sampling, the batch sizes,
        largest first, with mechanisms in closed form; the advised one is `setting`.
      reasons: pairs of a subject ("batch size") and a sentence or two.
      tuning: the cost of private trials, if asked for.
      arguments: arguments of `tf_bandmf.plan`.
    """

    plan: Plan
    setting: RunSetting
    learning_rate: float
    learning_rate_range: tuple[float, float]
    momentum: float
    ema_momentum: float
    noise_to_signal: float
    alignment: float | None
    settings: tuple[RunSetting, ...]
    reasons: tuple[tuple[str, str], ...]
    tuning: TuningCost | None
    arguments: dict[str, Any]

    @property
    def l2_norm_clip(self) -> float:
        """Zeta, the norm to which each example's gradient is clipped."""
        return self.plan.l2_norm_clip

    def values(self) -> list[tuple[str, str]]:
        """The advice in short: names and values, for tables."""
        one, low, high = self.setting, *self.learning_rate_range
        at_least = "at least " if self.alignment is None else ""
        return [
            ("batch size", f"{one.batch_size}"),
            ("epochs", f"{one.epochs}"),
            ("steps", f"{one.num_steps}"),
            ("sampling", one.sampling),
            ("mechanism", one.mechanism),
            ("clip norm", f"{self.l2_norm_clip:.3g}"),
            ("learning rate", f"{self.learning_rate:.3g} ({low:.3g} to {high:.3g})"),
            ("momentum", f"{self.momentum:g}"),
            ("EMA momentum", f"{self.ema_momentum:.3g}"),
            ("noise multiplier", f"{self.plan.noise_multiplier:.4g}"),
            ("noise to signal", f"{at_least}{self.noise_to_signal:.3g}"),
        ]

    def to_record(self) -> dict[str, Any]:
        """Plain finite values, ready for JSON."""
        guarantee: Guarantee = self.plan.guarantee
        low, high = self.learning_rate_range
        return {
            **dataclasses.asdict(self.setting),
            "l2_norm_clip": self.l2_norm_clip,
            "learning_rate": self.learning_rate,
            "learning_rate_range": [low, high],
            "momentum": self.momentum,
            "ema_momentum": self.ema_momentum,
            "noise_multiplier": self.plan.noise_multiplier,
            "noise_stddev": self.plan.noise_stddev,
            "noise_to_signal": self.noise_to_signal,
            "alignment": self.alignment,
            "epsilon": guarantee.epsilon,
            "delta": guarantee.delta,
            "kind": guarantee.kind,
            "settings": [dataclasses.asdict(one) for one in self.settings],
            "reasons": dict(self.reasons),
            "tuning": _tuning_record(self.tuning),
        }

    def __str__(self) -> str:
        width = max(len(name) for name, _ in self.values())
        lines = [f"{name.ljust(width)}  {value}" for name, value in self.values()]
        lines += ["", *(f"{name}: {text}" for name, text in self.reasons)]
        if self.tuning is not None:
            lines.append(f"private trials: {self.tuning}")
        return "\n".join(lines)


def advise(
    *,
    num_examples: int,
    epsilon: float,
    delta: float,
    num_parameters: int | None = None,
    epochs: int | None = None,
    max_examples_seen: float | None = None,
    max_batch_size: int | None = None,
    sampling: str | Sequence[str] = DEFAULT_SAMPLINGS,
    mechanism: str = "auto",
    max_memory_vectors: int | None = None,
    momentum: float = 0.0,
    fan_in: float | None = None,
    public_gradients: GradientSample | None = None,
    expected_trials: float | None = None,
    progress: Callable[[str], None] | None = None,
) -> Advice:
    """Advises how to train with a budget; reads no private data.

    Compares batch sizes (powers of two) and samplings by the predicted noise-to-signal
    ratio (`run_settings.noise_to_signal`) of mechanisms in closed form, in seconds. The
    smallest batch within 10% of the least noise is advised, because it has the most
    steps; runs with too few steps for their learning rate to use their low noise
    (`learning_rates.per_clip_unit`) do not count. All epochs that the compute allows
    are used. `tf_bandmf.plan` then chooses the mechanism for the advised setting, as it
    does for "auto", and gives its reason.

    Args:
      num_examples: m, size of the training set.
      epsilon: budget, > 0.
      delta: budget, in [1e-20, 1).
      num_parameters: d, trainable parameters; by default those of `public_gradients`.
      epochs: the most passes over the data that the compute allows.
      max_examples_seen: the same limit as a number of per-example gradients; instead of
        epochs.
      max_batch_size: the largest batch; None for no limit. Memory need not limit it:
        `make_private(model, microbatch_size=...)` clips a batch in parts.
      sampling: the names of the samplings that may be used, out of "fixed-order",
        "shuffled", "poisson", "cyclic-poisson", "cyclic-fixed-size" and "balls-in-bins"
        (an estimate). A sampling that requires more than the first is advised only if
        it has at least 3% less noise.
      mechanism: as for `tf_bandmf.plan`. A name with a closed form is also used to
        compare batch sizes.
      max_memory_vectors: as for `tf_bandmf.plan`.
      momentum: momentum of SGD, in [0, 1).
      fan_in: inputs of a unit, summed over the layers (pixels or features of a linear
        model; height * width * channels of a convolution): it scales the learning rate.
        By default that of `public_gradients`, or 10 sqrt(d), a rough guess.
      public_gradients: gradients of the model on data that need no protection.
      expected_trials: None, or the expected number of private trials whose cost is to
        be computed; see `tf_bandmf.tuning_cost`.
      progress: called with what is computed next.

    Returns:
      The advice.

    Raises:
      TypeError: if public_gradients is not a `GradientSample`.
      ValueError: if an argument is missing, contradictory, or out of range.
    """
    check_budget(epsilon, delta, None, None)
    examples = whole_number("num_examples", num_examples)
    epochs = _epochs(epochs, max_examples_seen, examples)
    if public_gradients is not None and not isinstance(
        public_gradients, GradientSample
    ):
        raise TypeError(
            f"public_gradients must be a GradientSample, found {public_gradients!r}: "
            f"make one with tf_bandmf.keras.sample_gradients, or "
            f"GradientSample.of_gradients."
        )
    parameters = _parameters(num_parameters, public_gradients)
    largest = examples
    if max_batch_size is not None:
        largest = min(examples, whole_number("max_batch_size", max_batch_size))
    samplings = _samplings(sampling)
    if not is_number(momentum) or not 0.0 <= momentum < 1.0:
        raise ValueError(f"momentum must be in [0, 1), found {momentum!r}.")
    if progress is not None and not callable(progress):
        raise ValueError(f"progress must be a function or None, found {progress!r}.")
    inputs, is_guess = _fan_in(fan_in, public_gradients, parameters)
    tell = progress or (lambda name: None)
    scan = run_settings.Scan(
        examples, parameters, epsilon, delta, float(momentum), inputs
    )
    names = _closed_form(mechanism)
    found = {
        name: scan.batch_sizes(name, epochs, largest, tell, names) for name in samplings
    }
    settings = tuple(one for several in found.values() for one in several)
    if not settings:
        raise ValueError(
            f"No setting of {', '.join(samplings)} can be compared for {examples} "
            f"examples and {epochs} epochs. Use another sampling or fewer epochs."
        )
    chosen, reasons = _choose(found)
    clip, why = reasons_lib.clip_norm(public_gradients)
    reasons.append(("clip norm", why))
    arguments: dict[str, Any] = {
        "mechanism": mechanism,
        "epsilon": epsilon,
        "delta": delta,
        "num_examples": examples,
        "batch_size": chosen.batch_size,
        "epochs": chosen.epochs,
        "sampling": chosen.sampling,
        "workload": f"sgd:momentum={float(momentum)!r}",
        "l2_norm_clip": clip,
    }
    if max_memory_vectors is not None:
        arguments["max_memory_vectors"] = max_memory_vectors
    tell("the plan")
    plan = build.plan(**arguments, progress=progress or False)
    name = registry.specification(plan.strategy)
    if plan.choice is not None:
        name = plan.choice.mechanism
        reasons.append(("mechanism", reasons_lib.of_mechanism(plan.choice.reason)))
    scheme = Scheme(chosen.sampling, examples, chosen.batch_size, chosen.epochs)
    assert plan.expected_batch_size is not None  # of a named sampling
    setting = scan.setting(
        scheme,
        name,
        plan.workload,
        plan.rmse(),
        plan.expected_batch_size,
    )
    alignment = None if public_gradients is None else public_gradients.alignment
    rate = float(f"{setting.learning_rate:.3g}")
    reasons.append(("learning rate", reasons_lib.of_rate(setting, inputs, is_guess)))
    ema_momentum = learning_rates.ema_momentum(setting.num_steps)
    reasons.append(("EMA momentum", reasons_lib.AVERAGE))
    ratio = setting.noise_to_signal
    if alignment is not None and alignment > 0.0:
        ratio /= alignment
    reasons.append(("noise to signal", reasons_lib.of_signal(public_gradients)))
    tell("more compute")
    # The closed form's noise follows that of the others.
    reasons.append(("epochs", reasons_lib.of_epochs(scan, chosen)))
    tuning = None
    if expected_trials is not None:
        tell("private trials")
        tuning = tuning_cost(plan, expected_trials)
    return Advice(
        plan=plan,
        setting=setting,
        learning_rate=rate / clip,
        learning_rate_range=(
            rate / learning_rates.RANGE / clip,
            rate * learning_rates.RANGE / clip,
        ),
        momentum=float(momentum),
        ema_momentum=ema_momentum,
        noise_to_signal=ratio,
        alignment=alignment,
        settings=tuple(setting if one is chosen else one for one in settings),
        reasons=tuple(reasons),
        tuning=tuning,
        arguments=arguments,
    )


def _epochs(
    epochs: int | None, max_examples_seen: float | None, num_examples: int
) -> int:
    if (epochs is None) == (max_examples_seen is None):
        raise ValueError(
            f"Say what can be computed in one way: epochs, or max_examples_seen; found "
            f"epochs = {epochs}, max_examples_seen = {max_examples_seen}."
        )
    if epochs is not None:
        return whole_number("epochs", epochs)
    check_positive("max_examples_seen", max_examples_seen)
    assert max_examples_seen is not None
    whole = int(max_examples_seen // num_examples)
    if whole < 1:
        raise ValueError(
            f"max_examples_seen must be >= num_examples = {num_examples}, found "
            f"{max_examples_seen:g}: less than one epoch. Train on a random part of the "
            f"data, and give its size as num_examples."
        )
    return whole


def _parameters(number: int | None, sample: GradientSample | None) -> int:
    if number is not None:
        return whole_number("num_parameters", number)
    if sample is None:
        raise ValueError("num_parameters is missing: the model's trainable parameters.")
    return sample.num_parameters


def _closed_form(mechanism: str) -> tuple[str, ...] | None:
    """The mechanism that batch sizes are compared with; None for those of the sampling."""
    if not isinstance(mechanism, str) or mechanism.strip().partition(":")[0] == "auto":
        return None  # `plan` refuses what is no name
    family = registry.family_of(registry.parse(mechanism)[0])
    return None if family.is_optimized or family.needs_budget else (mechanism,)


def _samplings(sampling: str | Sequence[str]) -> tuple[str, ...]:
    known = run_settings.known_samplings()
    names: tuple[Any, ...] = ()
    if isinstance(sampling, str):
        names = (sampling,)
    elif isinstance(sampling, (list, tuple)):
        names = tuple(sampling)
    if not names or any(
        not isinstance(name, str) or name not in known for name in names
    ):
        raise ValueError(
            f"sampling must be one or more of {', '.join(known)}, found {sampling!r}."
        )
    return tuple(dict.fromkeys(names))


def _choose(
    found: dict[str, list[RunSetting]],
) -> tuple[RunSetting, list[tuple[str, str]]]:
    """The setting that is advised, with its reasons."""
    best = {name: _of_sampling(several) for name, several in found.items() if several}
    chosen, *others = best.values()
    for other in others:
        if other.noise_to_signal < (1.0 - _WORTH) * chosen.noise_to_signal:
            chosen = other
    useful = [one for one in found[chosen.sampling] if not one.has_few_steps]
    if not useful:
        batch = (
            "The smallest one compared, which has the most steps: noise is not what limits "
            "this run."
        )
    else:
        least = min(useful, key=lambda one: one.noise_to_signal)
        batch = (
            f"The smallest one, which has the most steps, whose noise is within "
            f"{100.0 * (_AS_GOOD - 1.0):.0f}% of the least, that of batches of "
            f"{least.batch_size}."
        )
        if len(useful) < len(found[chosen.sampling]):
            batch += (
                " Larger ones have too few steps to use how little noise they have."
            )
    demand = f"It demands {NAMED[chosen.sampling].demands}."
    compared = []
    for name, one in best.items():
        if one is not chosen:
            compared.append(f"{name} has {reasons_lib.in_percent(one, chosen)} noise")
    if compared:
        demand += f" At its own batch size {'; '.join(compared)}."
    return chosen, [("batch size", batch), ("sampling", demand)]


def _of_sampling(several: Sequence[RunSetting]) -> RunSetting:
    """The batch size that is advised for one sampling."""
    useful = [one for one in several if not one.has_few_steps]
    if not useful:
        return min(several, key=lambda one: one.batch_size)
    least = min(one.noise_to_signal for one in useful)
    good = [one for one in useful if one.noise_to_signal <= _AS_GOOD * least]
    return min(good, key=lambda one: one.batch_size)


def _fan_in(
    given: float | None, sample: GradientSample | None, num_parameters: int
) -> tuple[float, bool]:
    """Inputs of a unit, added up over the layers, and whether they are guessed.

    10 sqrt(d) is within a factor of 3 for the models of
    `learning_rates.per_clip_unit` and for a transformer of 12 layers.
    """
    if given is None and sample is not None:
        given = sample.fan_in
    if given is None:
        return 10.0 * math.sqrt(num_parameters), True
    check_positive("fan_in", given)
    return float(given), False


def _tuning_record(cost: TuningCost | None) -> dict[str, Any] | None:
    if cost is None:
        return None
    record = dataclasses.asdict(cost)
    if math.isinf(cost.shape):
        record["shape"] = None
    return record
