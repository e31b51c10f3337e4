"""Accounting of b-min-sep sampling by simulation, for banded strategies.

In b-min-sep sampling, any two participations of an example are at least b steps apart.
The accountant uses the method of Dong and Ganesh, arXiv:2602.09338. The module
`b_min_sep_passes` defines the distributions, and `b_min_sep_simulator` draws from them.
"""

from __future__ import annotations

import math

from tf_bandmf import matrices
from tf_bandmf.accounting.b_min_sep_passes import Passes
from tf_bandmf.accounting.b_min_sep_simulator import BMinSepSimulator
from tf_bandmf.accounting.cyclic_poisson import CyclicPoissonAccountant, check_bands
from tf_bandmf.accounting.simulated_accountant import SimulatedAccountant

NAME = "b-min-sep sampling, Monte Carlo with importance sampling"
# NUM_DRAWS is the default number of draws per direction of adjacency ("add" and
# "remove"). A draw consists of one random number per step. Therefore long runs use
# fewer draws, `_ENTRIES / num_steps`, but at least _LEAST_DRAWS.
NUM_DRAWS, _LEAST_DRAWS, _ENTRIES = 10_000, 2_000, 20_000_000
# _LARGEST_WORK is the maximum of `num_steps * (bands + _STEP)`; a simulation of this
# size takes about half a minute. _STEP is the fixed cost of a step, in units of the
# cost per band.
_LARGEST_WORK, _STEP = 1_900_000, 250


def check_size(num_steps: int, bands: int) -> None:
    """Raises ValueError if a simulation would take more than about half a minute."""
    most = _LARGEST_WORK // (bands + _STEP)
    if num_steps > most:
        raise ValueError(
            f"With b-min-sep sampling and {bands} bands, num_steps must be <= {most}, but "
            f"found {num_steps}. The accounting simulates every step. Use larger "
            f'batches, fewer epochs, or sampling="cyclic-poisson" (CyclicPoisson), whose '
            f"accounting needs no simulation."
        )


class BMinSepAccountant(SimulatedAccountant):
    """Computes (epsilon, delta) of one strategy under b-min-sep sampling.

    `SimulatedAccountant` describes what the simulation guarantees.

    Args:
      matrix: the strategy `C`.
      separation: the minimum number of steps between two participations.
      rate: the unconditional probability that an example takes part at a given step.
      confidence: the confidence with which a simulated bound holds, or None for an
        estimate.
      num_draws: number of draws per direction ("add" and "remove") for an estimate;
        None for the default.

    Raises:
      ValueError: if C has more than `separation` bands or a negative entry, or if a
        simulation would take too long.
    """

    def __init__(
        self,
        matrix: matrices.LowerTriangular,
        separation: int,
        rate: float,
        confidence: float | None = None,
        num_draws: int | None = None,
    ) -> None:
        check_size(matrix.num_rows, matrix.bands)
        check_bands(matrix, separation)
        if not matrix.is_nonnegative():
            raise ValueError(
                "B-min-sep sampling needs a strategy matrix C without negative entries. "
                "Use CyclicPoisson instead of BMinSep, or change the strategy."
            )
        self._passes = passes = Passes(matrix.as_rows(), separation, rate)
        fewer = max(_LEAST_DRAWS, _ENTRIES // matrix.num_rows)
        draws = num_draws or min(NUM_DRAWS, fewer)
        simulator = BMinSepSimulator(passes, draws, seed=0)
        norm = math.sqrt(passes.largest_squared_norm())
        super().__init__(NAME, simulator, norm, confidence)

    def first_noise(self, epsilon: float, delta: float) -> float:
        # The search for the noise starts at the geometric mean of the noise levels for
        # two other samplers: Poisson sampling from all examples at each step, and
        # cyclic Poisson sampling from b groups of examples in turn.
        passes, n, b = self._passes, self._passes.num_steps, self._passes.separation
        norm = math.sqrt(passes.squares.max())
        alone = CyclicPoissonAccountant(n, passes.rate, norm)
        turns = CyclicPoissonAccountant(-(-n // b), min(passes.rate * b, 1.0), norm)
        noises = (one.rough_noise_stddev(epsilon, delta) for one in (alone, turns))
        return math.sqrt(math.prod(noises))
