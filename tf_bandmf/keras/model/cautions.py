"""Warns about settings, or refuses them, before `fit` spends the budget.

The warnings concern settings that waste the budget, and callbacks that act on exact
metrics of private data.

All checks here depend only on the plan and on the model's settings and shapes. They use
no value of a record, except the labels that `plan.batches` inspected.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_bandmf.keras.compat.keras_objects import (
    all_layers,
    given_learning_rate,
    maker_of,
)
from tf_bandmf.keras.model.callbacks import acting_on_exact_metrics, without_key
from tf_bandmf.planning import learning_rates
from tf_bandmf.sampling.identity import INPUTS, TARGETS

# At twice the advised learning rate, models of `benchmarks/utility` lose up to 13
# percentage points of accuracy; at four times the advised rate, they lose most of their
# accuracy.
_RATE_FACTOR = 4.0
# For longer plans, the learning rate is not checked: the advised rate depends on the
# strategy's error, which may take a long time to compute.
_QUICK_STEPS = 2048
# Differences from the plan's workload up to these sizes hardly change the error, and
# cause no warning. `_MOMENTUM` is for the momentum, `_SHRINKAGE` for the share of a
# weight that is left after the decay of all steps, `_RATE` for relative learning rates.
_MOMENTUM, _SHRINKAGE, _RATE = 1e-3, 0.1, 0.05
_SCALES = (
    keras.layers.Rescaling,
    keras.layers.Normalization,
    keras.layers.Embedding,
    keras.layers.Lambda,
)
_NO_PROBABILITIES = ("linear", "relu", "tanh", "elu", "gelu", "silu", "leaky_relu")
_OF_NUMBERS = keras.losses.sparse_categorical_crossentropy
_OF_CLASSES = (_OF_NUMBERS, keras.losses.categorical_crossentropy)
_OF_PROBABILITIES = (*_OF_CLASSES, keras.losses.binary_crossentropy)


def warn(model: Any, data: Any, labels: Any, callbacks: Any) -> None:
    """Gives all warnings about settings, before the first step of `fit`.

    Args:
      model: private and compiled.
      data: the data of `fit`; if it has `element_spec`, dtypes of inputs are checked.
      labels: class numbers of some examples, if they are known.
      callbacks: the argument of `fit`.
    """
    run = model.optimizer.run
    messages = list(acting_on_exact_metrics(callbacks))
    run.cautions.update(dict.fromkeys(messages))
    messages += without_key(callbacks) if run.file is None else ()
    if model.built and not model.optimizer.steps_taken:
        messages += _of_inputs(model, data)
        messages += _of_outputs(model, np.asarray(labels))
        messages += _of_sgd(model)
    for message in messages:
        warnings.warn(message, stacklevel=3)


def _of_inputs(model: keras.Model, data: Any) -> Iterator[str]:
    spec = getattr(data, "element_spec", None)
    inputs = spec.get(INPUTS) if isinstance(spec, dict) else None
    # With several replicas, each input is a composite that holds one spec per replica.
    leaves = tf.nest.flatten(inputs, expand_composites=True)
    are_bytes = any(getattr(leaf, "dtype", None) == tf.uint8 for leaf in leaves)
    if are_bytes and not any(isinstance(one, _SCALES) for one in all_layers(model)):
        yield (
            "Inputs are bytes (uint8) up to 255 and no layer scales them: gradients of "
            "such numbers are all clipped, and one weight gets as much noise as another. "
            "Divide by 255, in map= or by a Rescaling layer."
        )


def _of_outputs(model: keras.Model, labels: np.ndarray) -> Iterator[str]:
    layer, activation, size = _last_layer(model)
    if layer is None:
        return
    loss, from_logits = _loss_of(model)
    is_bounded = from_logits or activation not in _NO_PROBABILITIES
    if loss in _OF_PROBABILITIES and not is_bounded:
        yield (
            f"The model's last layer, {layer!r}, has no softmax or sigmoid, and "
            f"{loss.__name__} expects probabilities: outputs outside [0, 1] get no "
            f"gradient. Give the loss from_logits=True."
        )
    others = (labels < 0) | (labels >= size)
    if loss is _OF_NUMBERS and others.any():
        yield (
            f"{100.0 * others.mean():.3g}% of {others.size} inspected examples have a "
            f"label that is none of the classes 0 to {size - 1}: they teach the model "
            f"nothing, and the loss is NaN. Number classes from 0, with one output each."
        )


def _of_sgd(model: Any) -> Iterator[str]:
    """Yields warnings if SGD does not fit the workload or has a too high learning rate.

    The workload affects only the error, not the guarantee: an optimizer only
    post-processes noisy gradients. SGD with momentum beta, weight decay w and learning
    rate eta matches the workload `momentum_sgd(momentum=beta, decay=1 - eta w)`.
    Nesterov momentum is treated as ordinary momentum. Other optimizers are not linear
    in gradients, so they are not checked.
    """
    inner, plan = model.optimizer.inner_optimizer, model.optimizer.plan
    if type(inner) is not keras.optimizers.SGD:
        return
    workload, n = plan.workload, plan.num_steps
    steps = np.unique(np.linspace(0, n - 1, 64).astype(np.int64))
    rates, planned = _rates(inner, steps), workload.learning_rates
    if not np.any(rates):
        # All learning rates are 0, so no weight changes.
        return
    momentum, is_constant = float(inner.momentum), np.ptp(rates) == 0.0
    decay = 1.0 - float(np.mean(rates)) * float(inner.weight_decay or 0.0)
    differs: list[str] = []
    # If the caller defined the workload, its momentum and decay may be None.
    if workload.momentum is not None and workload.decay is not None:
        if abs(momentum - workload.momentum) > _MOMENTUM:
            differs.append(f"momentum={momentum:g} instead of {workload.momentum:g}")
        if abs(max(decay, 0.0) ** n - max(workload.decay, 0.0) ** n) > _SHRINKAGE:
            differs.append(f"decay={decay:g} instead of {workload.decay:g}")
    planned = np.ones(n) if planned is None else np.asarray(planned)
    relative = planned[steps] / np.max(planned)
    if np.max(np.abs(rates / np.max(rates) - relative)) > _RATE:
        kind = "a constant learning rate" if is_constant else "a learning rate schedule"
        differs.append(f"{kind}, unlike the workload's")
    if differs and plan.strategy.family != "identity":
        given = [f"momentum={momentum:g}"] if momentum else []
        given += [f"decay={decay:g}"] if inner.weight_decay else []
        ways = 'workload="' + (f'sgd:{",".join(given)}"' if given else 'prefix"')
        if not is_constant:
            given.append("learning_rates=[float(rate(i)) for i in range(n)]")
            ways = f"workload=tf_bandmf.workloads.momentum_sgd(n, {', '.join(given)})"
        yield (
            f"The plan's noise is shaped for another optimizer than SGD with "
            f"{', '.join(differs)}. The guarantee holds, but the error is larger than it "
            f"need be. Give tf_bandmf.plan {ways}, or change the optimizer."
        )
    size = sum(math.prod(one.shape) for one in model.trainable_variables)
    clips = inner.clipnorm, inner.clipvalue, inner.global_clipnorm
    is_quick = n <= _QUICK_STEPS or plan.strategy.matrix.toeplitz_column() is not None
    if differs or not (is_constant and size and is_quick) or any(clips):
        return
    if workload.learning_rates is not None or model.optimizer.clipping.scaling:
        return
    advised = learning_rates.rate_of(plan, size)
    if rates[0] >= _RATE_FACTOR * advised:
        yield (
            f"The learning rate {rates[0]:.3g} is {rates[0] / advised:.2g} times the "
            f"{advised:.2g} that tf_bandmf.advise would give for this plan and model: "
            f"noise will undo what the model learns. Use {advised:.2g}, or compare batch "
            f"sizes, mechanisms and budgets by tf_bandmf.advise."
        )


def _rates(inner: Any, steps: np.ndarray) -> np.ndarray:
    """Returns the optimizer's learning rates at these steps."""
    schedule = given_learning_rate(inner)
    if isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule):
        return np.array([float(schedule(int(step))) for step in steps])
    # `np.full` itself does not convert variables that are mirrored over replicas.
    return np.full(steps.size, keras.ops.convert_to_numpy(inner.learning_rate), float)


