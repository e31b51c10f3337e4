"""Supporting hyperplanes of the objective lie below it and touch it at one point."""

import numpy as np
import pytest
import tensorflow as tf

from tf_bandmf.optimize import objectives

CONVEX = objectives.Objective(
    "root of squares", lambda v: tf.sqrt(tf.reduce_sum(v**2)) + 1.0, is_convex=True
)


@pytest.mark.parametrize("objective", ["mean", "max", "last", CONVEX])
def test_support_lies_below_the_reduction(objective):
    objective = objectives.resolve(objective)
    rng = np.random.default_rng(0)
    errors = rng.uniform(0.5, 2.0, size=9)
    weights, offset = objective.support(errors)
    assert np.all(weights >= 0.0)
    for _ in range(50):
        other = rng.uniform(0.1, 3.0, size=9)
        value = float(objective.reduction(tf.constant(other)))
        assert weights @ other + offset <= value + 1e-12
    at_errors = float(objective.reduction(tf.constant(errors)))
    np.testing.assert_allclose(weights @ errors + offset, at_errors, rtol=1e-12)
