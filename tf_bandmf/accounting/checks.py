"""Checks of budgets and noise."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def check_positive(name: str, value: Any) -> None:
    """Raises ValueError unless the value is a finite number > 0."""
    number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
    if not number or not (math.isfinite(value) and value > 0.0):
        raise ValueError(f"{name} must be finite and > 0, found {value!r}.")


def check_delta(delta: float) -> None:
    """Raises ValueError unless delta is in (0, 1)."""
    if not (math.isfinite(delta) and 0.0 < delta < 1.0):
        raise ValueError(f"delta must be in (0, 1), found {delta}.")
