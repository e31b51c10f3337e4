"""State of a private model's training that is in no file that Keras writes."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tf_bandmf.keras.resume.private_file import PrivateRun

_NAME = "_tf_bandmf_training"


@dataclasses.dataclass
class TrainingState:
    """State that belongs to a private model, but that Keras neither tracks nor saves.

    Attributes:
      is_quiet: whether nothing is printed: `fit(verbose=0)`.
      run_file: private file of `begin_run`; checkpoints are announced to it.
      may_run_alone: names of layers that may run on batches of one whatever that changes.
      train_function: what `make_train_function` made.
      programs: of the steps, with what they depend on.
      ready: those of the present `fit`, since its first step.
      lazy_layers: those whose tables get their noise when rows are read.
      plain_steps: steps of the plain optimizer that the model had before it was private.
      were_loaded: whether its weights were loaded or set.
      looked_up: which rows a batch looks up in them.
    """

    is_quiet: bool = False
    run_file: PrivateRun | None = None
    may_run_alone: frozenset[str] = frozenset()
    train_function: Any = None
    programs: tuple[Any, Any] | None = None
    ready: Any = None
    lazy_layers: list[Any] = dataclasses.field(default_factory=list)
    plain_steps: int = 0
    were_loaded: bool = False
    looked_up: Any = None


def state_of(model: Any) -> TrainingState:
    """The training state of a private model, made when it is first asked for."""
    return model.__dict__.setdefault(_NAME, TrainingState())
