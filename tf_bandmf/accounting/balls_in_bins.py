"""Accounting of balls in bins by simulation, for every non-negative strategy.

Each example is assigned to one of `b` bins once, and takes part at the step of its bin in
every epoch (arXiv:2601.22334, section 5.1). See `bins_simulator` for the distributions.
"""

from __future__ import annotations

import math

import numpy as np

from tf_bandmf.accounting.bins_simulator import BinsSimulator
from tf_bandmf.accounting.simulated_accountant import SimulatedAccountant

NAME = "balls in bins, Monte Carlo with importance sampling"
NUM_DRAWS = 50_000


class BallsInBinsAccountant(SimulatedAccountant):
    """Computes (epsilon, delta) of balls in bins for one strategy and number of bins.

    For the formal guarantee see `SimulatedAccountant`.

    Args:
      gram: G of `bins_simulator.gram_matrix`, shape [b, b].
      confidence: confidence of a bound, or None for an estimate.
      num_draws: number of draws per direction for an estimate.
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
