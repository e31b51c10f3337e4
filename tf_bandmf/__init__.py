"""Differentially private training with correlated noise for TensorFlow.

    plan = tf_bandmf.plan("lambda_cgd", epsilon=4, delta=1e-5, num_examples=60_000,
                          batch_size=512, epochs=10)

`tf_bandmf.keras` trains Keras 3 models with such a plan. Import it by name; the rest of
the package works without Keras. Names are imported when they are used:
`import tf_bandmf` loads neither TensorFlow nor dp-accounting.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tf_bandmf._version import __version__

if TYPE_CHECKING:
    from tf_bandmf import (
        accounting,
        audit,
        matrices,
        participation,
        sampling,
        strategies,
        workloads,
    )
    from tf_bandmf.accounting.guarantee import Guarantee
    from tf_bandmf.analysis.sensitivity import Sensitivity
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
    from tf_bandmf.planning.advice import Advice, advise
    from tf_bandmf.planning.build import plan
    from tf_bandmf.planning.card import PrivacyCard
    from tf_bandmf.planning.compare import Comparison, compare
    from tf_bandmf.planning.composition import JointGuarantee, compose
    from tf_bandmf.planning.elsewhere import (
        AccountedEvent,
        ApproximateDP,
        ZeroConcentratedDP,
    )
    from tf_bandmf.planning.memory import bands_that_fit
    from tf_bandmf.planning.plan import Plan
    from tf_bandmf.planning.statement import PrivacyStatement
    from tf_bandmf.planning.tuning import TuningCost, tuning_cost
    from tf_bandmf.sampling import BatchSchedule
    from tf_bandmf.strategies import Strategy
    from tf_bandmf.workloads import Workload

__all__ = [
    "AccountedEvent",
    "Advice",
    "ApproximateDP",
    "BMinSepSampling",
    "BallsInBins",
    "BatchSchedule",
    "Comparison",
    "CyclicFixedSize",
    "CyclicPoisson",
    "FixedEpochOrder",
    "Guarantee",
    "JointGuarantee",
    "Ledger",
    "MinSep",
    "Participation",
    "Plan",
    "Poisson",
    "PrivacyCard",
    "PrivacyStatement",
    "Sensitivity",
    "Shuffled",
    "Strategy",
    "TuningCost",
    "Workload",
    "ZeroConcentratedDP",
    "__version__",
    "accounting",
    "advise",
    "audit",
    "bands_that_fit",
    "compare",
    "compose",
    "matrices",
    "participation",
    "plan",
    "sampling",
    "strategies",
    "tuning_cost",
    "workloads",
]

_MODULES = (
    "accounting",
    "audit",
    "matrices",
    "participation",
    "sampling",
    "strategies",
    "workloads",
)
# Where the other public names are defined.
_HOMES = {
    "Advice": "planning.advice",
    "BatchSchedule": "sampling",
    "Comparison": "planning.compare",
    "Guarantee": "accounting.guarantee",
    "Plan": "planning.plan",
    "PrivacyCard": "planning.card",
    "PrivacyStatement": "planning.statement",
    "Sensitivity": "analysis.sensitivity",
    "Strategy": "strategies",
    "TuningCost": "planning.tuning",
    "Workload": "workloads",
    "AccountedEvent": "planning.elsewhere",
    "ApproximateDP": "planning.elsewhere",
    "ZeroConcentratedDP": "planning.elsewhere",
    "JointGuarantee": "planning.composition",
    "Ledger": "ledger.book",
    "advise": "planning.advice",
    "tuning_cost": "planning.tuning",
    "bands_that_fit": "planning.memory",
    "compose": "planning.composition",
    "compare": "planning.compare",
    "plan": "planning.build",
    **dict.fromkeys(
        (
            "BMinSepSampling",
            "BallsInBins",
            "CyclicFixedSize",
            "CyclicPoisson",
            "FixedEpochOrder",
            "MinSep",
            "Participation",
            "Poisson",
            "Shuffled",
        ),
        "participation",
    ),
}


def __getattr__(name: str) -> Any:
    if name == "keras":  # no public name: one stack has none
        try:
            return importlib.import_module("tf_bandmf.keras")
        except ImportError as error:
            raise AttributeError(str(error)) from error
    if name in _MODULES:
        return importlib.import_module(f"tf_bandmf.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'tf_bandmf' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"tf_bandmf.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
