"""Tests the digest that binds a step's noise to the sum it is added to."""

import numpy as np
import pytest
import tensorflow as tf

from tf_bandmf import noise, strategies, workloads
from tf_bandmf.noise import digests
from tf_bandmf.noise.digests import digest_key, keyed_digest
from tf_bandmf.noise.keys import NoiseKey
from tf_bandmf.noise.shared import near_length

KEY = NoiseKey.for_testing(0)


def hashed(key, numbers, level):
    """Computes a level of the hash in Python integers; returns its 32-bit numbers."""
    size = 2 * (1 + 512)
    keys = long(key[2 * size * level : 2 * size * (level + 1)])
    numbers = numbers + [0] * (-len(numbers) % 512 or 512 * (not numbers))
    values = []
    for start in range(0, len(numbers), 512):
        block = [1, *numbers[start : start + 512]]
        for k in (keys[::2], keys[1::2]):
            total = sum(a * x for a, x in zip(k, block, strict=True)) % 2**64
            values.append(int(np.uint32(total >> 32).view("i4")))
    return values


def integers(array):
    return [int(word) for word in np.asarray(array).view("<i4")]


def long(words):
    return [low % 2**32 + (high << 32) for low, high in zip(words[::2], words[1::2])]


def reference(key, pieces, more=()):
    """Computes the digest of several pieces of data in Python integers.

    `more` holds further numbers, which are hashed in the last step.
    """
    key, most, last = integers(key), 512 // (2 * len(pieces)), []
    for piece in map(integers, pieces):
        level = 0
        while len(piece) > most:
            piece, level = hashed(key, piece, level), level + 1
        last += piece
    return hashed(key, last + integers(more), digests.LEVELS - 1)


@pytest.mark.slow_cases("sizes0", "sizes3", "sizes2")
@pytest.mark.parametrize(
    "sizes", [(70_000, 2), (6, 66_000, 1_001), (3, 3_000, 131_072, 1_024), (80_001, 0)]
)
def test_pieces_are_hashed_apart_and_then_together(sizes):
    rng = np.random.default_rng(1)
    cut = [rng.normal(size=size).astype("f4") for size in sizes]
    key, more = digest_key(bytes(32), "plan"), np.array([1, 2, 3], "i4")
    digest = keyed_digest(tf.constant(key), [tf.constant(p) for p in cut], more)
    np.testing.assert_array_equal(digest, reference(key, cut, more))


@pytest.mark.slow_cases("2047", "70001", "1025")
@pytest.mark.parametrize("size", [1, 7, 512, 513, 1024, 1025, 2047, 70_001])
def test_it_is_what_its_formula_says(size):
    value = np.random.default_rng(size).normal(size=size).astype("f4")
    key = digest_key(bytes(32), "plan")
    expected = reference(key, [value])
    for by_xla in (False, True):
        digest = tf.function(keyed_digest, autograph=False, jit_compile=by_xla)
        words = digest(tf.constant(key), tf.constant(value))
        np.testing.assert_array_equal(words, expected)


@pytest.mark.parametrize("size", [0, 1, 1024, 40_000])
def test_words_of_any_number_are_digested_with_it(size):
    words = np.random.default_rng(size).integers(-(2**31), 2**31, size, np.int32)
    key = digest_key(bytes(32), "rows")
    # When a step is traced, the number of words is not known yet.
    spec = tf.TensorSpec([None], tf.int32)
    function = tf.function(digests.digest_of_any_length, autograph=False)
    traced = function.get_concrete_function(tf.constant(key), spec)
    given = tf.constant(key), tf.constant(words)
    padded = np.pad(words, (0, int(near_length(tf.constant(size))) - size))
    numbers, piece = integers(key), integers(padded)
    for level in range(digests.LEVELS - 1):
        piece = hashed(numbers, piece, level)
    expected = hashed(numbers, [*piece, size], digests.LEVELS - 1)
    for digest in (traced, function, digests.digest_of_any_length):
        np.testing.assert_array_equal(digest(*given), expected)


def test_another_plan_or_secret_has_other_digests():
    value = tf.ones([3000])
    keys = [digest_key(bytes(32), "a"), digest_key(bytes(32), "b")]
    keys.append(digest_key(bytes(31) + b"1", "a"))
    different = {tuple(keyed_digest(tf.constant(key), value).numpy()) for key in keys}
    assert len(different) == 3


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
    # The tolerance is five standard deviations, so correct code fails with a
    # probability below 2e-6.
    correlations = np.corrcoef(np.stack(normals))[np.triu_indices(3, 1)]
    assert np.abs(correlations).max() < 5 / 200
    for tensor in (tf.constant(key), tf.constant(key.view("i8"))):
        words = of.bound_key(tensor, tf.constant(-(2**62), tf.int64)).numpy()
        np.testing.assert_array_equal(words.view("u8"), bound[2])


def test_a_few_recent_keys_suffice():
    # BISR with four bands regenerates the normals of the three previous steps, so the
    # keys of four steps suffice.
    of = noise.NoiseGenerator(strategies.bisr(workloads.prefix_sum(12), 4), 10)
    keys, buffer = of.step_keys(KEY), tf.zeros([0, 10])
    assert of.key_terms == 4
    for step in range(12):
        recent = np.zeros([4, 2], np.uint64)
        for earlier in range(max(0, step - 3), step + 1):
            recent[earlier % 4] = keys[earlier]
        row, _ = of.row(tf.constant(recent), buffer, tf.constant(step, tf.int64))
        whole, _ = of.row(tf.constant(keys), buffer, tf.constant(step, tf.int64))
        np.testing.assert_array_equal(row, whole)


# Expected digests of the numbers 0, 1, ..., count - 1. The dictionary keys are the version
# of the digest and the count.
OF_VERSIONS = {
    4: {
        5: (1514028696, 1928296687),
        1000: (-1174328667, -36083547),
        100_001: (-62694164, 233355819),
    },
}


def test_another_digest_has_another_version():
    key = tf.constant(digest_key(bytes(range(32)), ""))
    of_sizes = {}
    for size in (5, 1000, 100_001):
        value = tf.constant(np.arange(size, dtype=np.int32).view(np.float32))
        of_sizes[size] = tuple(keyed_digest(key, value).numpy().tolist())
    assert of_sizes == OF_VERSIONS[digests.VERSION], "raise digests.VERSION"
