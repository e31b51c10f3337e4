"""Federated averaging with correlated noise on Flower (1.41, message API).

On the server: `PrivateFedAvg`, a strategy. On the devices: `private_client_app`, or
`ParticipationMod` for an app of your own. The rules that they keep are in modules that do
not depend on an engine.
"""

from __future__ import annotations

import importlib
from typing import Any

# Module of each public name. Devices import no TensorFlow.
_MODULES = {
    "ParticipationMod": "client",
    "private_client_app": "client",
    "PrivateFedAvg": "strategy",
}

__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