def refuse_outputs(model: keras.Model, ranges: Mapping[str, Any]) -> None:
    """Refuses a model whose last layer has too few outputs for the loss.

    Args:
      model: private, built, compiled.
      ranges: the ranges of inputs and targets that the caller declared in
        `Plan.batches`.

    Raises:
      ValueError: if all examples would have zero gradients, or the declared labels
        contain a class that has no output.
    """
    layer, activation, size = _last_layer(model)
    loss, _ = _loss_of(model)
    last = max(tf.nest.flatten(ranges.get(TARGETS, 0)))
    is_constant = size == 1 and (activation == "softmax" or loss in _OF_CLASSES)
    if is_constant or (loss is _OF_NUMBERS and 0 < size <= last):
        raise ValueError(
            f"The number of outputs of the last layer, {layer!r}, is {size}: too few for "
            f"the loss. Categorical cross-entropy needs one output per class (largest "
            f"declared label: {last or None}); softmax of one output is always 1. Use "
            f"Dense(num_classes, activation='softmax'); or, for two classes, Dense(1, "
            f"activation='sigmoid') and binary_crossentropy. Nothing was trained."
        )


def _last_layer(model: keras.Model) -> tuple[str | None, str, int]:
    """Returns name, activation and size of the layer that makes a model's only output.

    The name is None, and the size 0, if there is not exactly one output of known shape.
    """
    outputs = getattr(model, "outputs", None) or []
    if len(outputs) != 1 or outputs[0].shape[-1] is None:
        return None, "", 0
    layer = maker_of(outputs[0])
    activation = getattr(getattr(layer, "activation", None), "__name__", "")
    return layer.name, activation, int(outputs[0].shape[-1])


def _loss_of(model: keras.Model) -> tuple[Any, bool]:
    """Returns a model's loss function, and True if it is known to take logits."""
    loss = keras.losses.get(model.loss) if isinstance(model.loss, str) else model.loss
    function = getattr(loss, "fn", loss)
    if function is loss or function not in _OF_PROBABILITIES:
        return function, False
    return function, bool(loss.get_config().get("from_logits"))
