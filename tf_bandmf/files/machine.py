"""The memory that is available to processes on this machine."""

from __future__ import annotations

import contextlib
import os

# The files that contain a container's memory limit, for control groups version 2 and 1.
_LIMITS = (
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
)


def memory_bytes() -> int:
    """Returns the maximum number of bytes of memory that a process may use."""
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _LIMITS:
        # The file may be missing, or contain "max".
        with contextlib.suppress(OSError, ValueError), open(path) as file:
            sizes.append(int(file.read()))
    return min(size for size in sizes if size > 0)
