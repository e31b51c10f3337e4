"""Advice on batch size, sampling, mechanism, clip norm and optimizer for a budget.

    advice = tf_bandmf.advise(num_examples=60_000, num_parameters=39_700, epsilon=3,
                              delta=1e-5, epochs=40)
    print(advice)
    advice.plan                  # ready for PrivateOptimizer and `batches`
    advice.optimizer()           # a Keras optimizer with the advised learning rate
    advice.epochs                # the epochs of `fit`

Advice is computed without private data, so it costs no privacy. It is based on the
noise of each plan, which is known exactly, and on one learning-rate rule
(`planning.learning_rates`).
"""

from __future__ import annotations

import dataclasses
import logging
import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tf_bandmf.accounting.checks import check_word, whole_number
from tf_bandmf.participation import NAMED, samplings
from tf_bandmf.planning import build, learning_rates
from tf_bandmf.planning.arguments import check_budget
from tf_bandmf.planning.compare import Comparison, Row, compare
from tf_bandmf.planning.learning_rates import MOMENTUM
from tf_bandmf.planning.plan import Plan
from tf_bandmf.planning.texts import phrase, phrases
from tf_bandmf.strategies import registry

if TYPE_CHECKING:
    import keras

_LOG = logging.getLogger("tf_bandmf")
_WORKLOAD = f"sgd:momentum={MOMENTUM!r}"
# The samplings with exact accounting. `advise` compares other samplings only if the
# caller names them.
DEFAULT_SAMPLINGS = ("fixed-order", "poisson")
# All samplings except b-min-sep sampling, whose accounting takes minutes.
_SAMPLINGS = tuple(name for name in samplings() if name != "b-min-sep")
# A sampling is preferred to samplings that were named before it only if its progress is
# larger by this fraction.
_WORTH = 0.03
# Another mechanism is preferred to the mechanism with the smallest error if it has at
# most _AS_GOOD times this error, and less than _CALMER times the fresh noise per step;
# see `benchmarks/advice`.
_AS_GOOD, _CALMER = 1.05, 0.9
# The batch-size search starts at the largest size. It ends once progress falls below
# `_HOPELESS` times the maximum so far, or a run takes more than `_MOST_STEPS` steps.
_HOPELESS = 0.67
_MOST_STEPS = 20_000
# The maximum number of steps for the run with the largest batches.
_LARGEST_RUN = 200_000
# Batches smaller than this have no advantage, even without privacy (Masters and Luschi,
# 2018, arXiv:1804.07612).
_SMALLEST_BATCH = 32
# Thresholds of the model's expected improvement, as a share of the improvement without
# privacy: a share below _NOTHING is reported as "nothing", a share below _LITTLE as
# "little".
_NOTHING, _LITTLE = 0.2, 0.7


@dataclasses.dataclass(frozen=True)
class RunSetting:
    """A choice of sampling, mechanism and batch size that `advise` compares.

    Attributes:
      sampling: name of the sampling, as for `tf_bandmf.plan`.
      mechanism: name of the mechanism, as for `tf_bandmf.plan`.
      batch_size: examples per step.
      num_steps: n, the number of steps of the run.
      progress: how far the weights can move in the run, given the noise that the budget
        requires; see `learning_rates.progress`. `advise` recommends the setting with
        the most progress.
    """

    sampling: str
    mechanism: str
    batch_size: int
    num_steps: int
    progress: float


