"""Comparison of the weights of models, and errors that change none."""

import contextlib

import numpy as np
import pytest


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


@contextlib.contextmanager
def refused(model, error, match=""):
    """Asserts that an error is raised, and that the model is as it was before."""

    def steps():
        return getattr(getattr(model, "optimizer", None), "steps_taken", 0)

    before, taken = model.get_weights(), steps()
    with pytest.raises(error, match=match) as caught:
        yield caught
    assert_same(model, before)
    assert steps() == taken
