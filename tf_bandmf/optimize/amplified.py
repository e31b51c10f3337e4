"""Strategies with the smallest error times *amplified* noise, under balls in bins.

Minimized is `log(reduced error of A C^-1) + log sigma(C)^2`, with the noise sigma that
the budget needs (`accounting.bins_gradient`), over the variables of a form of Toeplitz
`C` (`amplified_forms`). Published for banded Toeplitz `C` (Choquette-Choo, Ganesh,
Haque, Steinke, Thakurta, arXiv:2410.06266); open for banded inverses in
arXiv:2505.12128, section 6.
"""

from __future__ import annotations

import dataclasses
import math
import time

import numpy as np
import tensorflow as tf

from tf_bandmf.accounting import bins_gradient
from tf_bandmf.accounting.balls_in_bins import BallsInBinsAccountant
from tf_bandmf.accounting.bins_mixture import gram_matrix
from tf_bandmf.optimize import lbfgs
from tf_bandmf.optimize.amplified_forms import Form
from tf_bandmf.optimize.objectives import Objective
from tf_bandmf.optimize.result import OptimizationResult

# Logits move by at most this much in the first trial step on a model.
_FIRST_STEP = 0.3
# Precision of the minimum of a model.
_MODEL_ITERATIONS, _MODEL_GRADIENT = 100, 1e-4
# How strongly a model holds on to its center: at first, and by how much that changes.
_PULL, _PULL_FACTOR = 0.1, 4.0
# Trials of one step before it is held that none is better.
_TRIALS = 5
# Steps after which draws and importance sampling are new.
_REFRESH = 3


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """What is minimized.

    Attributes:
      form: of `C`, for a workload.
      objective: of the per-step squared errors.
      num_bins: b.
      epsilon, delta: the budget.
      num_draws: of the search, for each direction of adjacency.
    """

    form: Form
    objective: Objective
    num_bins: int
    epsilon: float
    delta: float
    num_draws: int = 1000

    def noise(
        self, variables: np.ndarray, seed: int, stddev: float | None
    ) -> bins_gradient.BinsNoise:
        """The differentiable noise around a point; `stddev` is about what it is."""
        gram = gram_matrix(self.form.matrix(variables), self.num_bins)
        if stddev is None:
            accountant = BallsInBinsAccountant(gram)
            stddev = accountant.rough_noise_stddev(self.epsilon, self.delta)
        return bins_gradient.BinsNoise(
            gram, stddev, self.epsilon, self.delta, self.num_draws, seed
        )

    def first_value(self, variables: np.ndarray) -> float:
        """The objective with the accountant's noise, from few draws."""
        matrix = self.form.matrix(variables)
        accountant = BallsInBinsAccountant.of_strategy(matrix, self.num_bins)
        noise = accountant.rough_noise_stddev(self.epsilon, self.delta)
        error = float(self.log_error(tf.constant(variables)))
        return error + 2.0 * math.log(noise)

    def log_error(self, variables: tf.Tensor) -> tf.Tensor:
        """Log of the reduced squared errors."""
        errors = self.form.errors(variables)
        return tf.math.log(self.objective.smooth_stages[-1](errors))

    def gram(self, variables: tf.Tensor) -> tf.Tensor:
        """The Gram matrix of the bins, shape [b, b]."""
        return bins_gradient.toeplitz_gram(self.form.column(variables), self.num_bins)

    def value(self, noise: bins_gradient.BinsNoise, variables: np.ndarray) -> float:
        """The objective; infinite where the simulation has no finite value."""
        constant = tf.constant(variables)
        log_sigma = noise.log_sigma(self.gram(constant))
        value = float(self.log_error(constant) + 2.0 * log_sigma)
        return value if math.isfinite(value) else math.inf

    def tangent(
        self, noise: bins_gradient.BinsNoise, variables: np.ndarray
    ) -> tuple[float, np.ndarray, tf.Tensor]:
        """The objective, its gradient, and `W` with `<W, G> = sigma^2`."""
        constant = tf.constant(variables)
        with tf.GradientTape() as tape:
            tape.watch(constant)
            gram = self.gram(constant)
            log_sigma = noise.log_sigma(gram)
            value = self.log_error(constant) + 2.0 * log_sigma
        gradient, by_gram = tape.gradient(value, [constant, gram])
        return float(value), gradient.numpy(), by_gram * tf.exp(2.0 * log_sigma)


