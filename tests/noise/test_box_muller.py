"""Compares normals with Philox in Python integers and Box-Muller in float64."""

import math

import numpy as np
import pytest
import tensorflow as tf

from tf_bandmf import noise
from tf_bandmf.accounting import checks
from tf_bandmf.noise import box_muller
from tf_bandmf.noise.keys import NoiseKey
from tf_bandmf.noise.philox import philox

PAIRS = 2048
LOW = 0x7FFFFFFF
KNOWN_NORMALS = (
    2.13593077,
    -0.535838271,
    -1.37908962,
    -1.26183568,
    -1.26242491,
    0.490366882,
)


def reference_philox(key, counter):
    """Computes Philox (Salmon et al., 2011, section 3.3) in Python integers."""
    keys = [key & 0xFFFFFFFF, key >> 32]
    words = [(counter >> 32 * i) & 0xFFFFFFFF for i in range(4)]
    for _ in range(10):
        first, second = words[0] * 0xD2511F53, words[2] * 0xCD9E8D57
        words = [
            (second >> 32) ^ words[1] ^ keys[0],
            second & 0xFFFFFFFF,
            (first >> 32) ^ words[3] ^ keys[1],
            first & 0xFFFFFFFF,
        ]
        keys[0] = (keys[0] + 0x9E3779B9) & 0xFFFFFFFF
        keys[1] = (keys[1] + 0xBB67AE85) & 0xFFFFFFFF
    return words


def reference_pair(words, shared_words):
    """Returns a pair of normals, computed in float64.

    Args:
      words: the four random words of this pair.
      shared_words: the two random words that all pairs of a block share.
    """
    a, b, c, angle = words
    first, second = shared_words
    # `units` is the uniform number in units of 2^-156.
    units = (a & LOW) << 124
    units += ((b & LOW) << 93) + ((c & LOW) << 62)
    units += ((first & LOW) << 31) + (second & LOW)
    t = math.ldexp(2 * units + 1, -157)
    u = -math.log1p(-t) if a >> 31 else -math.log(t)
    r, turn = math.sqrt(2.0 * u), math.ldexp(angle, -31) * math.pi
    return r * math.cos(turn), r * math.sin(turn)


def reference_normals(step_key, block):
    key, upper = (int(part) for part in step_key)
    shared = reference_philox(key, ((1 << 63) + block) | upper << 64)[:2]
    pairs = [
        reference_pair(reference_philox(key, block * PAIRS + i | upper << 64), shared)
        for i in range(PAIRS)
    ]
    return np.ravel(pairs)


