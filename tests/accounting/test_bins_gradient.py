"""The differentiable noise of balls in bins against the accountant and differences."""

import numpy as np
import pytest
import tensorflow as tf

from tf_bandmf import matrices, strategies, workloads
from tf_bandmf.accounting import bins_gradient
from tf_bandmf.accounting.balls_in_bins import BallsInBinsAccountant
from tf_bandmf.accounting.bins_mixture import gram_matrix

DELTA = 1e-5


def strategy_of(n, b):
    return strategies.bifr(workloads.prefix_sum(n), min(3, n), 0.6).matrix


def noise_of(gram, epsilon):
    accountant = BallsInBinsAccountant(gram, num_draws=2000)
    return accountant.calibrate(epsilon, DELTA).noise_stddev


@pytest.mark.parametrize(
    ("n", "b"), [(1, 1), (7, 7), (12, 4), (13, 4), (9, 1), (30, 8)]
)
def test_gram_matrix_is_that_of_the_accountant(n, b):
    matrix = strategy_of(n, b)
    found = bins_gradient.toeplitz_gram(tf.constant(matrix.toeplitz_column()), b)
    np.testing.assert_allclose(found, gram_matrix(matrix, b), rtol=1e-12, atol=1e-12)


@pytest.mark.slow_cases("0.5")
@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
def test_noise_is_that_of_the_accountant(epsilon):
    gram = gram_matrix(strategy_of(24, 6), 6)
    accountant = BallsInBinsAccountant(gram)
    expected = accountant.calibrate(epsilon, DELTA).noise_stddev
    # Begun with a noise that is not quite right.
    noise = bins_gradient.BinsNoise(gram, 1.1 * expected, epsilon, DELTA, 4000, 0)
    found = float(tf.exp(noise.log_sigma(tf.constant(gram))))
    assert abs(found / expected - 1.0) < 0.02
    scaled = float(tf.exp(noise.log_sigma(tf.constant(4.0 * gram))))
    np.testing.assert_allclose(scaled, 2.0 * found, rtol=1e-7)


@pytest.mark.slow_cases("False")
@pytest.mark.parametrize("add", [False, True])
def test_implicit_gradient_agrees_with_differences_in_both_directions(add):
    gram = gram_matrix(strategy_of(20, 5), 5)
    stddev = noise_of(gram, 1.0)
    noise = bins_gradient.BinsNoise(gram, stddev, 1.0, DELTA, 1000, 3)
    simulator = bins_gradient.BinsSimulator(gram, 1000, 0, False)
    proposal = simulator.propose(add, 1.0, stddev)
    noise._directions = [bins_gradient._Direction.draw(add, proposal, 5, 1000, 3)]
    generator = np.random.default_rng(0)
    with tf.GradientTape() as tape:
        at = tf.constant(gram)
        tape.watch(at)
        value = noise.log_sigma(at)
    gradient = tape.gradient(value, at).numpy()
    for _ in range(3):
        way = generator.normal(size=(5, 5))
        way = 1e-4 * (way + way.T)
        ahead = float(noise.log_sigma(tf.constant(gram + way)))
        behind = float(noise.log_sigma(tf.constant(gram - way)))
        np.testing.assert_allclose(
            np.sum(gradient * way), 0.5 * (ahead - behind), rtol=1e-3
        )
    # Homogeneous of degree 1/2.
    np.testing.assert_allclose(np.sum(gradient * gram), 0.5, rtol=1e-9)


def test_the_worse_direction_decides():
    gram = gram_matrix(strategy_of(24, 6), 6)
    noise = bins_gradient.BinsNoise(gram, noise_of(gram, 2.0), 2.0, DELTA, 2000, 0)
    at = tf.constant(gram)
    each = [float(noise._solve(at, found)) for found in noise._directions]
    assert abs(float(noise.log_sigma(at)) - max(each)) < 4e-3


def test_equal_seeds_give_equal_functions_and_others_do_not():
    gram = gram_matrix(strategy_of(24, 6), 6)
    stddev, values = noise_of(gram, 2.0), []
    for seed in (0, 0, 1):
        noise = bins_gradient.BinsNoise(gram, stddev, 2.0, DELTA, 1000, seed)
        values.append(float(noise.log_sigma(tf.constant(gram))))
    assert values[0] == values[1] != values[2]


def test_one_bin_is_the_gaussian_mechanism():
    from tf_bandmf.accounting import gaussian

    column = matrices.ToeplitzBanded(np.ones(1), 4)
    gram = gram_matrix(column, 1)
    expected = 2.0 * gaussian.calibrate_noise_stddev(1.0, DELTA)
    noise = bins_gradient.BinsNoise(gram, expected, 1.0, DELTA, 4000, 0)
    found = float(tf.exp(noise.log_sigma(tf.constant(gram))))
    assert abs(found / expected - 1.0) < 0.01


def test_noise_that_is_far_off_is_refused():
    gram = gram_matrix(strategy_of(20, 5), 5)
    with pytest.raises(ArithmeticError, match="begin with what the accountant finds"):
        bins_gradient.BinsNoise(gram, 0.05, 1.0, DELTA, 1000, 0)
