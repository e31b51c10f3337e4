"""Which data a schedule is on: enough to see that two runs have examples in common.

Two data sets are compared by hashes of their examples' inputs, of a million examples the
smallest ones (bottom-k sketches; Broder, 1997): a permutation, other targets or weights, a
subset, a fold, another container or dtype of the same examples share many of them. Of
examples that are read as they are needed, those count that were read, and evenly spread
ones. Examples that were scaled or augmented before the schedule saw them are others to it.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

import numpy as np

from tf_bandmf.sampling.record_identity import MOST_HASHES, Records
from tf_bandmf.sampling.sources import ExampleSource

# The share of examples in common that goes unnoticed.
_FEW = 0.01
_RECORDS: dict[int, Callable[[], Records]] = {}
_REMARKS: dict[int, tuple[str, ...]] = {}
_LOCK = threading.Lock()


def remember(schedule_id: int, examples: ExampleSource) -> None:
    """Keeps what is known of a schedule's data, as long as the process lives."""
    # The same examples may also have come from elsewhere.
    said = dict.fromkeys((*remarks_of(schedule_id), *examples.remarks))
    _REMARKS[schedule_id] = tuple(said)
    if schedule_id in _RECORDS:
        return
    recognized_by = examples.recognized_by()
    with _LOCK:
        _RECORDS[schedule_id] = recognized_by


def remarks_of(schedule_id: int) -> tuple[str, ...]:
    """What a statement must say of the data; empty for a schedule of another process."""
    return _REMARKS.get(schedule_id, ())


def records_of(schedule_id: int) -> Records:
    """The records of a schedule; none for one of another process."""
    found = _RECORDS.get(schedule_id)
    return Records.of(np.empty(0, np.uint64)) if found is None else found()


def share_examples(first: Records, second: Records) -> bool:
    """Whether two data sets have examples in common, as far as they show it.

    Where examples have few values, different people have equal ones: those count that
    come once in both data sets, and only more of them than chance explains. Of n of the
    same kind of examples, `n / N` times those in pairs among N come so at most, on
    average (Good, 1953).
    """
    ends = [r.hashes[-1] for r in (first, second) if len(r.hashes) == MOST_HASHES]
    if ends:
        first, second = first.up_to(min(ends)), second.up_to(min(ends))
    if not len(first.hashes) or not len(second.hashes):
        return False
    if all(map(np.array_equal, first, second)):
        return True
    once = [found.hashes[found.counts == 1] for found in (first, second)]
    common = np.intersect1d(once[0], once[1], assume_unique=True).size
    small, large = sorted((first.counts, second.counts), key=np.sum)
    chance = 2.0 * (large == 2).sum() * small.sum() / large.sum()
    few = _FEW * min(map(len, once)) + 3.0 * math.sqrt(1.0 + chance)
    return bool(common > chance + few)