@pytest.mark.parametrize(
    "key, counter, expected",
    [
        (
            2**64 - 1,
            2**128 - 1,
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        ),
        (
            0x299F31D0A4093822,
            0x0370734413198A2E85A308D3243F6A88,
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
@pytest.mark.parametrize("jit_compile", [False, True])
def test_known_answers_of_philox(key, counter, expected, jit_compile):
    """Philox gives the known answers of Random123, the library of its authors.

    The answers are from the file kat_vectors (philox4x32 10).
    """
    assert tuple(reference_philox(key, counter)) == expected
    step_key = tf.constant([key, counter >> 64], tf.uint64)
    low = tf.constant([counter & (2**64 - 1)], tf.uint64)
    function = tf.function(philox, jit_compile=jit_compile)
    assert tuple(int(word[0]) for word in function(step_key, low)) == expected


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("block", [0, 2**21 - 1, 2**40])
def test_normals_are_those_of_float64(block, jit_compile):
    step_key = NoiseKey.for_testing(0).step_keys(1)[0]
    normals = noise.standard_normals(
        tf.constant(step_key),
        2 * PAIRS,
        tf.constant(block, tf.int64),
        jit_compile=jit_compile,
    )
    np.testing.assert_allclose(
        normals, reference_normals(step_key, block), rtol=3e-7, atol=2e-7
    )


def test_known_answers_of_normals():
    """The normals of a fixed key are the same in every version of the code.

    A change of these normals would require a new version of the package and a new
    format of the ledger.
    """
    key = tf.constant(NoiseKey.for_testing(0).step_keys(1)[0])
    np.testing.assert_allclose(
        noise.standard_normals(key, 6),
        KNOWN_NORMALS,
        rtol=1e-6,
    )


@pytest.mark.slow_cases("True")
@pytest.mark.parametrize("jit_compile", [False, True])
def test_many_blocks_are_the_same_as_one_by_one(jit_compile):
    # Without XLA, blocks are computed in chunks. Here, the last chunk is not full.
    key = tf.constant(NoiseKey.for_testing(3).step_keys(1)[0])
    blocks, last = 70, 100
    whole = noise.standard_normals(
        key, (blocks - 1) * 4096 + last, jit_compile=jit_compile
    )
    for i in (0, 31, 32, 64, blocks - 1):
        part = noise.standard_normals(key, 4096, i, jit_compile=jit_compile)
        same = whole[i * 4096 : (i + 1) * 4096]
        np.testing.assert_array_equal(same, part[: len(same)])


def words(*values):
    return tf.constant(np.array(values, np.uint32).view(np.int32))


# Five random words determine the uniform number of a radius. These are the indices of
# the first bit that each of them sets in this number.
FIRST_BITS = (1, 32, 63, 94, 125)


@pytest.mark.parametrize("k", range(1, 157))
def test_tail_probabilities_are_those_of_the_normal_distribution(k):
    """The radius exceeds `sqrt(2 k log 2)` if and only if the first k bits are zero.

    Therefore, the radius exceeds this value with a probability of exactly 2^-k. One of
    the k bits is the sign bit. The test computes the smallest radius for which all k
    bits are zero, and the largest radius for which one of them is not zero. The value
    `sqrt(2 k log 2)` is between these two radii.
    """
    edge = 2.0 * k * math.log(2.0)
    zeros = [min(max(k - first, 0), 31) for first in FIRST_BITS]
    inside = [words(LOW >> zero) for zero in zeros]
    square = box_muller.squared_radius(*inside[:3], box_muller.shared_part(*inside[3:]))
    rest = 2.0 ** (k - 157)  # The generator adds 2^-157, half of u's last bit, to u.
    np.testing.assert_allclose(square, edge - 2.0 * math.log1p(-rest), rtol=2.0**-22)
    assert math.sqrt(square[0]) <= box_muller.LARGEST_NORMAL * (1.0 + 2.0**-22)
    # With the other sign bit, the radius is that of `1 - u`. These are the smallest
    # radii, and some of them are flushed to zero. For k = 1, the test stops here,
    # because the other sign bit gives u > 1/2.
    if k == 1:
        return
    near_one = words((LOW >> zeros[0]) | 0x80000000)
    small = box_muller.squared_radius(
        near_one, *inside[1:3], box_muller.shared_part(*inside[3:])
    )
    least = -2.0 * math.log1p(-(2.0**-k) * (1.0 - rest))
    np.testing.assert_allclose(small, least, rtol=2.0**-22, atol=2.0**-123)
    # If the last of the k bits is one and all other bits are zero, the radius is the
    # largest for which not all k bits are zero.
    word = max(i for i, first in enumerate(FIRST_BITS) if first < k)
    outside = [words(0)] * 5
    outside[word] = words(1 << (31 - (k - FIRST_BITS[word])))
    square = box_muller.squared_radius(
        *outside[:3], box_muller.shared_part(*outside[3:])
    )
    np.testing.assert_allclose(square, edge - 2.0 * math.log1p(rest), rtol=2.0**-22)


@pytest.mark.parametrize("noise_multiplier", [1e-12, 1.0])
def test_the_bound_is_below_a_thousandth_of_the_smallest_delta(noise_multiplier):
    pairs_of_rows = 1e15
    edge = box_muller.LARGEST_NORMAL * 2.0**-157 / math.pi
    edge *= math.sqrt(pairs_of_rows / 2.0) / noise_multiplier
    total = edge + pairs_of_rows * (2.0**-133 + 2.0**-129)
    assert total < 2e-24 < 1e-3 * checks.SMALLEST_DELTA
