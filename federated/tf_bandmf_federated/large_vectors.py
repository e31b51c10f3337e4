"""Large vectors, worked on in parts that stay in the cache, by a few threads."""

from __future__ import annotations

import concurrent.futures
import os
from collections.abc import Callable, Iterator
from typing import TypeVar

BLOCK = 1 << 15  # numbers that NumPy works on at a time
_CHUNK = 1 << 20  # numbers that a thread takes at a time
_THREADS = min(4, os.cpu_count() or 1)

T = TypeVar("T")


def blocks(start: int, end: int, size: int = BLOCK) -> Iterator[slice]:
    """The parts of `size` of [start, end), in their order."""
    for begin in range(start, end, size):
        yield slice(begin, min(begin + size, end))


def in_chunks(size: int, work: Callable[[int, int], T]) -> list[T]:
    """`work(start, end)` for the chunks of [0, size), by threads; results in order.

    Where chunks begin does not depend on the number of threads. NumPy lets other threads
    run while it works.
    """
    parts = list(blocks(0, size, _CHUNK))
    if len(parts) < 2:
        return [work(part.start, part.stop) for part in parts]
    with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(lambda part: work(part.start, part.stop), parts))
