"""Types for secrets, whose `repr` does not show their content.

pytest, Sentry, rich and notebooks log errors together with the local variables of their
frames: secrets in these types do not get into such logs.
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
    """Hidden bytes; what is made from them, such as a slice, is not hidden."""


class HiddenDict(_Hidden, dict[str, Any]):
    """A hidden dictionary."""


class HiddenArray(_Hidden, np.ndarray):  # type: ignore[type-arg,unused-ignore]
    """A hidden array; make it by `array.view(HiddenArray)`. Its parts are hidden, too."""
