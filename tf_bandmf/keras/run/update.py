"""The update that the inner optimizer makes from noisy gradients: always a graph.

Schedules, constraints and inner optimizers are the user's code. Their graph is followed
back to what was released (`clipping/proof/updates.py`). Where steps run eagerly, it is
traced once, before Python code of the user has seen a record of the run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tf_bandmf.keras.clipping import (
    Same,
    Traces,
    refuse_data,
    update_is_released,
    update_runs_no_host_code,
)
from tf_bandmf.keras.compat.keras_objects import given_learning_rate
from tf_bandmf.keras.run.secrets import replica_id

# Makes the context in which an update is traced.
Guard = Callable[[], Any]


class Update:
    """The inner optimizer's part of a run's steps.

    Args:
      inner: optimizer of Keras.
      traces: traces of the run.
    """

    def __init__(self, inner: Any, traces: Traces) -> None:
        self._inner, self._traces = inner, traces

    def apply(
        self,
        noisy: Sequence[tf.Tensor],
        variables: Sequence[Any],
        guard: Guard = contextlib.nullcontext,
    ) -> None:
        """Lets the inner optimizer apply noisy gradients to their variables."""

        def update(*gradients: tf.Tensor) -> None:
            with self._alone(gradients, variables):
                self._inner.apply(list(gradients), list(variables))

        if not tf.executing_eagerly():
            update(*noisy)
            return
        specs = [tf.TensorSpec(gradient.shape, gradient.dtype) for gradient in noisy]
        key = ("update", [Same(v) for v in variables], self._settings(), specs)
        self._traces.of(key, lambda: _traced(update, specs, guard))(*noisy)

    def learning_rate(self) -> tf.Tensor:
        """The learning rate of the coming step, before the optimizer takes it."""

        def rate() -> tf.Tensor:
            with update_runs_no_host_code():
                found = tf.convert_to_tensor(self._inner.learning_rate)
            refuse_data([found], "learning rate")
            return tf.identity(found)

        if not tf.executing_eagerly():
            return rate()
        key = ("rate", self._settings())
        return self._traces.of(key, lambda: _traced(rate, ()))()

    def _settings(self) -> Same:
        return Same(given_learning_rate(self._inner))

    @contextlib.contextmanager
    def _alone(self, noisy: Any, variables: Sequence[Any]) -> Iterator[None]:
        """A context in which the inner optimizer alone may process noisy gradients."""
        changed = [*variables, *self._inner.variables]
        is_first = replica_id() == 0
        with update_is_released(noisy, changed, is_first), update_runs_no_host_code():
            yield


def _traced(
    function: Callable[..., Any],
    specs: Sequence[tf.TensorSpec],
    guard: Guard = contextlib.nullcontext,
) -> Any:
    def guarded(*given: tf.Tensor) -> Any:
        with guard():
            return function(*given)

    return tf.function(guarded, autograph=False).get_concrete_function(*specs)
