"""Traces what decides a step before any record is seen, in eager code too.

Layers, losses, schedules, regularizers, constraints and inner optimizers are the user's
code. In a graph, this code has run before the first step and sees no values. Where
steps run eagerly (`run_eagerly=True`), their metrics are Python code, which sees values
and may keep them where nothing can follow them. So everything else is traced there,
too: once, before the metrics of the first step. From then on the traces run.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tensorflow as tf

from tf_bandmf.keras.clipping.tensors.errors import UnsupportedModelError

_STATE = threading.local()


class Same:
    """Equal to another one of the same object, which it keeps: no id is used twice."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self._value is other._value

    __hash__ = None  # type: ignore[assignment]


class Traces:
    """The traced parts of a run's steps, and whose Python code has seen its records.

    Args:
      steps_taken: gives how many steps the run has taken.
    """

    def __init__(self, steps_taken: Callable[[], int]) -> None:
        self._steps_taken = steps_taken
        self._known: list[tuple[Any, Any]] = []
        self._seen_by: tuple[str, ...] = ()

    def of(self, key: Any, make: Callable[[], Any]) -> Any:
        """A traced function, which is made when it is first asked for.

        Args:
          key: key of what it depends on; compared by `==`.
          make: traces it.

        Raises:
          UnsupportedModelError: see `refuse_late`.
        """
        for known, function in self._known:
            if known == key:
                return function
        self.refuse_late()
        function = make()
        self._known.append((key, function))
        return function

    def forget(self) -> None:
        """Forgets all traces, because the model is compiled again."""
        self._known.clear()

    def note(self, names: Iterable[str]) -> None:
        """Notes whose Python code sees the records of a step.

        Args:
          names: of classes and functions that neither Keras nor this package defines.
        """
        self._seen_by = tuple(dict.fromkeys((*self._seen_by, *names)))

    def refuse_late(self) -> None:
        """Raises UnsupportedModelError if what is kept in Python may enter a trace.

        This is so if the user's Python code has seen records of this run.
        """
        if not self._seen_by:
            return
        with tf.init_scope():
            if not self._steps_taken():
                return
        raise UnsupportedModelError(
            f"A step of this run would be traced anew, after {', '.join(self._seen_by)} "
            f"has seen training data in Python: what it has kept could be built into the "
            f"step, past clipping and noise. A step is traced for batches of another "
            f"shape, and after compile. Give all batches one shape (pad them), compile "
            f"once, use metrics of Keras, or write this one with operations of Keras and "
            f"train without run_eagerly."
        )


@contextlib.contextmanager
def keeping(traces: Traces) -> Iterator[None]:
    """Within it the passes of eager steps are those that were traced for this run."""
    before = current()
    _STATE.traces = traces
    try:
        yield
    finally:
        _STATE.traces = before


def current() -> Traces | None:
    """Where traced passes are kept, in this thread."""
    return getattr(_STATE, "traces", None)


def check_functions_are_traced() -> None:
    """Raises RuntimeError if TensorFlow runs all functions as Python code.

    Nothing could be analysed, then: neither what a step computes nor what it keeps.
    """
    if tf.config.functions_run_eagerly():
        raise RuntimeError(
            "tf.config.run_functions_eagerly(True) is set: what a private step computes "
            "must be traced to be analysed. Call tf.config.run_functions_eagerly(False). "
            "To debug metrics step by step compile with run_eagerly=True."
        )
