"""Learning rate, averaged weights and clip norm of a run, from the noise of its plan.

With s, the noise in the models per unit of clip norm (`noise_in_models`), d weights, and
k, how many times the clip norm is as large as usual gradients (`_excess`):

    rate * clip norm = c / (sqrt(s) * (1 + k s sqrt(d) / 12))       SGD, momentum 0.9

c is 0.08, and 0.05 for a squared error, whose curvature does not fall with the error:
there 0.16 destroys models that 0.05 trains best.

Two limits meet here. Where there is little noise, the curvature of the loss limits the
rate, and the best rates go with 1 / sqrt(s). Where the norm of the noise, s sqrt(d), is
large against that of a clipped gradient, noise limits it, and they go with
1 / (s^1.5 sqrt(d)). Gradients that are smaller than the clip norm meet this limit k times
earlier: the best rates for counts, at clip norm 10, are 0.25 of those for k = 1 at epsilon
= 1, and 0.5 at 8. The form and the constants were found on grids of rates of
convolutional networks (19, whose best rates differ by a factor of 200), of a linear model
and of adapters of a language model, in `benchmarks/utility/results`; regrets are those of
`benchmarks/advice/fit.py`. Tables, texts and photos: `benchmarks/advice/run.py`, and 20
tables of its README, on which 0.05 and the clip norm for two classes were chosen.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tf_bandmf.planning.texts import phrase

if TYPE_CHECKING:
    from tf_bandmf.planning.plan import Plan

MOMENTUM = 0.9
# Rate of SGD at s = 1 for few weights, divided by 1 - momentum, of which a squared error
# bears a part; s sqrt(d) at which noise begins to limit the rate.
_RATE = 0.8
_OF_SQUARES = 0.625
_NOISE = 12.0
# Norm of usual gradients, where losses are about 1: `benchmarks/advice`.
_USUAL_NORM = 1.7
# Of Adam, whatever the clip norm: `benchmarks/advice`.
RATE_OF_ADAM = 0.02
# Progress per sqrt(d) at which a model gains half of what it gains without privacy, and
# the standard deviation of the share around the curve on the tables of its README, which
# chose it: `benchmarks/advice`.
_HALF = 0.12
SPREAD = 0.14
# The moving average of the weights remembers this part of the steps.
_REMEMBERED = 0.1
# A Poisson loss predicts too few at clip norm 1: the clipped gradient of a skewed residual
# is zero near the median. Labels are divided by their usual size. `benchmarks/advice`.
_SQUARES = ("squarederror", "mse")
# Clip norms that are not the usual one, and the names of losses.
_CLIPS: dict[str, tuple[Any, ...]] = {
    "counts": (10.0, "poisson"),
    "two classes": (3.0, "binarycrossentropy"),
    "squares": (1.0, *_SQUARES),
}


def noise_in_models(rmse: float, batch_size: float, momentum: float) -> float:
    """Noise per coordinate of a model, for updates of unit size in one direction.

    Args:
      rmse: of the noisy models per coordinate and unit of clip norm, on sums of
        gradients; of the workload with `momentum`.
      batch_size: B, by which sums are divided.
      momentum: of SGD, in [0, 1): updates are 1 / (1 - momentum) times as large.

    Returns:
      s = (1 - momentum) rmse / B.
    """
    return (1.0 - momentum) * rmse / batch_size


def _excess(l2_norm_clip: float) -> float:
    """k: how many times the clip norm is as large as the norm of usual gradients."""
    return max(1.0, l2_norm_clip / _USUAL_NORM)


def per_clip_unit(
    noise: float,
    num_parameters: int,
    momentum: float,
    l2_norm_clip: float = 1.0,
    loss: Any = None,
) -> float:
    """Learning rate of SGD for gradients that are divided by the clip norm.

    Args:
      noise: s; see `noise_in_models`.
      num_parameters: d.
      momentum: of SGD, in [0, 1).
      l2_norm_clip: zeta, > 0.
      loss: Keras loss, or its name; None for classes.
    """
    limit = 1.0 + _excess(l2_norm_clip) * noise * math.sqrt(num_parameters) / _NOISE
    part = _OF_SQUARES if is_named(loss, *_SQUARES) else 1.0
    return (1.0 - momentum) * part * _RATE / (math.sqrt(noise) * limit)


def progress(rate: float, num_steps: int) -> float:
    """The way that weights can move in one direction, at a rate, in units of it.

    SGD with momentum beta is at its full rate after some 1 / (1 - beta) steps: a run of
    few steps is worth less than rate times steps.
    """
    missed = MOMENTUM * (1.0 - MOMENTUM**num_steps) / (1.0 - MOMENTUM)
    return rate * (num_steps - missed)


def rate_of(plan: Plan, num_parameters: int, loss: Any = None) -> float:
    """Learning rate of SGD for a plan, with the momentum of the plan's workload.

    Args:
      plan: of batches with an expected size, for a constant learning rate.
      num_parameters: d, trainable weights.
      loss: as for `per_clip_unit`.

    Raises:
      ValueError: if the rule says nothing of such a plan.
    """
    if plan.expected_batch_size is None or plan.workload.learning_rates is not None:
        raise ValueError(
            "The rule for learning rates needs the batch size of the plan, and is for a "
            "constant rate: this plan has none, or a workload with learning_rates=."
        )
    momentum = plan.workload.momentum or 0.0
    noise = noise_in_models(plan.rmse(), plan.expected_batch_size, momentum)
    clip = plan.l2_norm_clip
    return per_clip_unit(noise, num_parameters, momentum, clip, loss) / clip


def expected_share(
    noise: float, num_parameters: int, num_steps: int, l2_norm_clip: float = 1.0
) -> float:
    """Part of what a model gains without privacy that it gains at the advised rate.

    P / (P + 0.12 sqrt(k d)), where P is the progress at the rate for classes: fitted to
    the tasks of `benchmarks/advice`.

    Args:
      noise: s; see `noise_in_models`.
      num_parameters: d.
      num_steps: n.
      l2_norm_clip: zeta, > 0.

    Returns:
      The share, in (0, 1); measured ones have a standard deviation of `SPREAD` from it.
    """
    rate = per_clip_unit(noise, num_parameters, MOMENTUM, l2_norm_clip)
    moved, size = progress(rate, num_steps), num_parameters * _excess(l2_norm_clip)
    return moved / (moved + _HALF * math.sqrt(size))


def ema_momentum(num_steps: int) -> float:
    """Momentum of the exponential moving average of weights that a run releases.

    It remembers a tenth of the steps, 0.99 for 1000 of them. It is computed from what is
    released anyhow, so it costs no privacy (De et al., 2022, arXiv:2204.13650).

    Args:
      num_steps: n, of the run.

    Returns:
      The momentum, in [0, 1): `use_ema=True, ema_momentum=...` of Keras' optimizers.
    """
    return max(0.0, 1.0 - 1.0 / (_REMEMBERED * num_steps))


def is_named(loss: Any, *parts: str) -> bool:
    """Returns whether the name of a Keras loss has a part, in small letters without "_"."""
    text = f"{loss} {getattr(loss, 'name', '')} {type(loss).__name__}".lower()
    return any(part in text.replace("_", "") for part in parts)


def clip_norm(loss: Any) -> tuple[float, str]:
    """Clip norm for a loss, with the reason.

    For two classes, from clip norm 1 to 3 the AUC of six tables changes by -0.005 to
    0.025, by 0.007 on average.
    """
    for kind, (clip, *names) in _CLIPS.items():
        if is_named(loss, *names):
            return clip, phrase("clip norm", kind)
    return 1.0, phrase("clip norm", "usual")
