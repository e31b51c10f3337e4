"""Large vectors, worked on in parts that stay in the cache, by a few threads."""

from __future__ import annotations

import collections
import concurrent.futures
import functools
import itertools
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import TypeVar

BLOCK = 1 << 15  # numbers that NumPy works on at a time
_CHUNK = 1 << 20  # numbers that a thread takes at a time
_THREADS = min(4, os.cpu_count() or 1)

T = TypeVar("T")
S = TypeVar("S")


def blocks(start: int, end: int, size: int = BLOCK) -> Iterator[slice]:
    """The parts of `size` of [start, end), in their order."""
    for begin in range(start, end, size):
        yield slice(begin, min(begin + size, end))


def in_chunks(
    sizes: Sequence[int], work: Callable[[int, int, int], T]
) -> list[list[T]]:
    """`work(i, start, end)` for the chunks of [0, sizes[i]), by threads; results in order.

    Where chunks begin does not depend on the number of threads. Vectors below a chunk's
    size are put together for a thread. NumPy lets other threads run while it works.
    """
    parts = [
        (number, part.start, part.stop)
        for number, size in enumerate(sizes)
        for part in blocks(0, size, _CHUNK)
    ]

    def of_thread(some: list[tuple[int, int, int]]) -> list[T]:
        return [work(*part) for part in some]

    found = itertools.chain.from_iterable(in_threads(of_thread, _together(parts)))
    return [list(itertools.islice(found, -(-size // _CHUNK))) for size in sizes]


def in_threads(work: Callable[[S], T], items: Iterable[S]) -> list[T]:
    """`work(item)` of each, by a few threads; results in order. No item needs another."""
    return list(ahead(work, items))


def ahead(work: Callable[[S], T], items: Iterable[S]) -> Generator[T, None, None]:
    """As `in_threads`, one after the other: a few results are made before they are read."""
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


def _together(
    parts: list[tuple[int, int, int]],
) -> Iterator[list[tuple[int, int, int]]]:
    """Parts of about a chunk in all, in their order."""
    some: list[tuple[int, int, int]] = []
    size = 0
    for part in parts:
        _, start, end = part
        if some and size + end - start > _CHUNK:
            yield some
            some, size = [], 0
        some.append(part)
        size += end - start
    if some:
        yield some


@functools.cache
def _pool(threads: int) -> concurrent.futures.ThreadPoolExecutor:
    """Threads that are kept: starting them takes as long as a small chunk."""
    return concurrent.futures.ThreadPoolExecutor(threads, "tf-bandmf vectors")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # threads stay behind
