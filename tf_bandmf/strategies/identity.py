"""The identity strategy: independent noise at every step, DP-SGD."""

from __future__ import annotations

import numpy as np

from tf_bandmf import bands
from tf_bandmf.strategies.base import Strategy


def identity(num_steps: int) -> Strategy:
    """`C = I`: each step adds fresh noise (Abadi et al., 2016, arXiv:1607.00133)."""
    return Strategy("identity", bands.ToeplitzBanded(np.ones(1), num_steps))
