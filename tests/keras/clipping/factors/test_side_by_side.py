"""Small variables that are measured together, beside gradients taken one by one."""

import keras
import numpy as np
from clipping_reference import (
    CLIP,
    assert_exact,
    assert_sums_close,
    classifier,
    example_gradients,
    group_sums,
    labels,
    traced,
)

from tf_bandmf.keras.clipping.sums.settings import Clipping


def scales_and_shifts(count=5, width=300):
    """Ten variables of 300 elements: three fit beside one another."""
    normalizations = [keras.layers.LayerNormalization() for _ in range(count)]
    model = classifier(*normalizations, keras.layers.Dense(3), inputs=(width,))
    rng = np.random.default_rng(0)
    for weight in model.trainable_variables[: 2 * count]:
        weight.assign(rng.normal(1.0, 0.3, weight.shape))
    return model, rng.normal(size=(5, width)).astype("f4"), labels()


def test_many_small_variables_are_clipped_as_one_by_one():
    assert_exact(*scales_and_shifts())


def test_variables_of_other_groups_are_not_measured_together():
    model, x, y = scales_and_shifts(2)
    groups = {"gamma": 1.0, ".*": 2.0}
    _, gradients = example_gradients(model, x, y)
    parts = Clipping(groups=groups).grouping(model.trainable_variables, CLIP)
    result = traced(model, x, y, clipping=Clipping(groups=groups))
    expected = group_sums(gradients, *parts)
    assert_sums_close(result.sums, expected)


def test_an_example_that_is_not_finite_in_one_of_them_counts_in_none():
    model, x, y = scales_and_shifts(2)
    bad = x.copy()
    bad[1, 7] = np.inf
    result = traced(model, bad, y)
    others = np.delete(np.arange(5), 1)
    expected = traced(model, x[others], y[others])
    for got, want in zip(result.sums, expected.sums, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-7)
