"""The update that the inner optimizer makes from noisy gradients.

Schedules, constraints and inner optimizers are the user's code. Their graph is followed
back to what was released (`clipping/proof/updates.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tf_bandmf.keras.clipping import (
    Same,
    refuse_data,
    update_is_released,
    update_runs_no_host_code,
)
from tf_bandmf.keras.compat.keras_objects import given_learning_rate
from tf_bandmf.keras.run.secrets import replica_id


class Update:
    """The inner optimizer's part of a run's steps.

    Args:
      inner: optimizer of Keras.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._traced: tuple[Any, Callable[..., None]] | None = None

    def apply(self, noisy: Sequence[tf.Tensor], variables: Sequence[Any]) -> None:
        """Lets the inner optimizer apply noisy gradients to their variables."""

        def update(*gradients: tf.Tensor) -> None:
            with self._alone(gradients, variables):
                self._inner.apply(list(gradients), list(variables))

        if not tf.executing_eagerly():
            update(*noisy)
            return
        # A custom loop between its graphs.
        key = [Same(part) for part in (given_learning_rate(self._inner), *variables)]
        if self._traced is None or self._traced[0] != key:
            self._traced = key, tf.function(update, autograph=False)
        self._traced[1](*noisy)

    def learning_rate(self) -> tf.Tensor:
        """The learning rate of the coming step, before the optimizer takes it."""
        with update_runs_no_host_code():
            rate = tf.convert_to_tensor(self._inner.learning_rate)
        refuse_data([rate], "learning rate")
        return tf.identity(rate)

    @contextlib.contextmanager
    def _alone(self, noisy: Any, variables: Sequence[Any]) -> Iterator[None]:
        """A context in which the inner optimizer alone may process noisy gradients."""
        changed = [*variables, *self._inner.variables]
        is_first = replica_id() == 0
        with update_is_released(noisy, changed, is_first), update_runs_no_host_code():
            yield