@dataclasses.dataclass(frozen=True, eq=False)
class Advice(RunSetting):
    """The recommended setting for training with a privacy budget, with the reasons.

    Attributes:
      plan: plan of the recommended run, the result of `tf_bandmf.plan(**arguments)`.
      epochs: number of passes over the data.
      optimizer_name: "SGD" or "Adam".
      optimizer_arguments: arguments of `keras.optimizers.SGD` or `Adam`: learning rate,
        momentum, weight averaging.
      expected_share: the expected improvement of the model by training, as a share of
        the improvement without privacy; see `learning_rates.expected_share`.
      settings: the compared settings, ordered by sampling and then by decreasing batch
        size. Their mechanisms have a closed form.
      reasons: pairs of a subject, such as "batch size", and one or two sentences.
      arguments: arguments of `tf_bandmf.plan`.
    """

    plan: Plan
    epochs: int
    optimizer_name: str
    optimizer_arguments: dict[str, Any]
    expected_share: float
    settings: tuple[RunSetting, ...]
    reasons: tuple[tuple[str, str], ...]
    arguments: dict[str, Any]

    def optimizer(self) -> keras.optimizers.Optimizer:
        """Returns a new Keras optimizer with the advised arguments."""
        # Keras is imported here because no other method needs it.
        import keras

        make = getattr(keras.optimizers, self.optimizer_name)
        return make(**self.optimizer_arguments)

    def to_record(self) -> dict[str, Any]:
        """Returns the advice as a dictionary of finite values that JSON can store."""
        names = "l2_norm_clip noise_multiplier epsilon delta kind".split()
        record = {**vars(self), **{name: getattr(self.plan, name) for name in names}}
        del record["plan"], record["arguments"]
        settings = [dict(vars(one)) for one in self.settings]
        return {**record, "settings": settings, "reasons": dict(self.reasons)}

    def __str__(self) -> str:
        facts = {"momentum": 0.0, **self.optimizer_arguments}
        values = phrases("advised", advice=self, **facts)
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
) -> Advice:
    """Recommends settings for training with a budget; reads no private data.

    The function compares batch sizes (powers of two) and samplings, using closed-form
    mechanisms. The criterion is how far the weights can move with the learning rate
    that the noise permits (`learning_rates.per_clip_unit`). `tf_bandmf.plan` then
    chooses the mechanism for the recommended setting, and states the reason for its
    choice. The plan's workload uses the recommended momentum.

    Args:
      num_examples: m, size of the training set.
      num_parameters: d, the number of trainable parameters; required if no model is
        given.
      epsilon: budget, > 0.
      delta: budget, in [1e-20, 1).
      epochs: number of passes over the data; choose as many as your compute budget
        allows. The recommended run makes all of them.
      model: a Keras model with weights, whose trainable parameters are counted.
      optimizer: "sgd" (with momentum 0.9) or "adam". With "adam", the default mechanism
        is independent noise: Adam divides the updates of different steps by different
        noisy values, so correlated noise would not cancel between steps.
      loss: Keras loss of the model, or its name. Losses for counts and for binary
        classification need larger clip norms than losses for multiclass classification;
        a squared error needs a smaller learning rate.
      max_batch_size: the maximum batch size; None for no limit. Memory need not limit
        the batch size, because `make_private(model, microbatch_size=...)` processes one
        part of the batch at a time.
      sampling: names of the permitted samplings, from "fixed-order", "shuffled",
        "poisson", "cyclic-poisson", "cyclic-fixed-size" and "balls-in-bins" (whose
        epsilon is an estimate). A sampling is preferred to the ones before it only if it
        makes over 3% more progress.
      mechanism: as in `tf_bandmf.plan`. If this mechanism has a closed form, it is also
        used to compare batch sizes and samplings. Otherwise, other mechanisms that have
        a closed form are used for this comparison.

    Returns:
      The advice.

    Raises:
      ValueError: if arguments contradict each other, or one is out of range.
    """
    check_word("optimizer", optimizer, ("sgd", "adam"))
    is_adam = optimizer == "adam"
    if is_adam and mechanism == "auto":
        mechanism = "identity"
    if model is not None:
        num_parameters = sum(math.prod(v.shape) for v in model.trainable_variables)
        loss = getattr(model, "loss", None) if loss is None else loss
    num_parameters = whole_number("num_parameters", num_parameters)
    num_examples = whole_number("num_examples", num_examples)
    check_budget(epsilon, delta, None, num_examples)
    epochs = whole_number("epochs", epochs)
    largest = num_examples
    if max_batch_size is not None:
        largest = min(largest, whole_number("max_batch_size", max_batch_size))
    clip, of_clip = learning_rates.clip_norm(loss)

    given: Any = dict(epsilon=epsilon, delta=delta, num_examples=num_examples)

    def setting(sampling: str, size: int) -> RunSetting | None:
        _LOG.info("comparing %s, batches of %d", sampling, size)
        use: Any = dict(sampling=sampling, batch_size=size, epochs=epochs, **given)
        forms = _closed_forms(mechanism, sampling)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                table = compare(forms, workload=_WORKLOAD, **use)
        except (ValueError, ArithmeticError):  # No mechanism can be used.
            return None
        row = min(table, key=lambda row: row.rmse)
        mean = row.batch_size or size
        noise = learning_rates.noise_in_models(row.rmse, mean, MOMENTUM)
        rate = learning_rates.per_clip_unit(noise, num_parameters, MOMENTUM, clip, loss)
        moved = learning_rates.progress(rate, row.num_steps)
        return RunSetting(sampling, row.mechanism, size, row.num_steps, moved)

    sizes, best = _batch_sizes(largest, num_examples, epochs), dict[str, RunSetting]()
    settings: list[RunSetting] = []
    names: Any = sampling if isinstance(sampling, (list, tuple)) else (sampling,)
    for name in names:
        check_word("sampling", name, _SAMPLINGS)
    for name in dict.fromkeys(names):
        for size in sizes:
            one = setting(name, size)
            if one is None:
                continue
            settings.append(one)
            best[name] = max(best.get(name, one), one, key=lambda one: one.progress)
            if one.progress < _HOPELESS * best[name].progress:
                break
    if not best:
        raise ValueError(
            f"No batch size is possible with {', '.join(names)} sampling, "
            f"{num_examples} examples and {epochs} epochs. Use another sampling or "
            f"mechanism, or fewer epochs."
        )
    chosen, of_sampling = _choose(best)
    if sampling is DEFAULT_SAMPLINGS:
        bins = setting("balls-in-bins", chosen.batch_size)
        if bins is not None and bins.progress > (1.0 + _WORTH) * chosen.progress:
            more = bins.progress / chosen.progress
            of_sampling += f" {phrase('advice', 'bins', more=more)}"
    reasons = {"batch size": phrase("advice", "batch size")}
    reasons |= {"sampling": of_sampling, "clip norm": of_clip}
    arguments: dict[str, Any] = {
        **{"mechanism": mechanism, "sampling": chosen.sampling, **given},
        **{"batch_size": chosen.batch_size, "epochs": epochs, "l2_norm_clip": clip},
        "workload": "prefix" if is_adam else _WORKLOAD,
    }
    with warnings.catch_warnings():
        # The call of `check_budget` above has already warned about the budget.
        warnings.filterwarnings("ignore", "(epsilon|delta) = ")
        plan = build.plan(**arguments)
        if plan.choice is not None:
            reasons["mechanism"] = plan.choice.reason
            calm = _calmest(plan.choice)
            if calm is not None:
                facts = dict(chosen=calm, least=plan.choice.best())
                reasons["mechanism"] = phrase("advice", "calm", **facts)
                arguments["mechanism"] = calm.mechanism
                plan = build.plan(**arguments)
    noise = learning_rates.noise_of(plan)
    share = learning_rates.expected_share(noise, num_parameters, plan.num_steps, clip)
    kind = "nothing" if share < _NOTHING else "little" if share < _LITTLE else "enough"
    about = phrase("advice", "about", share=share, spread=learning_rates.SPREAD)
    reasons["expected share"] = phrase("advice", kind, about=about)
    return Advice(
        **{**vars(chosen), "mechanism": registry.specification(plan.strategy)},
        plan=plan,
        epochs=epochs,
        optimizer_name="Adam" if is_adam else "SGD",
        optimizer_arguments=plan.optimizer_arguments(num_parameters, optimizer, loss),
        expected_share=share,
        settings=tuple(settings),
        reasons=tuple(reasons.items()),
        arguments=arguments,
    )


