"""Which data a schedule is on: enough to see that two runs have examples in common.

Two data sets are compared by hashes of their examples' inputs, of a million examples the
smallest ones (bottom-k sketches; Broder, 1997): a permutation, other targets or weights, a
subset, a fold, another container or dtype of the same examples share many of them. Of
examples that are read as they are needed, those count that were read, and evenly spread
ones. Examples that were scaled or augmented before the schedule saw them are others to it,
and identical examples of two data sets (blank images) look like one example.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from tf_bandmf.sampling.record_identity import MOST_HASHES
from tf_bandmf.sampling.sources import ExampleSource

_SKETCHES: dict[int, Callable[[], np.ndarray]] = {}
_LOCK = threading.Lock()


def remember(schedule_id: int, examples: ExampleSource) -> None:
    """Keeps the sketch of a schedule's data, as long as the process lives."""
    if schedule_id in _SKETCHES:
        return
    recognized_by = examples.recognized_by()
    with _LOCK:
        _SKETCHES[schedule_id] = recognized_by


def sketch_of(schedule_id: int) -> np.ndarray:
    """Hashes, sorted, uint64; empty for a schedule of another process."""
    found = _SKETCHES.get(schedule_id)
    return np.empty(0, np.uint64) if found is None else np.unique(found())[:MOST_HASHES]


def share_examples(first: np.ndarray, second: np.ndarray) -> bool:
    """Whether the data of two sketches have examples in common, as far as they show it."""
    return bool(np.intersect1d(first, second, assume_unique=True).size)
