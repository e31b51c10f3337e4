"""The digest that binds a step's noise to the sum that it is added to."""

import functools

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st

from tf_bandmf import noise, strategies, workloads
from tf_bandmf.noise import digests
from tf_bandmf.noise.digests import digest_key, keyed_digest
from tf_bandmf.noise.keys import NoiseKey

KEY = NoiseKey.for_testing(0)


def hashed(key, words, level):
    """Words of 64 bits after a level, by Python's integers."""
    own = long(key[2048 * level : 2048 * (level + 1)])
    words = words + [0] * (512 - len(words))
    blocks = len(words) // 512
    found = []
    for k in (own[:512], own[512:]):
        for column in range(blocks):
            sums = [(words[i * blocks + column] + k[i]) % 2**64 for i in range(512)]
            found.append(sum((s % 2**32) * (s >> 32) for s in sums) % 2**64)
    return found + words[512 * blocks :]


def last(key, words):
    result, halves = [], [half for word in words for half in (word % 2**32, word >> 32)]
    for word in range(2):
        ks = long(key[-20:][10 * word : 10 * word + 10])
        total = ks[0] + sum(k * x for k, x in zip(ks[1:], halves, strict=True))
        result.append(total % 2**64 >> 32)
    return np.array(result, np.uint32).view(np.int32)


def integers(array):
    return [int(word) for word in np.asarray(array).view("<u4")]


def long(words):
    return [low + (high << 32) for low, high in zip(words[::2], words[1::2])]


def reference(key, value, more=()):
    key, numbers = integers(key), integers(np.asarray(value, "<f4"))
    even = len(numbers) // 2 * 2
    words, rest = long(numbers[:even]), numbers[even:] + integers(more)
    for level in range(digests.LEVELS):
        is_last = len(words) + len(rest) <= 512
        if is_last:
            words, rest = words + rest, []
        words, rest = hashed(key, words, level) + rest, []
        if is_last:
            return last(key, words)


def reference_of_parts(key, words):
    key, words = integers(key), integers(words)
    found = []
    for first in range(0, len(words), 2**15):
        part = words[first : first + 2**15]
        part = long(part + [0] * (2**15 - len(part)))
        found += hashed(key, hashed(key, part, 0), 1)
    found += [0] * (2**13 - len(found))
    for level in range(2, digests.LEVELS):
        found = hashed(key, found, level)
    return last(key, found)


@pytest.mark.slow_cases("sizes0", "sizes2", "sizes1", "sizes4")
@pytest.mark.parametrize(
    "sizes",
    [
        (70_000, 2),
        (6, 66_000, 70_002, 10),
        (2, 3_000, 131_072, 400_000, 1_024),
        (300_001, 1),
        (80_000, 0),
    ],
)
def test_pieces_have_the_digest_of_the_whole(sizes):
    value = np.random.default_rng(1).normal(size=sum(sizes)).astype("f4")
    key = tf.constant(digest_key(bytes(32), "plan"))
    cut = [tf.constant(part) for part in np.split(value, np.cumsum(sizes)[:-1])]
    more = tf.constant([1, 2, 3])
    expected = keyed_digest(key, tf.constant(value), more)
    np.testing.assert_array_equal(keyed_digest(key, cut, more), expected)
    np.testing.assert_array_equal(keyed_digest(key, cut, more, compiles=True), expected)
    last = tf.tensor_scatter_nd_add(cut[-1], [[0]], [1.0]) if sizes[-1] else cut[-1]
    if sizes[-1]:
        changed = keyed_digest(key, [*cut[:-1], last], more)
        assert np.any(changed != expected)


@pytest.mark.slow_cases("5000", "2047", "300001", "300000", "1025")
@pytest.mark.parametrize("size", [1, 7, 1023, 1024, 1025, 2047, 5000, 300_000, 300_001])
def test_it_is_what_its_formula_says(size):
    value = np.random.default_rng(size).normal(size=size).astype("f4")
    key = digest_key(bytes(32), "plan")
    found = keyed_digest(tf.constant(key), tf.constant(value))
    np.testing.assert_array_equal(found, reference(key, value))
    found = keyed_digest(tf.constant(key), tf.constant(value), compiles=True)
    np.testing.assert_array_equal(found, reference(key, value))
    # As accelerators have it, and programs that XLA compiles as a whole.
    for compiled in (True, False):
        plain = tf.function(digests.plain_digest, jit_compile=compiled, autograph=False)
        np.testing.assert_array_equal(
            plain(tf.constant(key), tf.constant(value)), found
        )


