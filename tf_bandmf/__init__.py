"""Differentially private training with correlated noise for TensorFlow.

    plan = tf_bandmf.plan("lambda_cgd", epsilon=4, delta=1e-5, num_examples=60_000,
                          batch_size=512, epochs=10)

`tf_bandmf.keras` trains Keras 3 models with such a plan. Import that module by name; the
rest of the package works without Keras. Names are imported when they are used, so
`import tf_bandmf` loads neither TensorFlow nor dp-accounting.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tf_bandmf._version import __version__

if TYPE_CHECKING:
    from tf_bandmf import (  # noqa: F401
        accounting,
        audit,
        matrices,
        participation,
        sampling,
        strategies,
        workloads,
    )
    from tf_bandmf.accounting.guarantee import Guarantee
    from tf_bandmf.ledger.book import Ledger
    from tf_bandmf.participation import (
        BallsInBins,
        BMinSepSampling,
        CyclicFixedSize,
        CyclicPoisson,
        FixedEpochOrder,
        MinSep,
        Participation,
        Poisson,
        Shuffled,
    )
    from tf_bandmf.planning.advice import advise
    from tf_bandmf.planning.build import plan, split
    from tf_bandmf.planning.compare import compare
    from tf_bandmf.planning.composition import Release, compose
    from tf_bandmf.planning.memory import bands_that_fit
    from tf_bandmf.planning.plan import Plan
    from tf_bandmf.planning.statement import PrivacyStatement
    from tf_bandmf.planning.tuning import tuning_cost
    from tf_bandmf.strategies import Strategy
    from tf_bandmf.workloads import Workload

__all__ = [
    "BMinSepSampling",
    "BallsInBins",
    "CyclicFixedSize",
    "CyclicPoisson",
    "FixedEpochOrder",
    "Guarantee",
    "Ledger",
    "MinSep",
    "Participation",
    "Plan",
    "Poisson",
    "PrivacyStatement",
    "Release",
    "Shuffled",
    "Strategy",
    "Workload",
    "__version__",
    "advise",
    "bands_that_fit",
    "compare",
    "compose",
    "plan",
    "split",
    "tuning_cost",
]

# The submodules that are loaded on first use.
_MODULES = (
    "accounting",
    "audit",
    "matrices",
    "participation",
    "sampling",
    "strategies",
    "workloads",
)
# The modules of the public names that are not defined in `participation`.
_HOMES = {
    "Guarantee": "accounting.guarantee",
    "Ledger": "ledger.book",
    "Plan": "planning.plan",
    "PrivacyStatement": "planning.statement",
    "Release": "planning.composition",
    "Strategy": "strategies",
    "Workload": "workloads",
    "advise": "planning.advice",
    "bands_that_fit": "planning.memory",
    "compare": "planning.compare",
    "compose": "planning.composition",
    "plan": "planning.build",
    "split": "planning.build",
    "tuning_cost": "planning.tuning",
}


def __getattr__(name: str) -> Any:
    if name == "keras":  # not in `__all__`: the federated stack lacks it
        try:
            return importlib.import_module("tf_bandmf.keras")
        except ImportError as error:
            raise AttributeError(str(error)) from error
    if name in _MODULES:
        return importlib.import_module(f"tf_bandmf.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'tf_bandmf' has no attribute {name!r}")
    home = _HOMES.get(name, "participation")
    value = getattr(importlib.import_module(f"tf_bandmf.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES])
