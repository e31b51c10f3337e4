"""Federated learning with correlated noise and enforced b-min-separation.

    plan = tf_bandmf.plan("banded", ..., sampling=tf_bandmf.MinSep(342, 6))
    process = tf_bandmf_federated.build_fed_avg(model_fn, plan, client_optimizer_fn=...)

Public names are imported on first use, because importing TensorFlow Federated is slow.

The modules form four layers, and each layer imports only the layers above it in this
list:

- device: `device_policy`, `device_store`, `clipping`
- ledger: `ledger`, `accounting`, `report`
- rounds: `rounds`, `cohorts`, and a server in NumPy (`averaging`, `exact_sum`,
  `round_noise`)
- engines: `flower/` for Flower, `tff/` for TensorFlow Federated
"""

from __future__ import annotations

import importlib
from typing import Any

from tf_bandmf_federated._version import __version__

# Maps each public name to the module that defines it.
_MODULES = {
    "build_fed_avg": "tff.learning",
    "PrivateLearningProcess": "tff.learning",
    "tag_dataset": "tff.tags",
    "CorrelatedNoiseFactory": "tff.aggregators",
    "SimulatedClients": "tff.simulation",
    "diurnal": "tff.availability",
    "train_model": "tff.training",
    "ProgramState": "rounds",
    "TrainingOutcome": "tff.training",
    "DevicePolicy": "device_policy",
    "DeviceStore": "device_store",
    "FederatedAveraging": "averaging",
    "ServerSGD": "server_optimizers",
    "ServerAdam": "server_optimizers",
    "ServerYogi": "server_optimizers",
    "Ledger": "ledger",
    "RoundRecord": "ledger",
    "MeasuredParticipation": "accounting",
    "MeasuredGuarantee": "accounting",
    "measure_participation": "accounting",
    "measured_guarantee": "accounting",
    "write_report": "report",
    "OperatorStatements": "report",
}

__all__ = ["__version__", *_MODULES]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
