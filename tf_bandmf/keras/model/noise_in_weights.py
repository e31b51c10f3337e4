"""Warns before the first step if there is too much noise to learn anything.

The noise that a run leaves in a weight is known in advance: learning rate times RMSE,
divided by the batch size. Weights have the scale 1 / sqrt(fan-in), see
`planning.learning_rates`. No data are used.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import keras
import numpy as np

from tf_bandmf.keras.audit.gradient_samples import fan_in
from tf_bandmf.keras.compat.keras_objects import given_learning_rate
from tf_bandmf.keras.optimizer.private import PrivateOptimizer
from tf_bandmf.planning import learning_rates

# With 3 the models of `benchmarks/noise_in_weights.py` were at or near their best, with 10
# they were 4 to 39 points below it.
_MOST = 10.0
# Where the error of a strategy may take a while, nothing is said.
_QUICK_STEPS = 2048


def noise_in_weights(model: keras.Model) -> float | None:
    """Noise in a weight at the end of a run, in units of 1 / sqrt(fan-in).

    Args:
      model: private, built, compiled with a `PrivateOptimizer`.

    Returns:
      The ratio; None where it is not known: for other optimizers than SGD with a constant
      learning rate, or without kernels.
    """
    optimizer = model.optimizer
    if not isinstance(optimizer, PrivateOptimizer):
        return None
    inner, plan = optimizer.inner_optimizer, optimizer.plan
    inputs = fan_in(model)
    rate = given_learning_rate(inner)
    known = (
        type(inner) is keras.optimizers.SGD
        and not isinstance(rate, keras.optimizers.schedules.LearningRateSchedule)
        and inner.clipnorm is inner.clipvalue is inner.global_clipnorm is None
        and math.isclose(float(inner.momentum), plan.workload.momentum or 0.0)
        and plan.workload.learning_rates is None
        and not optimizer.clipping.scaling
    )
    if not known or inputs is None or plan.expected_batch_size is None:
        return None
    is_quick = plan.num_steps <= _QUICK_STEPS or (
        plan.strategy.matrix.toeplitz_column() is not None
    )
    if not is_quick:
        return None
    eta = float(np.array(keras.ops.convert_to_numpy(rate)))
    noise = eta * plan.rmse() * plan.l2_norm_clip / plan.expected_batch_size
    return noise * math.sqrt(inputs)


def warn_of_noise(model: Any) -> None:
    """Warns if a run that begins would drown its weights in noise."""
    if model.optimizer.steps_taken:
        return
    found = noise_in_weights(model)
    if found is None or found < _MOST:
        return
    best = learning_rates.WEIGHT_NOISE / found * float(model.optimizer.learning_rate)
    warnings.warn(
        f"The noise in a weight will be {found:.2g} times the scale on which weights "
        f"work, 1 / sqrt(fan-in): the model will learn less than it could, or nothing. "
        f"The best measured runs have 1 to 6. Try a learning rate of about {best:.2g}; "
        f"or larger batches, fewer weights, another mechanism, or a larger epsilon: "
        f"tf_bandmf.advise compares them.",
        stacklevel=3,
    )
