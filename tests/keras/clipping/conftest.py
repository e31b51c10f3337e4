"""Provides a broken gradient rule."""

import pytest


@pytest.fixture
def wrong_dense_rule(monkeypatch):
    """Breaks the gradient rule of Dense layers: it omits the bias."""
    from tf_bandmf.keras.clipping.rules import dense

    factors = dense.DenseRule.factors

    def without_bias(self, call, gradient):
        actual = dict(factors(self, call, gradient))
        actual.pop(id(call.layer.bias))
        return actual

    monkeypatch.setattr(dense.DenseRule, "factors", without_bias)
