"""Whether `amplified:4` finds the best of all strategies with 4 bands of the inverse.

    python benchmarks/amplified_optimum.py --epsilons 4,8

The defaults are the setting of arXiv:2601.22334, as in `amplified.py`. Nelder-Mead, which
knows no gradient, begins at several places, and its coefficients may have any sign as long
as `C` has no negative entries. It is run on a simulation with fixed draws; `rmse` is with
the noise of the accountant.
"""

from __future__ import annotations

import argparse
import math

import numpy as np
import scipy.optimize
import scipy.signal
import tensorflow as tf

from tf_bandmf import matrices, workloads
from tf_bandmf.accounting import bins_gradient
from tf_bandmf.accounting.balls_in_bins import BallsInBinsAccountant
from tf_bandmf.accounting.bins_mixture import gram_matrix
from tf_bandmf.analysis import error
from tf_bandmf.participation import BallsInBins
from tf_bandmf.strategies import optimized_amplified, optimized_banded_inverse

# What is no strategy has this logarithm of the error.
_REFUSED = 50.0
# Of y, with C^-1 = 1 - y_1 x - y_2 x^2 - y_3 x^3.
_STARTS = {
    "one coefficient": (0.95, 1e-3, 1e-3),
    "negative": (1.2, -0.1, -0.11),
    "the last one": (0.3, 0.3, 0.395),
}


class Objective:
    """Log of error times noise, of y, from fixed draws around a strategy."""

    def __init__(
        self, participation: BallsInBins, epsilon: float, delta: float, draws: int
    ) -> None:
        self._bins, self._budget = participation.num_bins, (epsilon, delta)
        self._draws = draws
        self._workload = workloads.prefix_sum(participation.num_steps)

    def matrix(self, y: np.ndarray) -> matrices.Inverse:
        coefficients = np.concatenate([[1.0], -y])
        steps = self._workload.num_steps
        return matrices.Inverse(matrices.ToeplitzBanded(coefficients, steps))

    def error(self, y: np.ndarray) -> float:
        squared = error.per_step_squared_error(self.matrix(y), self._workload)
        return error.root_mean_squared_error(squared)

    def rmse(self, y: np.ndarray) -> float:
        """With the noise of the accountant."""
        accountant = BallsInBinsAccountant.of_strategy(self.matrix(y), self._bins)
        noise = accountant.calibrate_noise_stddev(*self._budget).noise_stddev
        return self.error(y) * noise

    def draw_around(self, y: np.ndarray) -> None:
        gram = gram_matrix(self.matrix(y), self._bins)
        stddev = BallsInBinsAccountant(gram).rough_noise_stddev(*self._budget)
        self._noise = bins_gradient.BinsNoise(
            gram, stddev, *self._budget, self._draws, seed=77
        )

    def __call__(self, y: np.ndarray) -> float:
        first = np.eye(1, self._workload.num_steps)[0]
        column = scipy.signal.lfilter([1.0], np.concatenate([[1.0], -y]), first)
        if not np.all(np.isfinite(column)) or column.min() < 0.0:
            return _REFUSED
        gram = bins_gradient.toeplitz_gram(tf.constant(column), self._bins)
        value = math.log(self.error(y)) + float(self._noise.log_sigma(gram))
        return value if math.isfinite(value) else _REFUSED


def coefficients_of(point: np.ndarray) -> np.ndarray:
    """y of the logarithm of what its sum leaves to 1, y_2 and y_3."""
    return np.array([1.0 - math.exp(point[0]) - point[1] - point[2], *point[1:]])


def minimum(objective: Objective, y: np.ndarray, evaluations: int) -> np.ndarray:
    start = np.array([math.log(1.0 - y.sum()), *y[1:]])
    simplex = start + np.diag([0.3, 0.04, 0.04, 0.0])[:, :3]
    found = scipy.optimize.minimize(
        lambda point: objective(coefficients_of(point)),
        start,
        method="Nelder-Mead",
        options={
            "initial_simplex": simplex,
            "maxfev": evaluations,
            "xatol": 1e-4,
            "fatol": 1e-6,
        },
    )
    return coefficients_of(found.x)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bins", type=int, default=391)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--epsilons", default="4,8")
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--draws", type=int, default=4000)
    parser.add_argument("--evaluations", type=int, default=160)
    options = parser.parse_args()
    participation = BallsInBins(options.bins * 128, 128, options.epochs)
    workload = workloads.prefix_sum(participation.num_steps)
    for epsilon in map(float, options.epsilons.split(",")):
        objective = Objective(participation, epsilon, options.delta, options.draws)
        known = {
            "amplified": optimized_amplified(
                workload, participation, 4, epsilon=epsilon, delta=options.delta
            ),
            "bandinv": optimized_banded_inverse(workload, participation, 4),
        }
        starts = {}
        for name, strategy in known.items():
            inverse = strategy.core.banded_inverse()
            assert inverse is not None
            starts[name] = -matrices.as_rows(inverse)[-1, 1:]
            print(
                f"epsilon={epsilon:g}  {name}: rmse={objective.rmse(starts[name]):.4f}"
            )
        objective.draw_around(starts["amplified"])
        starts.update((name, np.array(y)) for name, y in _STARTS.items())
        for name, y in starts.items():
            found = minimum(objective, y, options.evaluations)
            print(
                f"epsilon={epsilon:g}  from {name}: rmse={objective.rmse(found):.4f}, "
                f"y={np.round(found, 4)}",
                flush=True,
            )


if __name__ == "__main__":
    main()
