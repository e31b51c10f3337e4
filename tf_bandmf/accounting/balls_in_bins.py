"""Accounting of balls in bins by simulation, for every non-negative strategy.

Each example is assigned to one of `b` bins once, and takes part at the step of its bin in
every epoch (arXiv:2601.22334, section 5.1). See `bins_simulator` for the distributions.
"""

from __future__ import annotations

import math

import numpy as np

from tf_bandmf import matrices
from tf_bandmf.accounting.bins_simulator import BinsSimulator, gram_matrix
from tf_bandmf.accounting.guarantee import Simulation
from tf_bandmf.accounting.simulated_accountant import SimulatedAccountant

NAME = "balls in bins, Monte Carlo with importance sampling"
NUM_DRAWS = 50_000


class BallsInBinsAccountant(SimulatedAccountant):
    """Computes (epsilon, delta) of balls in bins for one strategy and number of bins.

    For the formal guarantee see `SimulatedAccountant`.

    Args:
      gram: G of `bins_simulator.gram_matrix`, shape [b, b].
      simulation: settings of the simulation.
    """

    def __init__(self, gram: np.ndarray, simulation: Simulation) -> None:
        norm = math.sqrt(float(gram.diagonal().max()))
        draws = simulation.num_draws or NUM_DRAWS
        simulator = BinsSimulator(gram, draws, simulation.seed)
        super().__init__(NAME, simulator, norm, simulation.confidence)

    @classmethod
    def of_strategy(
        cls, matrix: matrices.LowerTriangular, num_bins: int, simulation: Simulation
    ) -> BallsInBinsAccountant:
        """Returns the accountant of a strategy matrix `C`; errors: see `gram_matrix`."""
        return cls(gram_matrix(matrix, num_bins), simulation)
