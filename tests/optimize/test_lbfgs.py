"""Tests the results that the L-BFGS optimizer reports, especially failures."""

import numpy as np
import pytest
import tensorflow as tf
from children import printed

from tf_bandmf.optimize import lbfgs

SCALES = np.array([1.0, 3.0, 10.0])


def bowl(x):
    """Returns log(1 + a quadratic function), which is minimal at x = 2."""
    return tf.math.log1p(tf.reduce_sum(SCALES * (x - 2.0) ** 2))


@pytest.fixture(scope="module")
def in_bowl():
    """Returns an optimizer of `bowl` that all tests share, because tracing is slow."""
    return lbfgs.Minimizer(bowl, 3).minimize


def test_too_few_iterations_are_reported_with_the_best_position(in_bowl):
    result = in_bowl(np.zeros(3), 1.0, options=lbfgs.Options(max_iterations=2))
    assert not result.converged
    assert "max_iterations = 2" in result.message
    assert result.num_iterations == 2
    assert 1.0 < result.value < np.exp(bowl(tf.zeros(3, tf.float64)))


@pytest.mark.slow
def test_a_failed_line_search_is_reported():
    @tf.custom_gradient
    def wrong_way(x):
        return tf.reduce_sum(x), lambda upstream: -upstream * tf.ones_like(x)

    result = lbfgs.Minimizer(wrong_way, 2).minimize(np.ones(2), 1.0, lbfgs.Options())
    assert not result.converged
    assert "line search failed" in result.message
    assert result.gradient_norm == pytest.approx(1.0)


_WITHOUT_TF_KERAS = """
import sys

# Importing a module that is None raises ModuleNotFoundError.
sys.modules.update(tf_keras=None, tensorflow_probability=None)
import tf_bandmf

participation = tf_bandmf.MinSep(4, 2)
options = dict(noise_multiplier=1.0, delta=1e-5, num_steps=8)
plan = tf_bandmf.plan("bsr:4", sampling=participation, **options)
print(plan.statement().epsilon > 0)
try:
    tf_bandmf.plan("banded:4", sampling=participation, **options)
except ImportError as error:
    print("pip install tf-bandmf[keras]" in str(error))
"""


@pytest.mark.slow
def test_only_optimizing_needs_tensorflow_probability_and_tf_keras():
    """Without these packages, closed forms work; optimizing raises a helpful error."""
    assert printed("-c", _WITHOUT_TF_KERAS).split() == ["True", "True"]
