"""Forms of `C` among which `optimize.amplified` searches: without negative entries.

The accounting of balls in bins wants `C >= 0`. In each form it holds by construction,
whatever the variables are; `C` is Toeplitz, with a leading 1.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import tensorflow as tf

from tf_bandmf import matrices
from tf_bandmf.analysis import gram_recursion
from tf_bandmf.optimize import banded_matrices, series
from tf_bandmf.optimize.toeplitz import banded_inverse_errors, increasing_errors
from tf_bandmf.workloads import Workload

# Decays of a BLT stay apart from each other and from 1 in float32, too.
_LARGEST_LOGIT = 14.0


class Form(Protocol):
    """Strategies as functions of real variables, shape [d], float64.

    Attributes:
      workload: A.
    """

    workload: Workload

    def size(self, variables: np.ndarray) -> dict[str, int]:
        """The number of bands or buffers, by the name that strategies give it."""

    def matrix(self, variables: np.ndarray) -> matrices.LowerTriangular:
        """C."""

    def column(self, variables: tf.Tensor) -> tf.Tensor:
        """The first column of `C`, shape [n], differentiable."""

    def errors(self, variables: tf.Tensor) -> tf.Tensor:
        """The squared errors of the steps, shape [n], differentiable."""


class InverseBands:
    """Strategies with p bands of `C^-1`.

    As power series, with `d = p - 1` variables,

        C^-1 = 1 - y_1 x - ... - y_d x^d,   y > 0, sum y < 1,

    so that the inverse has no negative terms. The variables are the logits of y and of
    what is left to 1: how close the sum comes to 1 spans orders of magnitude.
    """

    def __init__(self, workload: Workload) -> None:
        self.workload = workload

    @staticmethod
    def coefficients(variables: tf.Tensor) -> tf.Tensor:
        """The coefficients of `C^-1`, shape [d + 1], leading 1."""
        y = tf.nn.softmax(tf.pad(variables, [[0, 1]]))[:-1]
        return tf.concat([[1.0], -y], axis=0)

    @staticmethod
    def variables(y: np.ndarray) -> np.ndarray:
        """The variables of given y, shape [d], > 0 with a sum below 1."""
        return np.log(y / (1.0 - np.sum(y)))

    def size(self, variables: np.ndarray) -> dict[str, int]:
        return {"bands": variables.size + 1}

    def matrix(self, variables: np.ndarray) -> matrices.LowerTriangular:
        found = self.coefficients(tf.constant(variables)).numpy()
        toeplitz = matrices.ToeplitzBanded(found, self.workload.num_steps)
        return matrices.Inverse(toeplitz)

    def column(self, variables: tf.Tensor) -> tf.Tensor:
        return series.inverse(self.coefficients(variables), self.workload.num_steps)

    def errors(self, variables: tf.Tensor) -> tf.Tensor:
        return banded_inverse_errors(self.workload)(self.coefficients(variables))


class Buffers:
    """BLT strategies with m buffers.

    As power series (arXiv:2408.08868), with `d = 2 m` variables,

        C = prod_i (1 - t'_i x) / (1 - t_i x),   1 > t_1 > t'_1 > t_2 > ... > 0.

    The variables are the logits of the ratios: each decay is the one before, at first 1,
    times the logistic function of a variable.
    """

    def __init__(self, workload: Workload) -> None:
        self.workload = workload

    @staticmethod
    def decays(variables: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Those of `C`, t, and of `C^-1`, t', shape [m] each."""
        limit = _LARGEST_LOGIT
        ratios = tf.sigmoid(tf.clip_by_value(variables, -limit, limit))
        interlaced = tf.math.cumprod(ratios)
        return interlaced[0::2], interlaced[1::2]

    def size(self, variables: np.ndarray) -> dict[str, int]:
        return {"num_buffers": variables.size // 2}

    def matrix(self, variables: np.ndarray) -> matrices.BufferedToeplitz:
        own, inverse = self.decays(tf.constant(variables))
        steps = self.workload.num_steps
        return matrices.BufferedToeplitz(own.numpy(), inverse.numpy(), steps)

    def column(self, variables: tf.Tensor) -> tf.Tensor:
        own, inverse = self.decays(variables)
        first = tf.one_hot(0, self.workload.num_steps, dtype=own.dtype)
        return _times(first, inverse, own)

    def errors(self, variables: tf.Tensor) -> tf.Tensor:
        own, inverse = self.decays(variables)
        if self.workload.is_toeplitz:
            sums = tf.constant(self.workload.first_column())
            return increasing_errors(_times(sums, own, inverse))
        # A C^-1 = (numerator A^-1)^-1 denominator.
        n = self.workload.num_steps
        numerator = banded_matrices.toeplitz_columns(_polynomial(inverse), n)
        denominator = banded_matrices.toeplitz_columns(_polynomial(own), n)
        return gram_recursion.filtered_row_norms(
            banded_matrices.times_inverse_workload(numerator, self.workload),
            banded_matrices.rows_from_columns(denominator),
        )


def _times(x: tf.Tensor, zeros: tf.Tensor, poles: tf.Tensor) -> tf.Tensor:
    """The series `x`, shape [n], times `prod_i (1 - zeros[i] x) / (1 - poles[i] x)`.

    A factor is 1 + (pole - zero) x / (1 - pole x): nothing cancels.
    """
    times = tf.range(x.shape[0], dtype=x.dtype)
    for zero, pole in zip(tf.unstack(zeros), tf.unstack(poles)):
        sums = series.convolve(x, tf.exp(times * tf.math.log(pole)))
        x += (pole - zero) * tf.pad(sums[:-1], [[1, 0]])
    return x


def _polynomial(decays: tf.Tensor) -> tf.Tensor:
    """Coefficients of `prod_i (1 - decays[i] x)`, shape [m + 1]."""
    found = tf.ones([1], decays.dtype)
    for decay in tf.unstack(decays):
        found = tf.pad(found, [[0, 1]]) - decay * tf.pad(found, [[1, 0]])
    return found
