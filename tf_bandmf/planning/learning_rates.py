"""Rules that choose learning rate, weight averaging and clip norm from a plan's noise.

Let s be the noise in the models divided by the clip norm (`noise_in_models`), d the
number of weights, and k >= 1 the ratio of the clip norm to the typical gradient norm
(`_excess`). Then the learning rate is

    rate * clip norm = c / (sqrt(s) * (1 + k s sqrt(d) / 12))       SGD, momentum 0.9

The constant c is 0.08. For a squared error, c is 0.05: the curvature of this loss does
not decrease with the error, so training diverges if the rate is too large. For some
models, c = 0.05 is best, and training diverges with c = 0.16.

The formula combines two limits. With little noise, the curvature of the loss limits the
rate, and the best rates are proportional to 1 / sqrt(s). If the norm of the noise, s
sqrt(d), is large compared to the norm of a clipped gradient, the noise limits the rate,
and the best rates are proportional to 1 / (s^1.5 sqrt(d)). The factor k is in the
formula because less noise is enough to limit the rate if typical gradients are smaller
than the clip norm. For example, models of counts with clip norm 10 have k = 6. Their
best rates are 0.25 times (epsilon 1) or 0.5 times (epsilon 8) the rates that the
formula gives for k = 1.

The formula and its constants were fitted to grids of learning rates for 19
convolutional networks (whose best rates differ by a factor of 200), a linear model and
adapters of a language model, in `benchmarks/utility/results`;
`benchmarks/advice/fit.py` computes how much worse the rule is than the best rates.
`benchmarks/advice/run.py` tests the rule on tabular data, texts and photos. The value c
= 0.05 and the clip norm for binary classification were chosen on the 20 tabular data
sets in `benchmarks/README.md`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tf_bandmf.planning.texts import phrase

if TYPE_CHECKING:
    from tf_bandmf.planning.plan import Plan

MOMENTUM = 0.9
# Let s be the standard deviation of the noise in each of a model's d weights. If d is
# small, the SGD learning rate is `_RATE * (1 - momentum) / sqrt(s)`, multiplied by
# _OF_SQUARES for squared-error losses. If s sqrt(d) is above _NOISE, the rate is lower.
_RATE = 0.8
_OF_SQUARES = 0.625
_NOISE = 12.0
# The typical norm of a gradient if losses are about 1; see `benchmarks/advice`.
_USUAL_NORM = 1.7
# The learning rate of Adam, for every clip norm; see `benchmarks/advice`.
RATE_OF_ADAM = 0.02
# If the progress is _HALF times sqrt(k d), with k and d as in the docstring above,
# training improves a model half as much as without privacy. SPREAD is the standard
# deviation of the differences between measured and expected shares; see
# `expected_share`. Both constants are from the tables in `benchmarks/README.md`.
_HALF = 0.12
SPREAD = 0.14
# The moving average of the weights spans this fraction of the steps.
_REMEMBERED = 0.1
_SQUARES = ("squarederror", "mse")
# Maps a kind of loss to its clip norm, followed by parts of the names of such losses.
# Counts need a large clip norm: with a Poisson loss and clip norm 1, models predict
# counts that are too small. The residuals are skewed, so the mean clipped gradient
# vanishes if a model predicts nearly the median count instead of the mean count. The
# clip norm for counts assumes labels that are divided by their typical size. See
# `benchmarks/advice`.
_CLIPS: dict[str, tuple[Any, ...]] = {
    "counts": (10.0, "poisson"),
    "two classes": (3.0, "binarycrossentropy"),
    "squares": (1.0, *_SQUARES),
}


def noise_in_models(rmse: float, batch_size: float, momentum: float) -> float:
    """Returns s, the noise per coordinate of a model relative to an update of norm 1.

    Args:
      rmse: RMSE per coordinate of the noisy models at clip norm 1, if gradients are
        summed (not averaged) and the workload has this `momentum`.
      batch_size: B, by which sums of gradients are divided.
      momentum: momentum of SGD, in [0, 1); it makes updates 1 / (1 - momentum) times as
        large.

    Returns:
      s = (1 - momentum) rmse / B.
    """
    return (1.0 - momentum) * rmse / batch_size


def noise_of(plan: Plan) -> float:
    """Returns s, the noise per coordinate of a model relative to an update of norm 1.

    Args:
      plan: a plan with an expected batch size.
    """
    size, momentum = plan.expected_batch_size or 0.0, plan.workload.momentum or 0.0
    return noise_in_models(plan.rmse(), size, momentum)


def _excess(l2_norm_clip: float) -> float:
    """Returns k >= 1, the ratio of the clip norm to the typical gradient norm."""
    return max(1.0, l2_norm_clip / _USUAL_NORM)


def per_clip_unit(
    noise: float,
    num_parameters: int,
    momentum: float,
    l2_norm_clip: float = 1.0,
    loss: Any = None,
) -> float:
    """Returns the learning rate of SGD for gradients that are divided by the clip norm.

    Args:
      noise: s, the result of `noise_in_models`.
      num_parameters: d, the number of trainable weights.
      momentum: momentum of SGD, in [0, 1).
      l2_norm_clip: zeta, > 0.
      loss: Keras loss, or its name; None for classification.
    """
    limit = 1.0 + _excess(l2_norm_clip) * noise * math.sqrt(num_parameters) / _NOISE
    part = _OF_SQUARES if is_named(loss, *_SQUARES) else 1.0
    return (1.0 - momentum) * part * _RATE / (math.sqrt(noise) * limit)


def progress(rate: float, num_steps: int) -> float:
    """Returns how far the weights can move in a run of SGD with momentum 0.9.

    The steps reach their full length only after about 10 steps, so the result is less
    than `rate * num_steps`.

    Args:
      rate: the learning rate for gradients that are divided by the clip norm.
      num_steps: n, the number of steps of the run.
    """
    missed = MOMENTUM * (1.0 - MOMENTUM**num_steps) / (1.0 - MOMENTUM)
    return rate * (num_steps - missed)


def rate_of(plan: Plan, num_parameters: int, loss: Any = None) -> float:
    """Returns the learning rate of SGD for a plan, with the momentum of its workload.

    Args:
      plan: a plan with an expected batch size and a constant learning rate.
      num_parameters: d, the number of trainable weights.
      loss: Keras loss, or its name; None for classification.

    Raises:
      ValueError: if the plan has no expected batch size, or has a learning-rate
        schedule.
    """
    if plan.expected_batch_size is None or plan.workload.learning_rates is not None:
        raise ValueError(
            f"The plan needs a batch size (found {plan.expected_batch_size}) and a "
            f"workload without learning_rates. Or choose the learning rate yourself."
        )
    momentum, clip = plan.workload.momentum or 0.0, plan.l2_norm_clip
    return per_clip_unit(noise_of(plan), num_parameters, momentum, clip, loss) / clip


def expected_share(
    noise: float, num_parameters: int, num_steps: int, l2_norm_clip: float = 1.0
) -> float:
    """Returns a model's expected improvement, relative to training without privacy.

    The share is P / (P + 0.12 sqrt(k d)), where P is the `progress` with the
    recommended learning rate for classification, and k >= 1 is the ratio of the clip
    norm to the typical gradient norm. The formula was fitted to the tasks of
    `benchmarks/advice`.

    Args:
      noise: s, the result of `noise_in_models`.
      num_parameters: d, the number of trainable weights.
      num_steps: n, the number of steps of the run.
      l2_norm_clip: zeta, > 0.

    Returns:
      The share, in (0, 1); measured shares differ from it with a standard deviation of
      `SPREAD`.
    """
    rate = per_clip_unit(noise, num_parameters, MOMENTUM, l2_norm_clip)
    moved, size = progress(rate, num_steps), num_parameters * _excess(l2_norm_clip)
    return moved / (moved + _HALF * math.sqrt(size))


def ema_momentum(num_steps: int) -> float:
    """Returns the momentum for the moving average of the weights in a run.

    The average spans about a tenth of the steps: the momentum is 0.99 for 1000 steps.
    The average is computed from the private models of the steps, so it costs no
    additional privacy (De et al., 2022, arXiv:2204.13650).

    Args:
      num_steps: n, the number of steps of the run.

    Returns:
      The momentum, in [0, 1), for the arguments `use_ema=True, ema_momentum=...` of
      Keras' optimizers.
    """
    return max(0.0, 1.0 - 1.0 / (_REMEMBERED * num_steps))


def is_named(loss: Any, *parts: str) -> bool:
    """Returns True if a loss's name, ignoring case and "_", contains one of `parts`."""
    text = f"{loss} {getattr(loss, 'name', '')} {type(loss).__name__}".lower()
    return any(part in text.replace("_", "") for part in parts)


def clip_norm(loss: Any) -> tuple[float, str]:
    """Returns the recommended clip norm for a loss, and the reason for it.

    For binary classification, a clip norm of 3 instead of 1 changes the AUC on six
    tabular data sets by -0.005 to 0.025, and by 0.007 on average.
    """
    for kind, (clip, *names) in _CLIPS.items():
        if is_named(loss, *names):
            return clip, phrase("clip norm", kind)
    return 1.0, phrase("clip norm", "usual")
