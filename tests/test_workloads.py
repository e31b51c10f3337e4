"""Compares workload matrices with the optimizers that they describe."""

import numpy as np
import pytest

from tf_bandmf import workloads


@pytest.mark.parametrize("scheduled", [False, True])
def test_momentum_sgd_is_what_the_optimizer_does(scheduled):
    n, momentum, decay = 7, 0.6, 0.9
    rng = np.random.default_rng(0)
    rates = 0.5 + rng.random(n) if scheduled else np.ones(n)
    gradients = rng.normal(size=n)
    theta, velocity, models = 0.0, 0.0, []
    for gradient, rate in zip(gradients, rates):
        velocity = momentum * velocity + rate * gradient
        theta = decay * theta + velocity
        models.append(theta)
    workload = workloads.momentum_sgd(n, momentum, decay, rates if scheduled else None)
    np.testing.assert_allclose(workload.to_dense() @ gradients, models, atol=1e-12)


def test_identity_and_custom_inverse():
    np.testing.assert_array_equal(workloads.identity(3).to_dense(), np.eye(3))
    custom = workloads.from_inverse(4, [1.0, -0.2, 0.1])
    inverse = np.linalg.inv(custom.to_dense())
    np.testing.assert_allclose(inverse[:, 0], [1.0, -0.2, 0.1, 0.0], atol=1e-14)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"momentum": 0.9, "decay": 0.5}, "momentum must be < decay"),
        ({"learning_rates": [1.0, 1.0]}, "one rate for each of the 3 steps"),
        ({"learning_rates": [1.0, np.nan, 1.0]}, "must be finite and > 0"),
        ({"learning_rates": [1.0, 1e140, 1.0]}, "between 1e-50 and 1e\\+50"),
    ],
)
def test_invalid_workloads_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        workloads.momentum_sgd(3, **arguments)
