"""Multithreaded operations on large vectors, in parts that fit into the CPU cache."""

from __future__ import annotations

import collections
import concurrent.futures
import functools
import itertools
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np

BLOCK = 1 << 15  # number of entries that NumPy processes at a time
_CHUNK = 1 << 20  # number of entries that a thread processes at a time
_THREADS = min(4, os.cpu_count() or 1)

Part = tuple[int, slice]  # index of an array, and slice of this array

T = TypeVar("T")
S = TypeVar("S")


def blocks(start: int, end: int, size: int = BLOCK) -> Iterator[slice]:
    """Splits [start, end) into consecutive slices of `size`; the last may be shorter."""
    for begin in range(start, end, size):
        yield slice(begin, min(begin + size, end))


def in_chunks(work: Callable[..., T], *groups: Sequence[np.ndarray]) -> list[T]:
    """Calls `work(chunk, ...)` for all chunks of arrays, in threads; keeps their order.

    The division into chunks does not depend on the number of threads. A thread processes
    several arrays together if they are smaller than a chunk. NumPy releases Python's global
    lock during its operations.

    Args:
      work: function whose arguments are one-dimensional chunks, one chunk per group;
        each chunk is a view of a contiguous array.
      *groups: sequences of arrays; arrays at the same index have the same size in all
        groups.
    """
    flat = [[np.reshape(array, -1) for array in arrays] for arrays in groups]
    parts = [
        (number, part)
        for number, vector in enumerate(flat[0])
        for part in blocks(0, vector.size, _CHUNK)
    ]

    def of_thread(some: list[Part]) -> list[T]:
        return [work(*(vectors[i][part] for vectors in flat)) for i, part in some]

    return list(itertools.chain(*ahead(of_thread, _together(parts))))


def ahead(work: Callable[[S], T], items: Iterable[S]) -> Generator[T, None, None]:
    """Yields `work(item)` for each item, in order; threads compute the next few results.

    The items must not depend on each other.
    """
    items = list(items)
    if len(items) < 2 or _THREADS < 2:
        yield from map(work, items)
        return
    begun: collections.deque[concurrent.futures.Future[T]] = collections.deque()
    try:
        for item in items:
            begun.append(_pool(_THREADS).submit(work, item))
            if len(begun) > _THREADS:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()
    finally:
        for one in begun:
            one.cancel()
        concurrent.futures.wait(begun)  # after an error, threads may still run


def _together(parts: list[Part]) -> Iterator[list[Part]]:
    """Groups consecutive parts into lists whose total size is at most one chunk."""
    some: list[Part] = []
    size = 0
    for number, part in parts:
        if some and size + part.stop - part.start > _CHUNK:
            yield some
            some, size = [], 0
        some.append((number, part))
        size += part.stop - part.start
    if some:
        yield some


@functools.cache
def _pool(threads: int) -> concurrent.futures.ThreadPoolExecutor:
    """Returns a thread pool, cached because starting threads takes time."""
    return concurrent.futures.ThreadPoolExecutor(threads, "tf-bandmf vectors")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # forks lack threads
