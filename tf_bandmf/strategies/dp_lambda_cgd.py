"""DP-lambda-CGD: each step cancels a fraction of the previous step's noise.

Source: Kalinin, McKenna, Pagh, Lampert, "DP-lambda-CGD: Efficient Noise Correlation for
Differentially Private Model Training", arXiv:2601.22334.
"""

from __future__ import annotations

import numpy as np

from tf_bandmf import matrices
from tf_bandmf.participation import Participation
from tf_bandmf.strategies.base import Strategy
from tf_bandmf.strategies.one_parameter import with_best_fraction
from tf_bandmf.strategies.registry import Family, Option, register
from tf_bandmf.workloads import Workload, check_workload, is_number


def lambda_cgd(
    num_steps: int, lambda_: float, column_normalized: bool = False
) -> Strategy:
    """Returns the strategy whose `C^-1` has diagonal 1 and subdiagonal `-lambda`.

    The strategy is defined by eq. 8 and 9 of arXiv:2601.22334. The noise of step `i` is
    `z[i] - lambda z[i-1]`, where the `z[i]` are independent normals. The generator
    stores nothing, because it regenerates `z[i-1]` from the key.

    Args:
      num_steps: n.
      lambda_: lambda in [0, 1), the fraction of the previous noise that is cancelled;
        0 is DP-SGD.
      column_normalized: scale the columns of `C` to norm 1 (arXiv:2601.22334, App. A).

    Raises:
      ValueError: if lambda is outside [0, 1) or not finite.
    """
    num_steps = matrices.check_num_rows(num_steps)
    if not (is_number(lambda_) and 0.0 <= lambda_ < 1.0 and np.float32(lambda_) < 1.0):
        raise ValueError(
            f"lambda must be in [0, 1), also after rounding to float32, but found "
            f"{lambda_!r}. Use 0 for DP-SGD; with 1, sensitivity would be unbounded."
        )
    diagonals = np.array([1.0, -lambda_])[: 2 if num_steps > 1 and lambda_ else 1]
    matrix = matrices.Inverse(matrices.ToeplitzBanded(diagonals, num_steps))
    strategy = Strategy("lambda_cgd", matrix, {"lambda": float(lambda_)})
    return strategy.normalize_columns() if column_normalized else strategy


def optimized_lambda_cgd(
    workload: Workload,
    participation: Participation,
    lambda_: float | None = None,
    column_normalized: bool = False,
    objective: str = "mean",
) -> Strategy:
    """Returns the DP-lambda-CGD strategy with the smallest error.

    The error is computed without amplification by sampling.

    Args:
      workload: the workload.
      participation: the participation, which determines the sensitivity.
      lambda_: lambda in [0, 1), the fraction of the previous noise that each step
        cancels; None for the best value.
      column_normalized: scale the columns of `C` to norm 1.
      objective: "mean" for the RMSE, "max" for the MaxSE. The lambda that minimizes the
        MaxSE is never smaller than the lambda that minimizes the RMSE
        (arXiv:2601.22334, Lemma 3).

    Raises:
      ValueError: for an unknown objective.
    """
    check_workload(workload)

    def build(lambda_: float) -> Strategy:
        return lambda_cgd(workload.num_steps, lambda_, column_normalized)

    if lambda_ is not None:
        return build(lambda_)
    return with_best_fraction(build, workload, participation, objective)


register(
    Family(
        "lambda_cgd",
        optimized_lambda_cgd,
        (Option("lambda_", float),),
        auto=1,
        banded="inverse",
    )
)
