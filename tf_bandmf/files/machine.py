"""The amount of memory that processes on this machine can use."""

from __future__ import annotations

import contextlib
import os

# The files that contain the memory limit of a container, for cgroup v2 and v1.
_LIMITS = (
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
)


def memory_bytes() -> int:
    """Returns the maximum number of bytes of memory that a process may use."""
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _LIMITS:
        # The file may be missing, or may contain "max" instead of a number.
        with contextlib.suppress(OSError, ValueError), open(path) as file:
            sizes.append(int(file.read()))
    return min(size for size in sizes if size > 0)
