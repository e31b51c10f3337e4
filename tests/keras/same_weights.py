"""Assertions that two models have equal weights, or that an error changed no weight."""

import contextlib

import numpy as np
import pytest


def flat(model):
    """Returns the weights of a model, or a list of weights, as one vector."""
    weights = getattr(model, "get_weights", lambda: model)()
    return np.concatenate([np.ravel(weight) for weight in weights])


def assert_same(one, other, **tolerance):
    """Asserts that two models have equal weights, by default bit for bit."""
    one, other = flat(one), flat(other)
    if tolerance:
        np.testing.assert_allclose(one, other, **tolerance)
    else:
        np.testing.assert_array_equal(one, other)


@contextlib.contextmanager
def refused(model, error, match=""):
    """Asserts that an error is raised and leaves the model unchanged."""

    def steps():
        return getattr(getattr(model, "optimizer", None), "steps_taken", 0)

    before, taken = model.get_weights(), steps()
    with pytest.raises(error, match=match) as caught:
        yield caught
    assert_same(model, before)
    assert steps() == taken