@pytest.mark.parametrize("half_bits", [1, 2, 3])
@pytest.mark.invariant(8)
def test_products_of_two_words_have_any_difference_as_seldom_as_the_bound(half_bits):
    # Words of a few bits instead of 64: all pairs of words, and all keys.
    half = 2**half_bits
    words = np.arange(half**2)

    def most_frequent(product):
        value = product((words[:, None] + words) % half**2) % half**2
        differences = (value[:, None] - value) % half**2
        pairs = differences[~np.eye(half**2, dtype=bool)]
        return max(np.bincount(pair).max() for pair in pairs) / half**2

    assert most_frequent(lambda word: word % half * (word // half)) <= 1 / half
    # The control: a product that does not see the upper half.
    assert most_frequent(lambda word: word % half * (word % half)) > 1 / half


@pytest.mark.slow_cases("70000-2", "40000-1")
@pytest.mark.parametrize("usual_parts", [1, 2])
@pytest.mark.parametrize("size", [0, 1, 1024, 32_767, 40_000, 70_000])
def test_words_of_any_number_are_digested_with_it(size, usual_parts):
    words = np.random.default_rng(size).integers(-(2**31), 2**31, size, np.int32)
    key = digest_key(bytes(32), "rows")
    function = tf.function(
        functools.partial(digests.digest_of_any_length, usual_parts=usual_parts),
        autograph=False,
    )
    found = function(tf.constant(key), tf.constant(words))
    counted = np.concatenate([[size], words]).astype("i4")
    np.testing.assert_array_equal(found, reference_of_parts(key, counted))
    # In a step nobody knows their number while it is traced.
    spec = tf.TensorSpec([None], tf.int32)
    traced = function.get_concrete_function(tf.constant(key), spec)
    np.testing.assert_array_equal(traced(tf.constant(key), tf.constant(words)), found)


@hypothesis.settings(max_examples=200, deadline=None, derandomize=True)
@hypothesis.given(place=st.integers(0, 4999), bit=st.integers(0, 31))
@pytest.mark.invariant(8)
def test_each_bit_of_a_sum_changes_the_digest(place, bit):
    key = tf.constant(digest_key(bytes(32), "plan"))
    words = np.random.default_rng(0).integers(0, 2**32, 5000, np.uint32)
    before = keyed_digest(key, tf.constant(words.view("f4")))
    words[place] ^= np.uint32(1 << bit)
    assert np.any(before != keyed_digest(key, tf.constant(words.view("f4"))))


@pytest.mark.slow
def test_digests_of_two_sums_collide_as_seldom_as_random_words():
    # 16 of the 64 bits, over 20,000 keys: Poisson with mean 0.31; more than 5 have a
    # probability of 1e-6.
    a, b = tf.zeros([10]), tf.concat([tf.zeros([9]), [1e-45]], 0)
    rng = np.random.default_rng(1)
    size = len(digest_key(bytes(32), ""))
    equal = 0
    for _ in range(2000):
        key = tf.constant(rng.integers(-(2**31), 2**31, size, np.int64).astype("i4"))
        difference = (keyed_digest(key, a) - keyed_digest(key, b)).numpy()
        equal += int(difference[0] & 0xFFFF == 0) + int(difference[1] & 0xFFFF == 0)
    assert equal <= 5


def test_another_plan_or_secret_has_other_digests():
    value = tf.ones([3000])
    keys = [digest_key(bytes(32), "a"), digest_key(bytes(32), "b")]
    keys.append(digest_key(bytes(31) + b"1", "a"))
    found = {tuple(keyed_digest(tf.constant(key), value).numpy()) for key in keys}
    assert len(found) == 3


@pytest.mark.slow_cases("chacha20")
@pytest.mark.parametrize("generator", ["philox", "chacha20"])
@pytest.mark.invariant(8)
def test_normals_of_two_digests_are_independent(generator):
    of = noise.NoiseGenerator(
        strategies.identity(2), 40_000, jit_compile=False, generator=generator
    )
    key = of.step_keys(KEY)[0]
    bound = [of.bound_key(key, np.int64(digest)) for digest in (0, 1, -(2**62))]
    normals = [
        noise.standard_normals(tf.constant(k), 40_000, jit_compile=False) for k in bound
    ]
    plain = noise.standard_normals(tf.constant(key), 40_000, jit_compile=False)
    np.testing.assert_array_equal(normals[0], plain)
    # Five standard deviations: false-alarm rate below 2e-6.
    correlations = np.corrcoef(np.stack(normals))[np.triu_indices(3, 1)]
    assert np.abs(correlations).max() < 5 / 200
    for tensor in (tf.constant(key), tf.constant(key.view("i8"))):
        found = of.bound_key(tensor, tf.constant(-(2**62), tf.int64)).numpy()
        np.testing.assert_array_equal(found.view("u8"), bound[2])


def test_a_few_recent_keys_suffice():
    # BISR of four bands draws three earlier normals again.
    of = noise.NoiseGenerator(strategies.bisr(workloads.prefix_sum(12), 4), 10)
    keys, buffer = of.step_keys(KEY), tf.zeros([0, 10])
    assert of.key_terms == 4
    for step in range(12):
        recent = np.zeros([4, 2], np.uint64)
        for earlier in range(max(0, step - 3), step + 1):
            recent[earlier % 4] = keys[earlier]
        found, _ = of.row(tf.constant(recent), buffer, tf.constant(step, tf.int64))
        whole, _ = of.row(tf.constant(keys), buffer, tf.constant(step, tf.int64))
        np.testing.assert_array_equal(found, whole)


# Digests of the numbers 0, 1, ... by version: a new line for a new one, none is changed.
OF_VERSIONS = {
    2: {
        5: (1359076316, -1054989825),
        1000: (2136195296, 1345160993),
        100_001: (1048171663, 261663488),
    }
}


def test_another_digest_has_another_version():
    key = tf.constant(digest_key(bytes(range(32)), ""))
    found = {}
    for size in (5, 1000, 100_001):
        value = tf.constant(np.arange(size, dtype=np.int32).view(np.float32))
        found[size] = tuple(keyed_digest(key, value).numpy().tolist())
    assert found == OF_VERSIONS[digests.VERSION], "raise digests.VERSION"
