"""Differentially private training with correlated noise for TensorFlow.

    plan = tf_bandmf.plan("lambda_cgd", epsilon=4, delta=1e-5, num_examples=60_000,
                          batch_size=512, epochs=10)

`tf_bandmf.keras` trains Keras 3 models with it; it is imported by name, so that the rest
works without Keras.
"""

from tf_bandmf import choosing, participation, strategies, workloads
from tf_bandmf._version import __version__
from tf_bandmf.composition import JointGuarantee, compose
from tf_bandmf.participation import (
    BallsInBins,
    CyclicFixedSize,
    CyclicPoisson,
    FixedEpochOrder,
    MinSep,
    Participation,
    Poisson,
    Shuffled,
)
from tf_bandmf.plan import Plan
from tf_bandmf.planning import plan
from tf_bandmf.sensitivity import Sensitivity
from tf_bandmf.statement import PrivacyStatement
from tf_bandmf.strategies import Strategy
from tf_bandmf.workloads import Workload

__all__ = [
    "BallsInBins",
    "CyclicFixedSize",
    "CyclicPoisson",
    "FixedEpochOrder",
    "JointGuarantee",
    "MinSep",
    "Participation",
    "Plan",
    "Poisson",
    "PrivacyStatement",
    "Sensitivity",
    "Shuffled",
    "Strategy",
    "Workload",
    "__version__",
    "choosing",
    "compose",
    "participation",
    "plan",
    "strategies",
    "workloads",
]
