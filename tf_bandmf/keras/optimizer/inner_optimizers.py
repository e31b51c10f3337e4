"""Checks which optimizers may apply noisy gradients."""

from __future__ import annotations

from typing import Any

import keras

from tf_bandmf.keras.optimizer.wrapper import WrappedOptimizer


def checked(inner_optimizer: Any) -> keras.optimizers.Optimizer:
    """The inner optimizer of a `PrivateOptimizer`.

    Args:
      inner_optimizer: a Keras optimizer (instance, name or config).

    Raises:
      ValueError: if it is not an optimizer, is private itself, scales losses or
        accumulates gradients.
    """
    try:
        inner = keras.optimizers.get(inner_optimizer)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _unknown(inner_optimizer) from error
    if not isinstance(inner, keras.optimizers.Optimizer):
        raise _unknown(inner_optimizer)
    if isinstance(inner, (WrappedOptimizer, keras.optimizers.LossScaleOptimizer)):
        raise ValueError(
            f"inner_optimizer cannot be a {type(inner).__name__}: give the "
            f"optimizer inside of it."
        )
    check_accumulation(inner)
    if getattr(inner, "loss_scale_factor", None):
        raise ValueError(
            "inner_optimizer must not set loss_scale_factor, which has to be undone "
            "before gradients are clipped: give it to PrivateOptimizer."
        )
    return inner


def check_accumulation(inner: keras.optimizers.Optimizer) -> None:
    """Raises ValueError if an optimizer accumulates gradients; it may be set late."""
    if getattr(inner, "gradient_accumulation_steps", None):
        raise ValueError(
            "inner_optimizer must not set gradient_accumulation_steps: noise is "
            "drawn once for each step of the plan. For large batches give "
            "microbatch_size to make_private."
        )


def _unknown(inner_optimizer: Any) -> ValueError:
    return ValueError(
        f"inner_optimizer must be a Keras optimizer, its name or its config, found "
        f"{inner_optimizer!r}."
    )
