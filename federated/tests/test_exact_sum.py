"""A round's sum is exact in any order, and rounding never enlarges an update."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tf_bandmf_federated import exact_sum, large_vectors
from tf_bandmf_federated.clipping import clip_update
from tf_bandmf_federated.exact_sum import ExactSum

CLIP = 0.7
# The sum of 100 updates is int32, and the sum of 1000 updates is int64.
MANY = [100, 1000]


def updates(number, size, seed=0):
    generator = np.random.default_rng(seed)
    scales = np.exp(generator.normal(size=[number, 1]) * 3.0)
    return (generator.normal(size=[number, size]) * scales).astype(np.float32)


def units_of(added, size, clip=CLIP):
    total = ExactSum(size, clip, len(added))
    for update in added:
        total.add([update])
    return total.units


def test_threads_and_parts_make_no_difference(monkeypatch):
    size = 300_000
    added = updates(3, size)
    whole = units_of(added, size)
    monkeypatch.setattr(large_vectors, "_CHUNK", 1 << 14)
    monkeypatch.setattr(large_vectors, "_THREADS", 3)
    split = ExactSum(size, CLIP, 3)
    for update in added[::-1]:
        split.add([update[:100_001].reshape(-1, 1), update[100_001:]])
    np.testing.assert_array_equal(split.units, whole)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1),
    st.sampled_from([1e-20, 1e-6, 0.3, 1.0, 1e6, 1e20]),
    st.sampled_from(MANY),
)
@pytest.mark.invariant(3)
def test_what_is_added_has_at_most_the_clip_norm(values, clip, most):
    update = np.array(values, np.float32)
    total = ExactSum(len(values), clip, most)
    total.add([update])
    added = total.units.astype(np.longdouble) * np.longdouble(total.unit)
    assert np.sqrt(np.sum(added**2)) <= clip
    # Each coordinate differs from the clipped update by at most about one unit.
    wanted = clip_update([update], clip).update[0].astype(np.longdouble)
    assert np.all(np.abs(added - wanted) <= total.unit * 1.5 + 1e-6 * np.abs(wanted))


@pytest.mark.parametrize("clip", [0.3, 1.0, 7.0])
@pytest.mark.invariant(3)
def test_one_device_more_does_not_round_the_others_otherwise(clip):
    # The sum of 127 updates fits into 32 bits, and the sum of 128 updates does not.
    # Equal updates have equal rounding errors, which add up.
    (update,) = updates(1, 10_000)
    sums = []
    for count in (127, 128):
        total = ExactSum(10_000, clip, count)
        for _ in range(count):
            total.add([update])
        sums.append(total.units.astype(np.longdouble) * np.longdouble(total.unit))
    assert np.sqrt(np.sum((sums[1] - sums[0]) ** 2)) <= clip


@pytest.mark.parametrize("most", [127, 1 << 32])
def test_sums_have_room_for_the_last_update(most):
    # This clip norm is slightly less than 2^24 units.
    clip = 2.0 * (1.0 - 2.0**-24)
    total = ExactSum(2, clip, most)
    assert total.unit == 2.0**-23
    largest = np.float32(clip * (1.0 - 2.0**-16))
    # Set the sum as if all updates except one had been added, each of maximum size.
    before = (most - 1) * 2**24
    for sign in (1, -1):
        total = ExactSum(2, clip, most)
        total.units[:] = sign * before
        total.add([np.array([0.0, sign * largest], np.float32)])
        units = sign * int(float(largest) / total.unit)
        assert total.units.tolist() == [sign * before, sign * before + units]


@pytest.mark.invariant(5)
def test_more_updates_than_there_is_room_for_are_refused():
    total = ExactSum(2, 1.0, 2)
    total.add([np.ones(2, np.float32)])
    # Updates that are not finite do not count toward the maximum number.
    for bad in (np.nan, np.inf, -np.inf):
        units = total.units.copy()
        assert not total.add([np.array([bad, 0.0], np.float32)]).is_finite
        np.testing.assert_array_equal(total.units, units)
    total.add([np.ones(2, np.float32)])
    before = total.units.copy()
    with pytest.raises(ValueError, match="already has its maximum"):
        total.add([np.ones(2, np.float32)])
    np.testing.assert_array_equal(total.units, before)
    with pytest.raises(ValueError, match="at most 4294967296 updates"):
        ExactSum(2, 1.0, exact_sum.MAX_UPDATES + 1)


@pytest.mark.parametrize("most", MANY)
def test_the_mean_with_noise_is_that_of_float64(most):
    size = 100_000
    total = ExactSum(size, CLIP, most)
    for update in updates(4, size):
        total.add([update])
    noise = np.random.default_rng(1).normal(size=size).astype(np.float32)
    sums = total.units * total.unit
    actual = total.mean_with([noise[:70_001], noise[70_001:]], 0.3, 5.0)
    # The noise in the mean has stddev 0.3 / 5 = 0.06. The mean is rounded to multiples
    # of 2^-15, the largest power of two below 0.06 / 1024.
    rounded = np.rint((sums + 0.3 * noise.astype(np.float64)) / 5.0 * 2**15) / 2**15
    np.testing.assert_array_equal(actual, rounded.astype(np.float32))


def impossible(weights, released, stddev, denominator):
    """Counts released weights that are impossible if the sum of the updates is zero.

    Such a weight does not result from any float32 noise.
    """

    def after(words):
        # Map integers to float32 numbers, preserving their order.
        bits = np.where(words < 0, -(2**31) - words - 1, words).astype(np.int32)
        total = ExactSum(len(weights), CLIP, 1)
        return weights + total.mean_with([bits.view(np.float32)], stddev, denominator)

    # This integer stands for a noise of about -16.
    low = np.full(len(weights), -0x41800000, np.int64)
    high = -low
    while np.any(high - low > 1):
        middle = (low + high) // 2
        is_below = after(middle) < released
        low, high = np.where(is_below, middle, low), np.where(is_below, high, middle)
    return int(np.sum(after(high) != released))


@pytest.mark.attack(
    "The last bits of released weights",
    tried="Adds an update to 200,000 weights, and counts the released weights that are "
    "impossible without the update, for any value of the float32 noise.",
    area="noise",
)
@pytest.mark.invariant(15)
@pytest.mark.parametrize("noise_multiplier", [0.5, 4.0])
def test_no_bits_of_a_release_exclude_an_update(noise_multiplier, figure):
    size, stddev = 200_000, noise_multiplier * CLIP
    rng = np.random.default_rng(0)
    weights = (rng.normal(size=size) * 0.05).astype(np.float32)
    noise = rng.normal(size=size).astype(np.float32)
    for scale in (0.0, CLIP, 0.001 * CLIP):
        total = ExactSum(size, CLIP, 1)
        total.add([np.full(size, scale / np.sqrt(size), np.float32)])
        released = weights + total.mean_with([noise], stddev, 3.0)
        actual = impossible(weights, released, stddev, 3.0)
        figure(f"norm {scale:g}: {actual} of {size:,} released weights are impossible")
        assert actual == 0


@pytest.mark.invariant(4)
def test_a_sum_without_all_of_its_noise_is_not_given_out():
    total = ExactSum(3, CLIP, 1)
    with pytest.raises(ValueError, match="noise must have 3 entries, found 2"):
        total.mean_with([np.ones(2, np.float32)], 1.0, 1.0)


@pytest.mark.parametrize("clip", [1e-30, 1e30])
def test_clip_norms_whose_units_float32_lacks_are_refused(clip):
    with pytest.raises(ValueError, match="Scale the updates"):
        ExactSum(3, clip, 1)
