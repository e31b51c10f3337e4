"""Checks whether a plan's workload matches its inner optimizer.

Only the error depends on it, never the guarantee: what an optimizer does with noisy
gradients is post-processing. But a strategy is optimal for its workload alone.
"""

from __future__ import annotations

import warnings

import keras
import numpy as np

from tf_bandmf.keras.compat.keras_objects import given_learning_rate
from tf_bandmf.planning.plan import Plan

# Differences that change errors by less than the choice of a strategy is good for.
_MOMENTUM_TOLERANCE = 1e-3
# Tolerance of the factor by which decay shrinks weights over the whole run.
_SHRINKAGE_TOLERANCE = 0.1
# Tolerance of learning rates relative to the largest one.
_RATE_TOLERANCE = 0.05
# A schedule is called for so many steps, spread over the run.
_RATE_SAMPLES = 64


def warn_of_mismatch(inner: keras.optimizers.Optimizer, plan: Plan) -> None:
    """Warns if SGD does not do what the plan's workload says.

    Keras' SGD with momentum beta, weight decay w and learning rate eta is the workload
    `momentum_sgd(momentum=beta, decay=1 - eta w)`, with a schedule as `learning_rates`
    (the velocity takes in each gradient times the rate of its own step). Nesterov's
    look-ahead has no banded inverse and is compared as momentum. Other optimizers
    (Adam) are not linear in the gradients: any workload is a heuristic for them, and
    there is no warning. Nor is there one if the noise is independent, which is the same
    for all workloads.
    """
    if not isinstance(inner, keras.optimizers.SGD):
        return
    if plan.strategy.family == "identity":
        return
    found = _differences(inner, plan)
    if not found:
        return
    does, says = (", ".join(texts) for texts in zip(*found))
    warnings.warn(
        f"The plan's noise is shaped for another optimizer: SGD has {does}; the plan's "
        f"workload {plan.workload.name!r} has {says}. The guarantee holds, but the error "
        f"is larger than it need be. Give tf_bandmf.plan "
        f"{_workload_of(inner, plan)}, or change the optimizer.",
        UserWarning,
        stacklevel=3,
    )


def _differences(inner: keras.optimizers.SGD, plan: Plan) -> list[tuple[str, str]]:
    """The differences: what the optimizer has, and what the workload has."""
    workload, n = plan.workload, plan.num_steps
    rates, wanted = _rates(inner, n)
    if not np.any(wanted):
        return []  # nothing moves, whatever the noise
    found = []
    # A workload of the caller's own is compared by its learning rates alone.
    if workload.momentum is not None and workload.decay is not None:
        momentum = float(inner.momentum)
        if abs(momentum - workload.momentum) > _MOMENTUM_TOLERANCE:
            found.append((f"momentum={momentum:g}", f"momentum={workload.momentum:g}"))
        decay = _decay(inner, wanted)
        shrinkage = [max(value, 0.0) ** n for value in (decay, workload.decay)]
        if abs(shrinkage[0] - shrinkage[1]) > _SHRINKAGE_TOLERANCE:
            found.append((f"decay={decay:g}", f"decay={workload.decay:g}"))
    planned = (
        np.ones(rates.size)
        if workload.learning_rates is None
        else np.asarray(workload.learning_rates)[rates]
    )
    relative = wanted / np.max(wanted)
    if np.max(np.abs(relative - planned / np.max(planned))) > _RATE_TOLERANCE:
        does = "a learning rate schedule"
        if np.ptp(wanted) == 0.0:
            does = "a constant learning rate"
        is_constant = workload.learning_rates is None
        says = "a constant learning rate" if is_constant else "learning rates"
        found.append((does, says))
    return found


def _decay(inner: keras.optimizers.SGD, rates: np.ndarray) -> float:
    """The factor by which a step shrinks the weights."""
    return 1.0 - float(np.mean(rates)) * float(inner.weight_decay or 0.0)


def _workload_of(inner: keras.optimizers.SGD, plan: Plan) -> str:
    """The argument of `plan` that describes the optimizer."""
    _, rates = _rates(inner, plan.num_steps)
    settings = {}
    if inner.momentum:
        settings["momentum"] = f"{float(inner.momentum):g}"
    if inner.weight_decay:
        settings["decay"] = f"{_decay(inner, rates):g}"
    if np.ptp(rates) > 0.0:
        given = [f"{name}={value}" for name, value in settings.items()]
        given.append("learning_rates=[float(schedule(i)) for i in range(num_steps)]")
        return (
            f"workload=tf_bandmf.workloads.momentum_sgd(num_steps, {', '.join(given)})"
        )
    name = ",".join(f"{name}={value}" for name, value in settings.items())
    return f'workload="sgd:{name}"' if name else 'workload="prefix"'


def _rates(
    inner: keras.optimizers.SGD, num_steps: int
) -> tuple[np.ndarray, np.ndarray]:
    """Steps, int64, and the learning rates of the optimizer at them."""
    steps = np.unique(np.linspace(0, num_steps - 1, _RATE_SAMPLES).astype(np.int64))
    schedule = given_learning_rate(inner)
    if isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule):
        rates = [float(schedule(int(step))) for step in steps]
    else:
        # A variable of several replicas is no number by itself.
        value = keras.ops.convert_to_numpy(inner.learning_rate)
        rates = [float(value)] * steps.size
    return steps, np.array(rates)
