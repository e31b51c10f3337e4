"""Which data a schedule is on: enough to see that two runs have examples in common.

Two data sets are compared by the smallest 4,096 of the hashes of their examples' inputs
(bottom-k sketches; Broder, 1997): a permutation, other targets or weights, a subset or a
fold of the same examples share many of them. Examples that were scaled or augmented before
the schedule saw them are others to it, and identical examples of two data sets (blank
images) look like one example.
"""

from __future__ import annotations

import threading

import numpy as np

from tf_bandmf.sampling.sources import ExampleSource

_SIZE = 4096
_SKETCHES: dict[int, np.ndarray] = {}
_LOCK = threading.Lock()


def remember(schedule_id: int, examples: ExampleSource) -> None:
    """Keeps the sketch of a schedule's data, as long as the process lives."""
    if schedule_id in _SKETCHES:
        return
    hashes = np.unique(examples.example_hashes())[:_SIZE]
    with _LOCK:
        _SKETCHES[schedule_id] = hashes


def sketch_of(schedule_id: int) -> np.ndarray:
    """Hashes, sorted, uint64; empty for a schedule of another process."""
    return _SKETCHES.get(schedule_id, np.empty(0, np.uint64))


def share_examples(first: np.ndarray, second: np.ndarray) -> bool:
    """Whether the data of two sketches have examples in common, as far as they show it."""
    return bool(np.intersect1d(first, second, assume_unique=True).size)
