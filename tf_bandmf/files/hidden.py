"""Types for secrets, whose `repr` does not show their content.

With an error, pytest, Sentry, rich and notebooks also log the local variables of each
stack frame. Secrets of these types do not appear in such logs.
"""

from __future__ import annotations

from typing import Any

import numpy as np


class _Hidden:
    def __repr__(self) -> str:
        return "<secret>"

    __str__ = __repr__

    def __format__(self, specification: str) -> str:
        return "<secret>"


class HiddenBytes(_Hidden, bytes):
    """Bytes whose `repr` does not show them; slices are ordinary bytes."""


class HiddenDict(_Hidden, dict[str, Any]):
    """A dictionary whose `repr` does not show its content."""


class HiddenArray(_Hidden, np.ndarray):  # type: ignore[type-arg,unused-ignore]
    """An array from `array.view(HiddenArray)`; it and its slices do not show content."""
