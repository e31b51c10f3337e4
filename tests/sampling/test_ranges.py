"""Rows with values outside of the declared ranges get weight 0."""

import numpy as np
import pytest
import tensorflow as tf
from small_plans import small_plan

from tf_bandmf.sampling.changes import Ranges
from tf_bandmf.sampling.examples import Examples
from tf_bandmf.sampling.sources import ArrayExamples

X = np.array([[0.0, 1.0], [2.0, 0.5], [np.nan, 0.5], [1.0, 1.0]], np.float32)
Y = np.array([0, 1, 2, 9])


def held(ranges, x=X, y=Y, weights=None):
    rows = ArrayExamples(x, y, weights, len(y)).gather(tf.range(4, dtype=tf.int64))
    return Ranges(ranges)(rows, None)


@pytest.mark.parametrize(
    ("ranges", "weights"),
    [
        ({"x": (0, 1)}, [1, 0, 0, 1]),
        ({"y": (0, 2)}, [1, 1, 1, 0]),
        ({"x": (0, 1), "y": (0, 2)}, [1, 0, 0, 0]),
        ({"x": (0, np.inf)}, [1, 1, 0, 1]),
    ],
)
@pytest.mark.invariant(18)
def test_what_is_outside_has_weight_zero(ranges, weights):
    content = held(ranges)
    np.testing.assert_array_equal(content["sample_weight"], weights)
    outside = np.array(weights) == 0
    assert not np.any(content["x"].numpy()[outside])
    np.testing.assert_array_equal(content["x"].numpy()[~outside], X[~outside])
    np.testing.assert_array_equal(content["y"].numpy()[~outside], Y[~outside])


def test_weights_of_ones_own_are_kept():
    given = np.array([0.5, 0.5, 0.5, 0.25], np.float32)
    content = held({"x": (0, 1)}, weights=given)
    np.testing.assert_array_equal(content["sample_weight"], [0.5, 0, 0, 0.25])


def test_parts_have_ranges_of_their_own():
    x = {"age": np.array([30, 200, 40, -1]), "name": np.array(["a", "b", "c", "d"])}
    content = held({"x": {"age": (0, 120)}}, x)
    np.testing.assert_array_equal(content["sample_weight"], [1, 0, 1, 0])
    assert content["x"]["name"].numpy().tolist() == [b"a", b"", b"c", b""]
    content = held({"x": [(0, 1), (-1, 0)]}, (np.arange(4), -np.arange(4)))
    np.testing.assert_array_equal(content["sample_weight"], [1, 1, 0, 0])
    with pytest.raises(TypeError, match="contains strings"):
        held({"x": {"name": (0, 1)}}, x)
    with pytest.raises(ValueError, match="no tensor 'weight'"):
        held({"x": {"weight": (0, 1)}}, x)


def test_integers_of_64_bits_beside_a_bound_are_compared_as_doubles():
    x = np.array([[2**53], [2**53 + 2], [0], [-1]])
    content = held({"x": (0, 2.0**53)}, x)
    np.testing.assert_array_equal(content["sample_weight"], [1, 0, 1, 0])


def test_a_schedule_has_them_before_map_and_tells_runs_apart():
    plan = small_plan("identity", 4, 2, 1, noise_multiplier=1.0, test_seed=1)

    def double(x):
        return 2.0 * x

    ranged = plan.batches(X, Y, ranges={"x": (0, 1), "y": (0, 9)}, map=double)
    rows = {
        int(y): (x.numpy().tolist(), float(w))
        for batch in ranged.dataset()
        for x, y, w in zip(batch["x"], batch["y"], batch["sample_weight"])
        if float(w)
    }
    assert rows == {0: ([0.0, 2.0], 1.0), 9: ([2.0, 2.0], 1.0)}
    # The range of x applies before `map`, and not to the x that `map` returns.
    assert ranged.ranges == {"y": (0, 9)}
    others = plan.batches(X, Y, ranges={"x": (0, 2)}), plan.batches(X, Y)
    assert len({ranged.schedule_id, *(s.schedule_id for s in others)}) == 3


def test_units_of_several_rows_keep_what_was_declared():
    ranges = {"y": (0, 2)}
    units = Examples(
        2, X, Y, users=["a", "a", "b", "b"], rows_per_user=2, ranges=ranges
    )
    assert units.ranges == ranges
