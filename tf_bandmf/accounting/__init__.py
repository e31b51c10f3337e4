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

# dp-accounting takes a second to import: only where it is used.
_HOMES = {
    "Accountant": "base",
    "Calibration": "guarantee",
    "Guarantee": "guarantee",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tf_bandmf.accounting' has no attribute {name!r}")
    module = importlib.import_module(f"tf_bandmf.accounting.{_HOMES[name]}")
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted(__all__)
