"""Warns before the first step of rates that noise undoes, and clip norms that bias counts.

The rate that `tf_bandmf.advise` would give follows from the plan and the number of
weights: `planning.learning_rates`. No data are used.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import keras
import numpy as np

from tf_bandmf.keras.compat.keras_objects import given_learning_rate
from tf_bandmf.keras.optimizer.private import PrivateOptimizer
from tf_bandmf.planning import learning_rates

# At twice the advised rate models of `benchmarks/utility` lose up to 13 points, at four
# times it most of what they could learn.
_MOST = 4.0
# Where the error of a strategy may take a while, nothing is said.
_QUICK_STEPS = 2048


def advised_rate(model: keras.Model) -> float | None:
    """Learning rate that `tf_bandmf.advise` gives for a model's plan and momentum.

    Args:
      model: private, built, compiled with a `PrivateOptimizer`.

    Returns:
      The rate; None where the rule does not apply: for other optimizers than SGD with a
      constant learning rate, or for a plan of another workload.
    """
    optimizer = model.optimizer
    if not isinstance(optimizer, PrivateOptimizer):
        return None
    inner, plan = optimizer.inner_optimizer, optimizer.plan
    rate = given_learning_rate(inner)
    applies = (
        type(inner) is keras.optimizers.SGD
        and not isinstance(rate, keras.optimizers.schedules.LearningRateSchedule)
        and inner.clipnorm is inner.clipvalue is inner.global_clipnorm is None
        and math.isclose(float(inner.momentum), plan.workload.momentum or 0.0)
        and plan.workload.learning_rates is None
        and not optimizer.clipping.scaling
    )
    size = sum(math.prod(one.shape) for one in model.trainable_variables)
    if not applies or not size or plan.expected_batch_size is None:
        return None
    is_quick = plan.num_steps <= _QUICK_STEPS or (
        plan.strategy.matrix.toeplitz_column() is not None
    )
    if not is_quick:
        return None
    return learning_rates.rate_of(plan, size)


def warn_of_settings(model: Any) -> None:
    """Warns of a learning rate and a clip norm with which a run that begins goes wrong."""
    if not model.optimizer.steps_taken:
        _warn_of_biased_counts(model)
        _warn_of_noise(model)


def _warn_of_biased_counts(model: Any) -> None:
    """Warns of a Poisson loss with a clip norm at which it predicts too few."""
    optimizer = model.optimizer
    losses = keras.tree.flatten(model.loss)
    if not any(learning_rates.is_loss_of_counts(one) for one in losses):
        return
    advised, _ = learning_rates.clip_norm("poisson")
    clip = optimizer.plan.l2_norm_clip
    is_automatic = optimizer.clipping.kind == "automatic"
    if clip >= advised / 2 and not is_automatic:
        return
    what = "With automatic clipping" if is_automatic else f"At the clip norm {clip:.3g}"
    warnings.warn(
        f"{what} a model with a Poisson loss predicts too few, at any epsilon: the "
        f"clipped gradient of a skewed residual is zero near the median, not the mean. "
        f"Divide the labels by their usual size and plan with l2_norm_clip={advised:g}; "
        f'tf_bandmf.advise(loss="poisson") does.',
        stacklevel=4,
    )


def _warn_of_noise(model: Any) -> None:
    """Warns if the learning rate is far above the advised one."""
    advised = advised_rate(model)
    if advised is None:
        return
    rate = float(np.array(keras.ops.convert_to_numpy(model.optimizer.learning_rate)))
    if rate < _MOST * advised:
        return
    warnings.warn(
        f"The learning rate {rate:.3g} is {rate / advised:.2g} times the {advised:.2g} "
        f"that tf_bandmf.advise would give for this plan and model: noise will undo what "
        f"the model learns. Use {advised:.2g}; or larger batches, fewer weights, another "
        f"mechanism, or a larger epsilon: tf_bandmf.advise compares them.",
        stacklevel=4,
    )
