"""Accounting of balls-in-bins sampling by simulation, for non-negative strategies.

Before training, each example is assigned at random to one of `b` bins. An epoch has one
step per bin, and an example takes part in every epoch at the step of its bin
(arXiv:2601.22334, section 5.1). `bins_simulator` describes the distributions.
"""

from __future__ import annotations

import math

import numpy as np

from tf_bandmf.accounting.bins_simulator import BinsSimulator
from tf_bandmf.accounting.simulated_accountant import SimulatedAccountant

NAME = "balls in bins, Monte Carlo with importance sampling"
NUM_DRAWS = 50_000


class BallsInBinsAccountant(SimulatedAccountant):
    """Computes (epsilon, delta) of balls-in-bins sampling for one strategy.

    `SimulatedAccountant` describes what the simulation guarantees.

    Args:
      gram: the result of `bins_simulator.gram_matrix` for the strategy, shape [b, b].
      confidence: the confidence with which a simulated bound holds, or None for an
        estimate.
      num_draws: number of draws per direction ("add" and "remove") for an estimate.
      seed: seed of the draws, >= 0; equal seeds give equal results.
    """

    def __init__(
        self,
        gram: np.ndarray,
        confidence: float | None = None,
        num_draws: int = NUM_DRAWS,
        seed: int = 0,
    ) -> None:
        norm = math.sqrt(float(gram.diagonal().max()))
        simulator = BinsSimulator(gram, num_draws, seed)
        super().__init__(NAME, simulator, norm, confidence)
