"""Multithreaded operations on large vectors, in blocks that fit in the CPU cache."""

from __future__ import annotations

import concurrent.futures
import functools
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np

# NumPy processes this many entries at a time.
BLOCK = 1 << 15
# A thread processes this many entries at a time.
_CHUNK = 1 << 20
_THREADS = min(4, os.cpu_count() or 1)

T = TypeVar("T")
S = TypeVar("S")


def blocks(start: int, end: int, size: int = BLOCK) -> Iterator[slice]:
    """Splits [start, end) into consecutive slices of `size`; the last may be shorter."""
    for begin in range(start, end, size):
        yield slice(begin, min(begin + size, end))


def in_chunks(work: Callable[..., T], *groups: Sequence[np.ndarray]) -> list[T]:
    """Calls `work(chunk, ...)` for all chunks of the arrays, and returns the results.

    The calls run in threads, and the order of the results is unspecified. The division
    into chunks does not depend on the number of threads. Threads run in parallel,
    because NumPy releases the global interpreter lock.

    Args:
      work: function that takes one chunk from each group. A chunk is a one-dimensional
        view of a contiguous array.
      *groups: sequences of arrays. Arrays at the same index have the same size in all
        groups.
    """
    flat = [[np.reshape(array, -1) for array in arrays] for arrays in groups]
    parts = [
        (number, part)
        for number, vector in enumerate(flat[0])
        for part in blocks(0, vector.size, _CHUNK)
    ]
    size = sum(vector.size for vector in flat[0])
    # Vectors that fit in one chunk are processed by one thread.
    threads = min(_THREADS, -(-size // _CHUNK))

    def of_thread(first: int) -> list[T]:
        some = parts[first::threads]
        return [work(*(vectors[i][part] for vectors in flat)) for i, part in some]

    return list(itertools.chain.from_iterable(ahead(of_thread, range(threads))))


def ahead(work: Callable[[S], T], items: Sequence[S]) -> Iterator[T]:
    """Yields `work(item)` for each item, in order; threads compute results in advance.

    The calls must not depend on each other.
    """
    if len(items) < 2 or _THREADS < 2:
        yield from map(work, items)
        return
    begun: Iterator[T] = iter(())
    for some in blocks(0, len(items), _THREADS):
        before, begun = begun, _pool(_THREADS).map(work, items[some])
        yield from before
    yield from begun


@functools.cache
def _pool(threads: int) -> concurrent.futures.ThreadPoolExecutor:
    """Returns a thread pool, cached because starting threads takes time."""
    return concurrent.futures.ThreadPoolExecutor(threads, "tf-bandmf vectors")


if hasattr(os, "register_at_fork"):
    # A forked process has no copy of the pool's threads, so it needs a new pool.
    os.register_at_fork(after_in_child=_pool.cache_clear)
