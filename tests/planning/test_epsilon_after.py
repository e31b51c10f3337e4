"""Tests `epsilon_after`, which returns the epsilon of the first steps of a run."""

import numpy as np
import pytest
from small_plans import small_plan

from tf_bandmf.accounting import gaussian


def make_plan(mechanism="identity"):
    return small_plan(mechanism, 40, 10, 4)


@pytest.mark.parametrize("mechanism", ["identity", "lambda_cgd", "bsr:3"])
def test_it_is_the_gaussian_mechanism_of_the_worst_pattern(mechanism):
    plan = make_plan(mechanism)
    dense = plan.strategy.matrix.to_dense()
    for steps in (3, 6, 11):
        block = dense[:steps, :steps]
        worst = max(
            np.linalg.norm(block[:, first::4].sum(axis=1)) for first in range(4)
        )
        stddev = plan.unit_noise_stddev / worst
        expected = gaussian.gaussian_epsilon(stddev, plan.delta)
        np.testing.assert_allclose(plan.epsilon_after(steps), expected, rtol=1e-6)
