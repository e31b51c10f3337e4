"""Secrets that do not show themselves.

Errors are logged together with the local variables of their frames, by pytest, Sentry,
rich, notebooks: what is secret is kept in a type whose `repr` has nothing of it.
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
    """Bytes; what is made of them is not hidden any more."""


class HiddenDict(_Hidden, dict[str, Any]):
    """A dictionary."""


class HiddenArray(_Hidden, np.ndarray):  # type: ignore[type-arg,unused-ignore]
    """An array; make it by `array.view(HiddenArray)`. Its parts are hidden, too."""
