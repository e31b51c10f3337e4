"""How much memory this machine has."""

from __future__ import annotations

import os

# Limits of a container: version 2 of control groups, and version 1.
_LIMITS = (
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
)


def memory_bytes() -> int | None:
    """Bytes of memory that a process may use at most; None if that is not known."""
    found = []
    try:
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        pass  # not on Windows
    for path in _LIMITS:
        try:
            with open(path, encoding="ascii") as file:
                found.append(int(file.read()))
        except (OSError, ValueError):
            continue  # no such file, or "max"
    return min((value for value in found if value > 0), default=None)
