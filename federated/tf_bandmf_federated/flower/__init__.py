"""Federated averaging with correlated noise on Flower (1.41, message API).

The server uses the Flower strategy `PrivateFedAvg`. Devices use `private_client_app`,
or a custom app with `ParticipationMod`. The rules that the server and the devices
enforce are in modules that do not depend on Flower.
"""

from __future__ import annotations

import importlib
from typing import Any

# Maps each public name to the module that defines it. Imports are lazy, so devices do
# not load TensorFlow.
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