class _Model:
    """`log error + log <W, G> + pull / 2 |variables - center|^2`, traced once.

    With `W = d sigma^2 / d G` the first two terms touch the objective at the center.
    """

    def __init__(self, problem: Problem, size: int) -> None:
        b = problem.num_bins
        self._weights = tf.Variable(tf.zeros([b, b], tf.float64), trainable=False)
        self._center = tf.Variable(tf.zeros([size], tf.float64), trainable=False)
        self._pull = tf.Variable(tf.zeros([], tf.float64), trainable=False)

        def log_loss(variables: tf.Tensor) -> tf.Tensor:
            squared = tf.reduce_sum(self._weights * problem.gram(variables))
            moved = tf.reduce_sum((variables - self._center) ** 2)
            value = problem.log_error(variables) + tf.math.log(squared)
            return value + 0.5 * self._pull * moved

        options = lbfgs.Options(
            max_iterations=_MODEL_ITERATIONS,
            gradient_tolerance=_MODEL_GRADIENT,
            decrease_tolerance=1e-7,
            progress=False,
        )
        self._minimizer = lbfgs.Minimizer(log_loss, size, options)

    def minimize(
        self, weights: tf.Tensor, center: np.ndarray, pull: float
    ) -> np.ndarray:
        self._weights.assign(weights)
        self._center.assign(center)
        self._pull.assign(pull)
        return self._minimizer.minimize(center, 1.0, first_step=_FIRST_STEP).position


def optimize(
    problem: Problem, start: np.ndarray, options: lbfgs.Options
) -> OptimizationResult:
    """The variables with the smallest error times noise that were found from `start`.

    `sigma^2` is replaced by its tangent `<W, G>`, as if W were a sensitivity that weighs
    all bins; the minimum of that, by L-BFGS, is the next point. Steps that do not lower
    the simulated objective are repeated closer to where they began. Each step takes a few
    simulations, the many evaluations of L-BFGS none.

    Args:
      problem: what is minimized.
      start: variables of the form.
      options: `max_iterations` counts steps; `decrease_tolerance` is of the logarithm of
        the squared error times the squared noise, twice in a row.

    Returns:
      The result; by draws of the accountant its position is not worse than `start`. Its
      value is the squared error times the squared noise where the search ended, by the
      draws of the search. Equal arguments give equal results.
    """
    began = time.perf_counter()
    model = _Model(problem, start.size)
    variables, pull = np.asarray(start, np.float64), _PULL
    stddev: float | None = None
    evaluations = small = 0
    converged, message = False, f"stopped after {options.max_iterations} steps"
    progress = lbfgs.Progress(options.progress, options.max_iterations)
    for step in range(options.max_iterations + 1):
        if step % _REFRESH == 0:
            try:
                noise = problem.noise(variables, step, stddev)
            except ArithmeticError:
                # The last draws have led astray: ask the accountant.
                noise = problem.noise(variables, step, None)
        value, gradient, weights = problem.tangent(noise, variables)
        norm = float(np.max(np.abs(gradient), initial=0.0))
        evaluations += 1
        progress.update(step, math.exp(value), None)
        if norm <= options.gradient_tolerance and small:
            converged, message = True, f"gradient <= {options.gradient_tolerance:g}"
        if small >= 2:
            converged = True
            message = f"two steps of a decrease <= {options.decrease_tolerance:g}"
        if converged or step == options.max_iterations:
            break
        for trial in range(_TRIALS):
            found = model.minimize(weights, variables, pull)
            evaluations += 1
            reached = problem.value(noise, found)
            if reached < value:
                # A pull that had to grow is what this region takes.
                pull /= _PULL_FACTOR if trial == 0 else 1.0
                break
            pull *= _PULL_FACTOR
        else:
            converged = True
            message = "no step lowers the objective as far as the draws can tell"
            break
        small = small + 1 if value - reached <= options.decrease_tolerance else 0
        variables = found
        # New draws are made for the noise of this point, not of the one before.
        stddev = math.exp(
            0.5 * (reached - float(problem.log_error(tf.constant(found))))
        )
    progress.close()
    if not problem.first_value(variables) <= problem.first_value(start):
        variables = np.asarray(start, np.float64)
        message += "; by other draws where it began is better"
    return OptimizationResult(
        position=variables,
        converged=converged,
        message=message,
        value=math.exp(value),
        gradient_norm=norm,
        num_iterations=step,
        num_evaluations=evaluations,
        seconds=time.perf_counter() - began,
    )
