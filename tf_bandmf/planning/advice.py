"""Advice: batch size, sampling, mechanism, clip norm and optimizer for a budget.

    advice = tf_bandmf.advise(num_examples=60_000, num_parameters=39_700, epsilon=3,
                              delta=1e-5, epochs=40)
    print(advice)
    keras.optimizers.SGD(**advice.optimizer_arguments)
    advice.plan                  # ready for PrivateOptimizer and `batches`

No private data are read: the advice costs no privacy. It is based on the noise that the
plans add, which is exact, and on one rule for the rate (`planning.learning_rates`).
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tf_bandmf import workloads
from tf_bandmf.accounting.checks import whole_number
from tf_bandmf.participation import NAMED
from tf_bandmf.participation.scheme import Scheme, samplings
from tf_bandmf.planning import build, learning_rates
from tf_bandmf.planning.arguments import check_budget
from tf_bandmf.planning.compare import quick_rows
from tf_bandmf.planning.plan import Plan
from tf_bandmf.strategies import registry

if TYPE_CHECKING:
    import keras

_LOG = logging.getLogger("tf_bandmf")
# Both are exact; others are compared if they are named.
DEFAULT_SAMPLINGS = ("fixed-order", "poisson")
# The simulation of b-min-sep sampling takes minutes a setting.
_SAMPLINGS = tuple(name for name in samplings() if name != "b-min-sep")
# A sampling that demands more is advised if its progress is larger by this part.
_WORTH = 0.03
# The search for a batch size goes down from the largest one, and ends where progress is
# below this part of the largest so far, or the run has more steps than that.
_HOPELESS = 0.67
_MOST_STEPS = 20_000
# Steps of the run with the largest batches.
_LARGEST_RUN = 200_000
# Smaller batches gain nothing without privacy either: Masters and Luschi, 2018,
# arXiv:1804.07612.
_SMALLEST_BATCH = 32
# Expected shares below these are called so.
_NOTHING, _LITTLE = 0.2, 0.7


@dataclasses.dataclass(frozen=True)
class RunSetting:
    """One way to use the data, with the noise that it has for a budget.

    Attributes:
      sampling, mechanism: by name, as `tf_bandmf.plan` takes them.
      batch_size, epochs, num_steps: of the run.
      noise: s, see `learning_rates.noise_in_models`; up to a percent for settings that
        were only compared.
      learning_rate: of SGD, per unit of clip norm; see `learning_rates.per_clip_unit`.
      progress: how far the weights can move, per unit of clip norm; see
        `learning_rates.progress`. The setting with the most progress is advised.
    """

    sampling: str
    mechanism: str
    batch_size: int
    epochs: int
    num_steps: int
    noise: float
    learning_rate: float
    progress: float


@dataclasses.dataclass(frozen=True, eq=False)
class Advice:
    """Advised settings for training, and the reasons for them.

    Attributes:
      plan: plan of the advised run, with its clip norm: exactly what `tf_bandmf.plan`
        makes of `arguments`.
      setting: batch size, epochs, steps, sampling and mechanism, with the plan's noise.
      optimizer: "sgd" or "adam", as given.
      optimizer_arguments: for `keras.optimizers.SGD` or `Adam`: rate, momentum, averaged
        weights.
      expected_share: part of what the model gains without privacy that it is expected
        to gain; see `learning_rates.expected_share`.
      settings: the settings that were compared: for each sampling, the batch sizes,
        largest first, with mechanisms in closed form; the advised one is `setting`.
      reasons: pairs of a subject ("batch size") and a sentence or two.
      arguments: arguments of `tf_bandmf.plan`.
    """

    plan: Plan
    setting: RunSetting
    optimizer: str
    optimizer_arguments: dict[str, Any]
    expected_share: float
    settings: tuple[RunSetting, ...]
    reasons: tuple[tuple[str, str], ...]
    arguments: dict[str, Any]

    def to_record(self) -> dict[str, Any]:
        """Plain finite values, ready for JSON."""
        given = ("optimizer", "optimizer_arguments", "expected_share")
        planned = ("l2_norm_clip", "noise_multiplier", "epsilon", "delta", "kind")
        return {
            **dataclasses.asdict(self.setting),
            **{name: getattr(self, name) for name in given},
            **{name: getattr(self.plan, name) for name in planned},
            "settings": [dataclasses.asdict(one) for one in self.settings],
            "reasons": dict(self.reasons),
        }

    def __str__(self) -> str:
        one, inner = self.setting, self.optimizer_arguments
        values = {
            "batch size": f"{one.batch_size}",
            "epochs": f"{one.epochs}",
            "steps": f"{one.num_steps}",
            "sampling": one.sampling,
            "mechanism": one.mechanism,
            "clip norm": f"{self.plan.l2_norm_clip:.3g}",
            "optimizer": {"sgd": "SGD", "adam": "Adam"}[self.optimizer],
            "learning rate": f"{inner['learning_rate']:.3g}",
            "momentum": f"{inner.get('momentum', 0.0):g}",
            "EMA momentum": f"{inner['ema_momentum']:.3g}",
            "noise": f"{self.plan.noise_stddev / self.plan.l2_norm_clip:.4g} clip norms",
            "expected share": f"{self.expected_share:.2f}",
        }
        width = max(map(len, values))
        lines = [f"{name.ljust(width)}  {value}" for name, value in values.items()]
        lines += ["", *(f"{name}: {text}" for name, text in self.reasons)]
        return "\n".join(lines)


def advise(
    *,
    num_examples: int,
    num_parameters: int | None = None,
    epsilon: float,
    delta: float,
    epochs: int,
    model: keras.Model | None = None,
    optimizer: str = "sgd",
    loss: Any = None,
    max_batch_size: int | None = None,
    sampling: str | Sequence[str] = DEFAULT_SAMPLINGS,
    mechanism: str = "auto",
    max_memory_vectors: int | None = None,
) -> Advice:
    """Advises how to train with a budget; reads no private data.

    Compares batch sizes (powers of two) and samplings, with mechanisms in closed form,
    by how far the weights can move at the rate that their noise allows
    (`learning_rates.per_clip_unit`). `tf_bandmf.plan` then chooses the mechanism for
    the advised setting, as it does for "auto", and gives its reason. The plan is shaped
    for the advised momentum.

    Args:
      num_examples: m, size of the training set.
      num_parameters: d, trainable parameters; needed without a model.
      epsilon: budget, > 0.
      delta: budget, in [1e-20, 1).
      epochs: the most passes over the data that the compute allows; all are used.
      model: a Keras model with weights: its trainable parameters are counted.
      optimizer: "sgd", with momentum 0.9, or "adam", whose noise is independent: what
        Adam divides by is made of noise, too, and undoes correlations.
      loss: Keras loss of the model, or its name: counts and two classes need larger clip
        norms than several classes, a squared error a smaller rate.
      max_batch_size: the largest batch; None for no limit. Memory need not limit it:
        `make_private(model, microbatch_size=...)` clips a batch in parts.
      sampling: the names of the samplings that may be used, out of "fixed-order",
        "shuffled", "poisson", "cyclic-poisson", "cyclic-fixed-size" and "balls-in-bins"
        (an estimate). A sampling that requires more than the first is advised only if
        it has at least 3% more progress.
      mechanism: as for `tf_bandmf.plan`. A name with a closed form is also used to
        compare batch sizes.
      max_memory_vectors: as for `tf_bandmf.plan`.

    Returns:
      The advice.

    Raises:
      ValueError: if an argument is contradictory or out of range.
    """
    check_budget(epsilon, delta, None, None)
    if optimizer not in ("sgd", "adam"):
        raise ValueError(f'optimizer must be "sgd" or "adam", found {optimizer!r}.')
    is_adam = optimizer == "adam"
    if is_adam and mechanism == "auto":
        mechanism = "identity"
    if model is not None:
        num_parameters = sum(math.prod(v.shape) for v in model.trainable_variables)
        loss = getattr(model, "loss", None) if loss is None else loss
    num_parameters = whole_number("num_parameters", num_parameters)
    clip, why = learning_rates.clip_norm(loss)
    scan = _Scan(
        whole_number("num_examples", num_examples),
        num_parameters,
        loss,
        whole_number("epochs", epochs),
        (epsilon, delta),
        _closed_form(mechanism),
    )
    largest = scan.num_examples
    if max_batch_size is not None:
        largest = min(largest, whole_number("max_batch_size", max_batch_size))
    samplings = _samplings(sampling)
    compared = {name: scan.batch_sizes(name, largest) for name in samplings}
    settings = tuple(one for several in compared.values() for one in several)
    if not settings:
        raise ValueError(
            f"No setting of {', '.join(samplings)} can be compared for "
            f"{scan.num_examples} examples and {scan.epochs} epochs. Use another "
            f"sampling or fewer epochs."
        )
    chosen, reasons = _choose(compared)
    if sampling is DEFAULT_SAMPLINGS:
        reasons["sampling"] += ' "balls-in-bins" is compared if it is named.'
    arguments: dict[str, Any] = {
        "mechanism": mechanism,
        "epsilon": epsilon,
        "delta": delta,
        "num_examples": scan.num_examples,
        "batch_size": chosen.batch_size,
        "epochs": chosen.epochs,
        "sampling": chosen.sampling,
        "workload": "prefix"
        if is_adam
        else f"sgd:momentum={learning_rates.MOMENTUM!r}",
        "l2_norm_clip": clip,
        "max_memory_vectors": max_memory_vectors,
    }
    plan = build.plan(**arguments)
    name, table = registry.specification(plan.strategy), plan.choice
    assert plan.expected_batch_size is not None  # of a named sampling
    setting = scan.setting(
        Scheme(chosen.sampling, scan.num_examples, chosen.batch_size, chosen.epochs),
        name if table is None else table.mechanism,
        plan.rmse(),
        plan.expected_batch_size,
        plan.workload.momentum or 0.0,
    )
    share = learning_rates.expected_share(
        setting.noise, num_parameters, setting.num_steps, clip
    )
    reasons |= {"clip norm": why}
    reasons |= {} if table is None else {"mechanism": table.reason}
    reasons |= {"expected share": _verdict(share)}
    return Advice(
        plan=plan,
        setting=setting,
        optimizer=optimizer,
        optimizer_arguments=plan.optimizer_arguments(num_parameters, optimizer, loss),
        expected_share=share,
        settings=tuple(setting if one is chosen else one for one in settings),
        reasons=tuple(reasons.items()),
        arguments=arguments,
    )


@dataclasses.dataclass(frozen=True)
class _Scan:
    """Compares settings for one data set, model and budget.

    Attributes:
      num_examples, num_parameters, epochs: m, d and k.
      loss: of the model.
      budget: epsilon and delta.
      mechanisms: names to compare; None for those that stand for each sampling.
    """

    num_examples: int
    num_parameters: int
    loss: Any
    epochs: int
    budget: tuple[float, float]
    mechanisms: tuple[str, ...] | None

    def batch_sizes(self, sampling: str, largest: int) -> list[RunSetting]:
        """The best mechanism for the largest batch, and for powers of two below it.

        Raises:
          ValueError: if even the run with the largest batches has too many steps.
        """
        settings: list[RunSetting] = []
        powers = [2**i for i in range(largest.bit_length()) if 2**i < largest]
        for size in (largest, *(p for p in reversed(powers) if p >= _SMALLEST_BATCH)):
            steps = self.epochs * -(-self.num_examples // size)
            if settings and steps > _MOST_STEPS:
                break
            if steps > _LARGEST_RUN:
                raise ValueError(
                    f"num_examples, epochs and max_batch_size give more than "
                    f"{_LARGEST_RUN:,} steps: use larger batches or fewer epochs."
                )
            _LOG.info("comparing %s, batches of %d", sampling, size)
            compared = self._settings(sampling, size)
            if compared:
                settings.append(max(compared, key=_progress))
                if settings[-1].progress < _HOPELESS * max(map(_progress, settings)):
                    break
        return settings

    def _settings(self, sampling: str, batch_size: int) -> list[RunSetting]:
        """Settings of the mechanisms that fit a sampling."""
        scheme = Scheme(sampling, self.num_examples, batch_size, self.epochs)
        workload = workloads.momentum_sgd(scheme.num_steps, learning_rates.MOMENTUM)
        try:
            rows = quick_rows(scheme, workload, self.budget, self.mechanisms)
        except (ValueError, ArithmeticError):
            # Few draws see nothing; what was named may not fit the sampling.
            if NAMED[sampling].is_simulated or self.mechanisms is not None:
                return []
            raise
        return [
            self.setting(scheme, r.mechanism, r.rmse, r.batch_size or batch_size)
            for r in rows
        ]

    def setting(
        self,
        scheme: Scheme,
        mechanism: str,
        rmse: float,
        divisor: float,
        momentum: float = learning_rates.MOMENTUM,
    ) -> RunSetting:
        """The setting of a run with an RMSE, whose sums are divided by `divisor`."""
        noise = learning_rates.noise_in_models(rmse, divisor, momentum)
        clip, _ = learning_rates.clip_norm(self.loss)
        rate = learning_rates.per_clip_unit(
            noise, self.num_parameters, learning_rates.MOMENTUM, clip, self.loss
        )
        size, steps = scheme.batch_size, scheme.num_steps
        use = (scheme.sampling, mechanism, size, scheme.epochs, steps)
        return RunSetting(*use, noise, rate, learning_rates.progress(rate, steps))


def _progress(one: RunSetting) -> float:
    return one.progress


def _closed_form(mechanism: str) -> tuple[str, ...] | None:
    """The mechanism that batch sizes are compared with; None for those of the sampling."""
    if not isinstance(mechanism, str) or mechanism.strip().partition(":")[0] == "auto":
        return None  # `plan` refuses what is no name
    family = registry.family_of(registry.parse(mechanism)[0])
    return None if family.is_optimized or family.needs_budget else (mechanism,)


def _samplings(sampling: str | Sequence[str]) -> tuple[str, ...]:
    names = [sampling] if isinstance(sampling, str) else sampling
    is_list = isinstance(names, (list, tuple)) and len(names) > 0
    if not is_list or any(name not in _SAMPLINGS for name in names):
        raise ValueError(
            f"sampling must be one or more of {', '.join(_SAMPLINGS)}, found "
            f"{sampling!r}."
        )
    return tuple(dict.fromkeys(names))


def _choose(
    compared: dict[str, list[RunSetting]],
) -> tuple[RunSetting, dict[str, str]]:
    """The setting that is advised, with its reasons."""
    best = {name: max(one, key=_progress) for name, one in compared.items() if one}
    chosen, *others = best.values()
    for other in others:
        if other.progress > (1.0 + _WORTH) * chosen.progress:
            chosen = other
    demand = f"It demands {NAMED[chosen.sampling].demands}."
    texts = [
        f"{name} has {100.0 * one.progress / chosen.progress:.0f}% of the progress"
        for name, one in best.items()
        if one is not chosen
    ]
    if texts:
        demand += f" At its own batch size {'; '.join(texts)}."
    batch = (
        "Weights move farthest; smaller batches have more noise, larger fewer steps."
    )
    return chosen, {"batch size": batch, "sampling": demand}


def _verdict(share: float) -> str:
    """What to expect of the run, in words."""
    text = f"About {share:.2f} of what the model gains without privacy (standard deviation "
    text += f"on tasks that were measured: {learning_rates.SPREAD:g})."
    if share >= _LITTLE:
        return text
    begin = "Expect nothing" if share < _NOTHING else "Expect little"
    return f"{begin}. {text} Fewer weights, more examples, a larger epsilon would help."
