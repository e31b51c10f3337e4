"""Server optimizers agree with their published formulas."""

import numpy as np
import pytest

from tf_bandmf_federated.server_optimizers import ServerAdam, ServerSGD, ServerYogi

DIRECTIONS = np.random.default_rng(5).normal(size=(6, 3)).astype(np.float32)


def run(optimizer):
    weights = [np.ones(3, np.float32)]
    state = optimizer.initial_state(weights)
    # Optimizers may overwrite a direction, so they get a copy.
    for direction in DIRECTIONS.copy():
        weights, state = optimizer.apply(weights, [direction], state)
    assert weights[0].dtype == np.float32
    return weights[0]


def test_sgd_is_the_sum_and_momentum_weights_the_past():
    np.testing.assert_allclose(run(ServerSGD(0.5)), 1 + 0.5 * DIRECTIONS.sum(0), 1e-5)
    weights = [sum(0.9**j for j in range(6 - i)) for i in range(6)]
    expected = 1 + np.tensordot(weights, DIRECTIONS, 1)
    np.testing.assert_allclose(run(ServerSGD(1.0, momentum=0.9)), expected, rtol=1e-5)


@pytest.mark.parametrize("kind", [ServerAdam, ServerYogi])
def test_adaptive_ones_follow_algorithm_2(kind):
    m, v, w = np.zeros(3), np.zeros(3), np.ones(3)
    for g in DIRECTIONS.astype(np.float64):
        m = 0.9 * m + 0.1 * g
        if kind is ServerAdam:
            v = 0.99 * v + 0.01 * g**2
        else:
            v = v - 0.01 * g**2 * np.sign(v - g**2)
        w = w + 0.1 * m / (np.sqrt(v) + 1e-3)
    np.testing.assert_allclose(run(kind()), w, rtol=1e-4)
