"""The identity strategy, with independent noise at every step: DP-SGD."""

from __future__ import annotations

import numpy as np

from tf_bandmf import matrices
from tf_bandmf.strategies.base import Strategy
from tf_bandmf.strategies.registry import Family, register


def identity(num_steps: int) -> Strategy:
    """Returns `C = I`, the strategy of DP-SGD (Abadi et al., arXiv:1607.00133)."""
    return Strategy("identity", matrices.ToeplitzBanded(np.ones(1), num_steps))


register(
    Family(
        "identity",
        lambda workload, participation: identity(workload.num_steps),
        aliases=("dp_sgd",),
        auto=0,
        banded="C",
    )
)