def _batch_sizes(largest: int, num_examples: int, epochs: int) -> list[int]:
    """Returns the batch sizes to compare, in decreasing order.

    They are `largest` and the smaller powers of two, except those that are too small to
    be useful or need too many steps.

    Raises:
      ValueError: if even the run with the largest batches has too many steps.
    """
    steps = epochs * -(-num_examples // largest)
    if steps > _LARGEST_RUN:
        raise ValueError(
            f"num_steps must be at most {_LARGEST_RUN:,}, but with {largest} examples "
            f"per batch, it would be {steps:,}. Use larger batches or fewer epochs."
        )
    least = max(_SMALLEST_BATCH, epochs * num_examples / _MOST_STEPS)
    powers = registry.powers_of_two(largest - 1)
    return [largest, *(size for size in reversed(powers) if size >= least)]


def _closed_forms(mechanism: str, sampling: str) -> list[str]:
    """Returns the closed-form mechanisms used to compare batch sizes and samplings.

    Optimized mechanisms would gain only fractions of a percent, too little to change
    the choice of batch size and sampling.
    """
    if isinstance(mechanism, str) and mechanism.strip().partition(":")[0] != "auto":
        family = registry.family_of(registry.parse(mechanism)[0])
        if not (family.is_optimized or family.needs_budget):
            return [mechanism]
    if NAMED[sampling].is_cyclic:
        return ["identity", "bsr:4", "bsr:16"]
    if NAMED[sampling].is_simulated:
        lambdas = ("lambda_cgd:0.5", "lambda_cgd:0.9", "lambda_cgd:0.98")
        return ["identity", *lambdas, "bifr:4:0.65"]
    others = () if NAMED[sampling].is_amplified else ("bisr:4", "bisr:16", "bisr:32")
    return ["identity", *others]


def _calmest(table: Comparison) -> Row | None:
    """Returns a row with a similar error to the best row, but less noise per step.

    Fresh noise matters because noise that later steps cancel still moves the weights at
    which gradients are computed. Of the rows whose error is at most `_AS_GOOD` times
    the error of the best row, this function returns the row with the least fresh noise.
    It returns None if this noise is not below `_CALMER` times the fresh noise of the
    best row.

    Only mechanisms with a banded inverse are compared. Their matrices have ones on the
    diagonal, so `noise_stddev` is the fresh noise of each step. If the mechanism of the
    best row has no banded inverse, or if the objective is not the mean error, the
    result is None.
    """
    best = table.best()
    inverse = [row for row in table if row.bands and row.regenerations_per_step]
    if best not in inverse or table.objective != "mean":
        return None
    good = [row for row in inverse if row.rmse <= _AS_GOOD * best.rmse]
    calm = min(good, key=lambda row: row.noise_stddev)
    return calm if calm.noise_stddev < _CALMER * best.noise_stddev else None


def _choose(best: dict[str, RunSetting]) -> tuple[RunSetting, str]:
    """Chooses one of the samplings' best settings.

    Args:
      best: maps the name of each sampling to its best setting.

    Returns:
      The chosen setting, and the reason for the choice of its sampling.
    """
    chosen, *others = best.values()
    for other in others:
        if other.progress > (1.0 + _WORTH) * chosen.progress:
            chosen = other
    said = [
        f"{name} has {100.0 * one.progress / chosen.progress:.0f}% of the progress"
        for name, one in best.items()
        if one is not chosen
    ]
    more = f" With its own best batch size, {'; '.join(said)}." if said else ""
    return chosen, f"It demands {NAMED[chosen.sampling].demands}.{more}"
