"""BLT strategies that are optimized for amplification by balls-in-bins sampling.

Other families minimize the error at sensitivity 1, or at column norm 1. With
amplification by balls-in-bins sampling, however, the noise that a privacy budget needs
depends on more than a norm of `C`, and the best strategies for epsilon = 1 and
epsilon = 8 differ. Therefore this family minimizes the product of the error and the
noise that the budget needs. Choquette-Choo, Ganesh, Haque, Steinke and Thakurta
(arXiv:2410.06266) published such an optimization for banded Toeplitz `C`. For banded
inverses, arXiv:2505.12128, section 6, mentions this optimization as an open problem.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import numpy as np

from tf_bandmf import matrices
from tf_bandmf.accounting.checks import check_delta, check_positive
from tf_bandmf.analysis import error
from tf_bandmf.participation import BallsInBins, Participation
from tf_bandmf.strategies import buffered
from tf_bandmf.strategies.base import Strategy
from tf_bandmf.strategies.registry import Family, Option, register
from tf_bandmf.workloads import Workload

if TYPE_CHECKING:
    from tf_bandmf.accounting.simulator import Proposal

_LARGEST_BINS = 2_048
# The maximum absolute value of a logit, the variable of the search. Up to this value,
# the decays of a BLT differ from each other and from 1 even in float32.
_LARGEST_LOGIT = 14.0
# The number of simulated draws per direction of adjacency in the search.
_DRAWS = 1_500
# The maximum number of rounds, the maximum number of iterations in a round, and the
# maximum change of a logit in a round. The change is limited because a round uses
# importance sampling, which is precise only for strategies near the round's first one.
_MOST_ROUNDS, _ITERATIONS, _REACH = 8, 4, 1.0
# _DIFFERENCE is the step of finite differences in a logit. A round continues after an
# iteration that decreased the objective by at least the fraction _PRECISION. The search
# continues after a round that decreased it by at least the fraction _LEAST_DECREASE.
_DIFFERENCE, _PRECISION, _LEAST_DECREASE = 0.02, 2e-4, 1e-3


def optimized_amplified(
    workload: Workload,
    participation: Participation,
    num_buffers: int = buffered.DEFAULT_BUFFERS,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    objective: str = "mean",
) -> Strategy:
    """Returns the BLT with the smallest product of error and noise for a budget.

    For `BallsInBins`, a simulation computes the noise that the budget needs, for both
    directions of adjacency. The search starts from the result of `blt`. L-BFGS with
    finite differences optimizes the decays of the buffers, in several rounds. Each
    round simulates the noise from other draws.

    For a participation without amplification by sampling, the noise is proportional to
    the sensitivity at every budget, so this function returns the result of `blt`. For
    cyclic sampling, use `optimized_toeplitz` instead, because the noise is proportional
    to the column norm (arXiv:2306.08153, Theorem 4).

    Args:
      workload: the workload. A learning-rate schedule is taken into account only for
        `BallsInBins`.
      participation: `BallsInBins`, which determines the bins, or another participation,
        which determines the min separation and the maximum number of participations.
      num_buffers: maximum number of model-sized vectors that the noise generator may
        store, from 1 to 10. The result may need fewer.
      epsilon: epsilon of the budget, > 0; required for `BallsInBins`.
      delta: delta of the budget, in (0, 1); required for `BallsInBins`.
      objective: "mean" for the RMSE, "max" for the MaxSE.

    Returns:
      The strategy, with convergence information in its diagnostics. The search and a
      plan simulate the noise from different draws. Therefore, in a plan, the strategy's
      product of error and noise may be slightly larger than that of `blt`. Equal
      arguments give equal strategies.

    Raises:
      ValueError: if an argument is out of range, or the budget is missing.
    """
    participation.validate_num_steps(workload.num_steps)
    plain = buffered.blt(workload, participation, num_buffers, objective)
    if not isinstance(participation, BallsInBins):
        return dataclasses.replace(plain, family="amplified")
    if epsilon is None or delta is None:
        raise ValueError("optimized_amplified needs a budget: pass epsilon and delta.")
    check_positive("epsilon", epsilon)
    check_delta(delta)
    bins = participation.num_bins
    if bins > _LARGEST_BINS:
        raise ValueError(
            f"Mechanism 'amplified' allows at most {_LARGEST_BINS} bins (steps per epoch), "
            f"found {bins}. Use larger batches, or mechanism 'bifr' or 'bisr'."
        )
    # SciPy is imported here because the import is slow.
    import scipy.optimize

    from tf_bandmf.accounting.balls_in_bins import BallsInBinsAccountant
    from tf_bandmf.accounting.bins_simulator import gram_matrix

    reduced = error.max_error if objective == "max" else error.root_mean_squared_error

    def matrix(variables: np.ndarray) -> matrices.BufferedToeplitz:
        decays = buffered.decays_of(variables)
        return matrices.BufferedToeplitz(*decays, workload.num_steps)

    def accountant(variables: np.ndarray, seed: int) -> BallsInBinsAccountant:
        gram = gram_matrix(matrix(variables), bins)
        return BallsInBinsAccountant(gram, num_draws=_DRAWS, seed=seed)

    assert isinstance(plain.matrix, matrices.BufferedToeplitz)
    best = buffered.variables_of(plain.matrix.decays, plain.matrix.inverse_decays)
    best = np.clip(best, -_LARGEST_LOGIT, _LARGEST_LOGIT)
    converged, iterations = False, 0
    for seed in range(_MOST_ROUNDS):
        here = accountant(best, seed)
        noise = here.rough_noise_stddev(epsilon, delta)
        proposals = here.proposals(epsilon, noise)

        def loss(
            variables: np.ndarray,
            noise: float = noise,
            proposals: list[Proposal] = proposals,
            seed: int = seed,
        ) -> float:
            like = accountant(variables, seed)
            needed = like.noise_by(proposals, epsilon, delta, noise)
            errors = error.per_step_squared_error(matrix(variables), workload)
            return math.log(reduced(errors) * needed)

        reach = np.clip([best - _REACH, best + _REACH], -_LARGEST_LOGIT, _LARGEST_LOGIT)
        result = scipy.optimize.minimize(
            loss,
            best,
            method="L-BFGS-B",
            bounds=reach.T,
            options={"maxiter": _ITERATIONS, "eps": _DIFFERENCE, "ftol": _PRECISION},
        )
        converged = loss(best) - result.fun <= _LEAST_DECREASE
        best, iterations = result.x, iterations + int(result.nit)
        if converged:
            break
    return Strategy(
        "amplified",
        matrix(best),
        {"num_buffers": best.size // 2, "epsilon": epsilon, "delta": delta},
        {
            "objective": objective,
            "converged": converged,
            "optimality_gap": None,
            "iterations": iterations,
        },
    )


register(
    Family(
        "amplified",
        optimized_amplified,
        (Option("num_buffers", default=buffered.DEFAULT_BUFFERS),),
        auto=3,
        is_optimized=True,
    )
)
