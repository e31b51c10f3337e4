"""Accounting: from noise to (epsilon, delta) and back; one file per sampler.

Every accountant takes and gives `noise_stddev`, the standard deviation on the raw
strategy `C`. `Plan` asks the accountant of its participation.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tf_bandmf.accounting.base import Accountant
    from tf_bandmf.accounting.guarantee import Calibration, Guarantee

__all__ = ["Accountant", "Calibration", "Guarantee"]


def __getattr__(name: str) -> Any:
    # dp-accounting takes a second to import: only where it is used.
    if name not in __all__:
        raise AttributeError(f"module 'tf_bandmf.accounting' has no attribute {name!r}")
    home = "base" if name == "Accountant" else "guarantee"
    return getattr(importlib.import_module(f"tf_bandmf.accounting.{home}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
