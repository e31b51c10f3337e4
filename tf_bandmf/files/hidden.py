"""Types for secrets, whose `repr` does not show their content.

pytest, Sentry, rich and notebooks log the local variables of each stack frame with an
error. Secrets in these types do not appear in those logs.
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
    """Hidden bytes; derived values such as slices are not hidden."""


class HiddenDict(_Hidden, dict[str, Any]):
    """A hidden dictionary."""


class HiddenArray(_Hidden, np.ndarray):  # type: ignore[type-arg,unused-ignore]
    """A hidden array, made by `array.view(HiddenArray)`; its slices are hidden, too."""
