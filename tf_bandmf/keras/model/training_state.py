"""What belongs to the training of a private model, and to no file that Keras writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tf_bandmf.keras.compat.keras_objects import all_layers, compile_loss

if TYPE_CHECKING:
    from tf_bandmf.keras.resume.private_file import PrivateRun

_NAME = "_tf_bandmf_training"


class TrainingState:
    """Beside a private model: Keras tracks and saves nothing of it.

    Attributes:
      is_quiet: whether nothing is printed: `fit(verbose=0)`.
      run_file: of `begin_run`; checkpoints are announced to it.
      checked: the layers that were checked before training; or whether none need be.
      compares: whether gradients are compared with those of batches of one.
      train_function: what `make_train_function` made.
      may_run_alone: names of layers that may run on batches of one whatever that changes.
      gradient_function: of `private_gradients`, with what it was traced for.
      lazy_layers: those whose tables get their noise when rows are read.
      looked_up: which rows a batch looks up in them.
    """

    __slots__ = (
        "checked",
        "compares",
        "gradient_function",
        "is_quiet",
        "lazy_layers",
        "looked_up",
        "may_run_alone",
        "run_file",
        "train_function",
    )

    def __init__(self) -> None:
        self.is_quiet = False
        self.run_file: PrivateRun | None = None
        self.checked: tuple[Any, ...] | bool = False
        self.compares = True
        self.may_run_alone: frozenset[str] = frozenset()
        self.train_function: Any = None
        self.gradient_function: Any = None
        self.lazy_layers: list[Any] = []
        self.looked_up: Any = None


def state_of(model: Any) -> TrainingState:
    """That of a private model, which gets one when it is first asked for."""
    return model.__dict__.setdefault(_NAME, TrainingState())


def traced_once(model: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` as one graph, until model, optimizer or trainable weights are others."""
    now = (
        bool(model.jit_compile),
        [
            model.optimizer,
            compile_loss(model),
            *model.trainable_variables,
            *all_layers(model),
        ],
    )
    state = state_of(model)
    known = state.gradient_function
    if known is None or not _are_same(known[0], now):
        graph = tf.function(function, autograph=False, reduce_retracing=True)
        known = state.gradient_function = (now, graph)
    return known[1]


def _are_same(old: tuple[bool, list[Any]], new: tuple[bool, list[Any]]) -> bool:
    same = len(old[1]) == len(new[1]) and all(a is b for a, b in zip(old[1], new[1]))
    return same and old[0] == new[0]
