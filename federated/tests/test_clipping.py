"""Clipping in NumPy never underestimates the norm of an update."""

import fractions

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tf_bandmf_federated.clipping import clip_update, norm_of
from tf_bandmf_federated.tff.updates import bounded_record

VALUES = st.floats(width=32, allow_nan=False, allow_infinity=False)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(
    hnp.arrays(np.float32, hnp.array_shapes(max_dims=2, max_side=30), elements=VALUES),
    st.sampled_from([1e-6, 0.3, 1.0, 1e6]),
)
@pytest.mark.invariant(17)
def test_the_norm_is_at_most_the_clip_norm(array, clip):
    actual = clip_update([array], clip)
    exact = np.linalg.norm(actual.update[0].astype(np.longdouble).ravel())
    assert exact <= clip
    assert actual.is_finite
    before = np.linalg.norm(array.astype(np.longdouble).ravel())
    # Norms are rounded up by a relative error below 2^-35.
    if abs(before / clip - 1.0) > 2.0**-35:
        assert actual.was_clipped == (before > clip)
    if not actual.was_clipped:
        assert actual.update[0].tobytes() == array.tobytes()
    if before > clip * 1.001 and clip >= 0.3:
        assert exact >= clip * 0.999


# The number 1e300 overflows in float32.
@pytest.mark.parametrize("bad", [np.nan, -np.inf, 1e300])
@pytest.mark.invariant(5)
def test_a_value_that_is_not_finite_makes_zeros(bad):
    actual = clip_update([np.array([1.0, bad]), np.ones(3)], 1.0)
    assert all(not np.any(array) for array in actual.update)
    assert not actual.is_finite


@pytest.mark.parametrize("size", [1, 63, 1000, 100_000])
@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 1e25])
@pytest.mark.parametrize("law", ["constant", "normal", "one large"])
def test_what_was_clipped_is_not_clipped_again(size, scale, law):
    rng = np.random.default_rng(size)
    update = {
        "constant": np.full(size, 1.7),
        "normal": rng.normal(size=size) + 2.0,
        "one large": np.r_[1e6, rng.normal(size=size - 1)],
    }[law]
    clip = 0.4 * scale
    once = clip_update([(update * scale).astype(np.float32)], clip)
    assert once.was_clipped
    again = clip_update(once.update, clip)
    assert not again.was_clipped
    assert again.update[0].tobytes() == once.update[0].tobytes()
    assert norm_of(once.update) >= clip * (1.0 - 2.0**-16)


@pytest.mark.invariant(17)
def test_a_quick_norm_decides_nothing_that_it_cannot_know():
    # Clipping is correct even if squares underflow or overflow in float32, or if the
    # norm is just above or just below the clip norm.
    assert clip_update([np.full(10_000, 1e-24, np.float32)], 1e-23).was_clipped
    assert clip_update([np.full(10_000, 1e20, np.float32)], 1e23).was_clipped is False
    update = [np.full(4, 0.5, np.float32)]
    assert clip_update(update, 1.0 - 2.0**-30).was_clipped
    assert not clip_update(update, 1.0 + 2.0**-30).was_clipped


@pytest.mark.parametrize("small", [2.0**-12.5, 2.0**-12, 2.0**-11.9, 2.0**-64])
@pytest.mark.invariant(17)
def test_squares_that_a_sum_loses_are_in_the_norm(small):
    # In float32, adding a small square to a large one does not change the sum.
    update = np.full([50, 64], small, np.float32)
    update[:, 0] = 1.0
    for clip in (1.0, 7.0):
        once = clip_update([update], clip).update[0]
        exact = sum(fractions.Fraction(float(v)) ** 2 for v in once.ravel())
        assert clip**2 * (1.0 - 2.0**-15) <= exact <= fractions.Fraction(clip) ** 2


@pytest.mark.invariant(17)
def test_a_norm_is_rounded_up():
    # float32 numbers are rational, so fractions give the squared norm exactly.
    values = np.random.default_rng(3).normal(size=70_000).astype(np.float32)
    exact = sum(fractions.Fraction(float(v)) ** 2 for v in values)
    actual = fractions.Fraction(norm_of([values, values[:1]]))
    exact += fractions.Fraction(float(values[0])) ** 2
    assert exact <= actual**2 <= exact * fractions.Fraction(1.0 + 2.0**-34)


@pytest.mark.parametrize("size", [1, 1_000, 100_000])
@pytest.mark.parametrize("scale", [3.0, 3e30])
@pytest.mark.invariant(17)
def test_what_tensorflow_clips_is_no_longer_either(size, scale):
    rng = np.random.default_rng(size)
    for update in (np.ones(size), rng.normal(size=size), rng.pareto(1.0, size=size)):
        for clip in (0.3, 1.0, 7.0):
            before = np.float32(update / np.linalg.norm(update) * clip * scale)
            record, counts = bounded_record({"w": tf.constant(before)}, clip)
            norm = np.linalg.norm(record["w"].numpy().astype(np.longdouble))
            assert clip * (1 - 1e-4) < norm <= clip
            assert int(counts["clipped_clients"]) == 1
