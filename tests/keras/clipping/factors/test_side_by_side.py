"""Small variables that are measured together, beside gradients taken one by one."""

import keras
import numpy as np
import pytest
import tensorflow as tf
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

from tf_bandmf.keras.clipping.factors import packing
from tf_bandmf.keras.clipping.factors.base import Instantiated
from tf_bandmf.keras.clipping.factors.norms import BLOCK
from tf_bandmf.keras.clipping.sums.settings import Clipping


def scales_and_shifts(count=5, width=300):
    """Ten variables of 300 elements: three fit beside one another."""
    normalizations = [keras.layers.LayerNormalization() for _ in range(count)]
    model = classifier(*normalizations, keras.layers.Dense(3), inputs=(width,))
    rng = np.random.default_rng(0)
    for weight in model.trainable_variables[: 2 * count]:
        weight.assign(rng.normal(1.0, 0.3, weight.shape))
    return model, rng.normal(size=(5, width)).astype("f4"), labels()


@pytest.mark.slow
def test_many_small_variables_are_clipped_as_one_by_one():
    assert_exact(*scales_and_shifts())


def test_variables_of_other_groups_are_not_measured_together():
    model, x, y = scales_and_shifts(2)
    groups = {"gamma": 1.0, ".*": 2.0}
    _, gradients = example_gradients(model, x, y)
    parts = Clipping(groups=groups).grouping(model.trainable_variables, CLIP)
    result = traced(model, x, y, clipping=Clipping(groups=groups))
    expected = group_sums(gradients, parts.members, parts.clips)
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


@pytest.mark.parametrize("batch", [0, 4])
def test_each_variable_is_measured_once_and_bounded_as_by_itself(batch):
    rng = np.random.default_rng(1)
    shapes = [(40,), (2, 3, 5), (700,), (500,), (), (512,), (1,), (0,), (20, 30)]
    gradients = [rng.normal(size=(batch, *shape)).astype("f4") for shape in shapes]
    sizes = [int(np.prod(shape)) for shape in shapes]
    flat = [
        g.astype(float).reshape(batch, n) for g, n in zip(gradients, sizes, strict=True)
    ]
    factors = {i: Instantiated(tf.constant(g)) for i, g in enumerate(gradients)}
    variables = [tf.zeros(shape) for shape in shapes]
    members = [0, 1, 0, 0, 1, 0, 0, 0, 1]
    parts = packing.measured_parts(factors, variables, members)
    found = sorted(member for part in parts for member in part.members)
    assert found == list(range(len(shapes)))
    weights = rng.random(batch).astype("f4")
    for part in parts:
        assert {members[member] for member in part.members} == {part.group}
        together = sum(sizes[member] for member in part.members)
        assert len(part.members) == 1 or together <= BLOCK
        squares = sum(
            np.sum(np.square(flat[member]), axis=1) for member in part.members
        )
        np.testing.assert_allclose(part.measured.norms.squared, squares, rtol=1e-5)
        assert np.all(part.measured.norms.bounds >= squares)
        sums = part.sums(tf.constant(weights), part.measured.tensors)
        for member in part.members:
            expected = np.tensordot(weights, gradients[member], axes=1)
            assert tuple(sums[member].shape) == shapes[member]
            np.testing.assert_allclose(sums[member], expected, rtol=1e-4, atol=1e-5)
