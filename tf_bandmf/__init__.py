"""Differentially private training with correlated noise for TensorFlow.

    plan = tf_bandmf.plan("lambda_cgd", epsilon=4, delta=1e-5, num_examples=60_000,
                          batch_size=512, epochs=10)

`tf_bandmf.keras` trains Keras 3 models with such a plan. Import `tf_bandmf.keras`
explicitly; the rest of the package works without Keras. Other public names are imported
on first use, so `import tf_bandmf` loads neither TensorFlow nor dp-accounting.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tf_bandmf._version import __version__ as __version__

if TYPE_CHECKING:
    from tf_bandmf import accounting as accounting
    from tf_bandmf import audit as audit
    from tf_bandmf import matrices as matrices
    from tf_bandmf import participation as participation
    from tf_bandmf import sampling as sampling
    from tf_bandmf import strategies as strategies
    from tf_bandmf import workloads as workloads
    from tf_bandmf.accounting.guarantee import Guarantee as Guarantee
    from tf_bandmf.ledger.book import Ledger as Ledger
    from tf_bandmf.participation import BallsInBins as BallsInBins
    from tf_bandmf.participation import BMinSepSampling as BMinSepSampling
    from tf_bandmf.participation import CyclicFixedSize as CyclicFixedSize
    from tf_bandmf.participation import CyclicPoisson as CyclicPoisson
    from tf_bandmf.participation import FixedEpochOrder as FixedEpochOrder
    from tf_bandmf.participation import MinSep as MinSep
    from tf_bandmf.participation import Participation as Participation
    from tf_bandmf.participation import Poisson as Poisson
    from tf_bandmf.participation import Shuffled as Shuffled
    from tf_bandmf.planning.advice import advise as advise
    from tf_bandmf.planning.build import plan as plan
    from tf_bandmf.planning.build import split as split
    from tf_bandmf.planning.compare import compare as compare
    from tf_bandmf.planning.composition import Release as Release
    from tf_bandmf.planning.composition import compose as compose
    from tf_bandmf.planning.memory import bands_that_fit as bands_that_fit
    from tf_bandmf.planning.plan import Plan as Plan
    from tf_bandmf.planning.statement import PrivacyStatement as PrivacyStatement
    from tf_bandmf.planning.tuning import tuning_cost as tuning_cost
    from tf_bandmf.strategies import Strategy as Strategy
    from tf_bandmf.workloads import Workload as Workload

# The lazily imported submodules.
_MODULES = (
    "accounting",
    "audit",
    "matrices",
    "participation",
    "sampling",
    "strategies",
    "workloads",
)
_PARTICIPATIONS = (
    *("BMinSepSampling", "BallsInBins", "CyclicFixedSize", "CyclicPoisson"),
    *("FixedEpochOrder", "MinSep", "Participation", "Poisson", "Shuffled"),
)
# Maps each public name to the submodule that defines it.
_HOMES = {
    **dict.fromkeys(_PARTICIPATIONS, "participation"),
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
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    # "keras" is not in `__all__` because installations for federated learning lack Keras.
    if name == "keras":
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
    return sorted([*__all__, *_MODULES])
