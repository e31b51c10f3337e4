"""Large vectors, worked on in parts that stay in the cache, by a few threads."""

from __future__ import annotations

import collections
import concurrent.futures
import functools
import itertools
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np

BLOCK = 1 << 15  # numbers that NumPy works on at a time
_CHUNK = 1 << 20  # numbers that a thread takes at a time
_THREADS = min(4, os.cpu_count() or 1)

Part = tuple[int, slice]  # of an array, by its number

T = TypeVar("T")
S = TypeVar("S")


def blocks(start: int, end: int, size: int = BLOCK) -> Iterator[slice]:
    """The parts of `size` of [start, end), in their order."""
    for begin in range(start, end, size):
        yield slice(begin, min(begin + size, end))


def in_chunks(work: Callable[..., T], *groups: Sequence[np.ndarray]) -> list[T]:
    """`work(part, ...)` for all chunks of arrays, by threads; results in order.

    Where chunks begin does not depend on the number of threads. Arrays below a chunk's
    size are put together for a thread. NumPy lets other threads run while it works.

    Args:
      work: takes parts of one dimension, one of each group: views of contiguous arrays.
      *groups: arrays; those of one group have the sizes of those of another.
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
    """`work(item)` of each, in order, by a few threads: some are made before they are read.

    No item may need another.
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
        concurrent.futures.wait(begun)  # nothing goes on behind an error


def _together(parts: list[Part]) -> Iterator[list[Part]]:
    """Parts of about a chunk in all, in their order."""
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
    """Threads that are kept: starting them takes as long as a small chunk."""
    return concurrent.futures.ThreadPoolExecutor(threads, "tf-bandmf vectors")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # threads stay behind
