"""Comparison of the weights of models."""

import numpy as np


def flat(model):
    """Returns weights, or those of a model, as one vector."""
    weights = getattr(model, "get_weights", lambda: model)()
    return np.concatenate([np.ravel(weight) for weight in weights])


def assert_same(one, other, **tolerance):
    """Asserts that two models have the same weights, bit for bit without a tolerance."""
    one, other = flat(one), flat(other)
    if tolerance:
        np.testing.assert_allclose(one, other, **tolerance)
    else:
        np.testing.assert_array_equal(one, other)
