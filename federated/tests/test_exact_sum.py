"""The sum of a round: of any order, exact, and no longer than what is added."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tf_bandmf_federated import exact_sum, large_vectors
from tf_bandmf_federated.clipping import clip_update
from tf_bandmf_federated.exact_sum import ExactSum

CLIP = 0.7


def updates(number, size, seed=0):
    generator = np.random.default_rng(seed)
    scales = np.exp(generator.normal(size=[number, 1]) * 3.0)
    return (generator.normal(size=[number, size]) * scales).astype(np.float32)


def units_of(added, size, clip=CLIP):
    total = ExactSum(size, clip)
    for update in added:
        total.add([update])
    return total.units


def test_the_order_makes_no_difference_to_a_single_bit():
    added = updates(5, 40)
    found = {units_of(order, 40).tobytes() for order in itertools.permutations(added)}
    assert len(found) == 1
    # The control: floats that are added up do depend on it.
    orders = itertools.permutations([clip_update([u], CLIP).update[0] for u in added])
    assert len({sum(order).tobytes() for order in orders}) > 1


def test_threads_and_parts_make_no_difference(monkeypatch):
    size = 300_000
    added = updates(3, size)
    whole = units_of(added, size)
    monkeypatch.setattr(large_vectors, "_CHUNK", 1 << 14)
    monkeypatch.setattr(large_vectors, "_THREADS", 3)
    split = ExactSum(size, CLIP)
    for update in added[::-1]:
        split.add([update[:100_001].reshape(-1, 1), update[100_001:]])
    np.testing.assert_array_equal(split.units, whole)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1),
    st.sampled_from([1e-20, 1e-6, 0.3, 1.0, 1e6, 1e20]),
)
def test_invariant_3_what_is_added_has_at_most_the_clip_norm(values, clip):
    update = np.array(values, np.float32)
    total = ExactSum(len(values), clip)
    total.add([update])
    added = total.units.astype(np.longdouble) * np.longdouble(total.unit)
    assert np.sqrt(np.sum(added**2)) <= clip
    assert np.all(total.units == np.trunc(total.units))
    # And it is the update, but for a unit in each coordinate.
    wanted = clip_update([update], clip).update[0].astype(np.longdouble)
    assert np.all(np.abs(added - wanted) <= total.unit * 1.5 + 1e-6 * np.abs(wanted))


def test_sums_of_whole_numbers_are_exact_up_to_the_last_update():
    total = ExactSum(2, 1.0)
    assert total.unit == 2.0**-29
    # As if all but one had come, with the largest coordinate that there is.
    total.units[:] = (exact_sum.MAX_UPDATES - 1) * 2.0**30 - 1
    total._count = exact_sum.MAX_UPDATES - 1
    total.add([np.array([1.0 - 2.0**-20, -1e-4], np.float32)])
    expected = np.array([(1.0 - 2.0**-20) * 2**29, np.trunc(np.float32(-1e-4) * 2**29)])
    before = (exact_sum.MAX_UPDATES - 1) * 2**30 - 1
    assert total.units.tolist() == [before + int(e) for e in expected]
    with pytest.raises(ValueError, match="at most 8388608 updates"):
        total.add([np.zeros(2, np.float32)])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_invariant_5_a_value_that_is_not_finite_adds_nothing(bad):
    total = ExactSum(3, 1.0)
    found = total.add([np.array([1.0, bad, 0.0], np.float32)])
    assert not found.is_finite and not np.any(total.units)


def test_the_mean_with_noise_is_that_of_float64():
    size = 100_000
    total = ExactSum(size, CLIP)
    for update in updates(4, size):
        total.add([update])
    noise = np.random.default_rng(1).normal(size=size).astype(np.float32)
    sums = total.units * total.unit
    found = total.mean_with(noise, 0.3, 5.0)
    np.testing.assert_array_equal(
        found, ((sums + 0.3 * noise.astype(np.float64)) / 5.0).astype(np.float32)
    )


@pytest.mark.parametrize("clip", [1e-30, 1e30])
def test_clip_norms_whose_units_float32_lacks_are_refused(clip):
    with pytest.raises(ValueError, match="scale the updates"):
        ExactSum(3, clip)
