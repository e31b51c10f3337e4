"""Types for secrets, whose `repr` does not show their content.

When pytest, Sentry, rich or a notebook logs an error, it may also log the local variables
of each stack frame. Secrets of these types do not appear in such logs.
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
    """Bytes whose `repr` does not show their content; slices are ordinary bytes."""


class HiddenDict(_Hidden, dict[str, Any]):
    """A dictionary whose `repr` does not show its content."""


class HiddenArray(_Hidden, np.ndarray):  # type: ignore[type-arg,unused-ignore]
    """An array that hides its content in `repr`; slices of the array do so, too.

    Convert an array with `array.view(HiddenArray)`.
    """
