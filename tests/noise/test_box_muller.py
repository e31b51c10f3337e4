"""Normals against exact arithmetic: Philox in Python's integers, Box-Muller in float64."""

import math
import pathlib

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

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
    """Salmon et al., 2011, section 3.3, on integers: key of 64 bits, counter of 128."""
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
    """Box-Muller in float64, from the words of a pair and of its block."""
    a, b, c, angle = words
    first, second = shared_words
    units = (a & LOW) << 124  # of 2^-156
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


@pytest.mark.slow_cases("False-0-0-expected0")
@pytest.mark.parametrize(
    "key, counter, expected",
    [
        (0, 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
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
    """Those of the authors' library Random123 (kat_vectors, philox4x32 10)."""
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
    """Whoever changes these numbers changes the version and the ledger's format."""
    key = tf.constant(NoiseKey.for_testing(0).step_keys(1)[0])
    np.testing.assert_allclose(
        noise.standard_normals(key, 6),
        KNOWN_NORMALS,
        rtol=1e-6,
    )


@pytest.mark.slow_cases("True")
@pytest.mark.parametrize("jit_compile", [False, True])
def test_many_blocks_are_the_same_as_one_by_one(jit_compile):
    # Without XLA they are made in chunks; the last one is not full.
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


EXTREMES = (0, 1, 2, 0x3FFFFFFF, 0x40000000, 0x7FFFFFFE, 0x7FFFFFFF)


def extreme_words():
    """All combinations of extreme words, both halves, and numbers between."""
    rng = np.random.default_rng(0)
    grid = np.stack(np.meshgrid(*[EXTREMES] * 5, indexing="ij")).reshape(5, -1)
    random = rng.integers(2**31, size=(5, 4000))
    # The more leading zeros, the farther out.
    small = rng.integers(2**31, size=(5, 4000))
    small[0] = 0
    small[1] >>= rng.integers(32, size=4000)
    small[2] = np.where(
        small[1] == 0, small[2] >> rng.integers(32, size=4000), small[2]
    )
    lower = np.concatenate([grid, random, small], axis=1).astype(np.uint32)
    upper = lower.copy()
    upper[0] |= 0x80000000
    return np.concatenate([lower, upper], axis=1)


def reference_squared_radius(columns):
    ones = [(int(a), int(b), int(c), 0) for a, b, c, _, _ in columns.T]
    shared = [(int(g), int(h)) for _, _, _, g, h in columns.T]
    return np.array([reference_pair(w, s)[0] ** 2 for w, s in zip(ones, shared)])


@pytest.mark.parametrize("jit_compile", [False, True])
def test_radius_is_accurate_at_both_ends(jit_compile):
    columns = extreme_words()
    tensors = [words(*column) for column in columns]

    @tf.function(jit_compile=jit_compile)
    def squares(a, b, c, g, h):
        return box_muller.squared_radius(a, b, c, box_muller.shared_part(g, h))

    radii = squares(*tensors).numpy().astype(np.float64)
    expected = reference_squared_radius(columns)
    assert np.all(np.isfinite(radii))
    assert math.sqrt(radii.max()) == pytest.approx(box_muller.LARGEST_NORMAL, rel=1e-6)
    # Where the distance from u = 1 is below the least float32 number it may be flushed.
    normal = expected > 2.0**-124
    np.testing.assert_allclose(radii[normal], expected[normal], rtol=2.0**-22)
    assert np.all(radii[~normal] <= 2.0**-123)


def test_uniform_numbers_have_the_same_bits_with_and_without_xla():
    a, b, c, g, h = (words(*column) for column in extreme_words())

    def distances(a, b, c, g, h):
        return box_muller.distance(a, b, c, box_muller.shared_part(g, h))

    eager = distances(a, b, c, g, h).numpy()
    for jit_compile in (False, True):
        traced = tf.function(distances, jit_compile=jit_compile)(a, b, c, g, h)
        np.testing.assert_array_equal(
            traced.numpy().view(np.int32), eager.view(np.int32)
        )
    assert eager.min() == 2.0**-125 and eager.max() == 2.0**31


FIRST_BITS = (1, 32, 63, 94, 125)  # that of each word halves t so many times


@pytest.mark.parametrize("k", range(1, 157))
def test_tail_probabilities_are_those_of_the_normal_distribution(k):
    """The radius of `u = 2^-k` is exceeded where the first k bits are zero: in 2^-k.

    The sign bit is one of them. The least radius of those words, and the largest of the
    others, are the two neighbors of `sqrt(2 k log 2)`.
    """
    edge = 2.0 * k * math.log(2.0)
    zeros = [min(max(k - first, 0), 31) for first in FIRST_BITS]
    inside = [words(LOW >> zero) for zero in zeros]
    square = box_muller.squared_radius(*inside[:3], box_muller.shared_part(*inside[3:]))
    rest = 2.0 ** (k - 157)  # half a unit is always added
    np.testing.assert_allclose(square, edge - 2.0 * math.log1p(-rest), rtol=2.0**-22)
    if k == 1:
        return  # The others have u > 1/2.
    # The last of the k bits is one, and all after it are zero.
    word = max(i for i, first in enumerate(FIRST_BITS) if first < k)
    outside = [words(0)] * 5
    outside[word] = words(1 << (31 - (k - FIRST_BITS[word])))
    square = box_muller.squared_radius(
        *outside[:3], box_muller.shared_part(*outside[3:])
    )
    np.testing.assert_allclose(square, edge - 2.0 * math.log1p(rest), rtol=2.0**-22)


def test_moments():
    # Standard errors with 2^21 normals: 7e-4, 1e-3, 3e-3, 7e-3; false-alarm rate 1e-6.
    key = tf.constant(NoiseKey.for_testing(5).step_keys(1)[0])
    z = noise.standard_normals(key, 2**21).numpy().astype(np.float64)
    for power, expected, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        error = math.sqrt(variance / z.size)
        assert abs(np.mean(z**power) - expected) < 5 * error
    for edge in (2.0, 3.0, 4.0):
        probability = math.erfc(edge / math.sqrt(2.0))
        error = math.sqrt(probability / z.size)
        assert abs(np.mean(np.abs(z) > edge) - probability) < 5 * error
    # Small radii, too: the density of a pair at 0.
    squares = np.sum(z.reshape(-1, 2) ** 2, axis=1)
    small = np.count_nonzero(squares < 2e-3)
    assert abs(small - 1e-3 * squares.size) < 5 * math.sqrt(1e-3 * squares.size)
    assert len(np.unique(squares[squares < 2e-3])) > 0.99 * small


@pytest.mark.parametrize("noise_multiplier", [1e-12, 1.0])
def test_the_bound_is_below_a_thousandth_of_the_smallest_delta(noise_multiplier):
    pairs_of_rows = 1e15
    edge = box_muller.LARGEST_NORMAL * 2.0**-157 / math.pi
    edge *= math.sqrt(pairs_of_rows / 2.0) / noise_multiplier
    total = edge + pairs_of_rows * (2.0**-133 + 2.0**-129)
    assert total < 2e-24 < 1e-3 * checks.SMALLEST_DELTA


@pytest.mark.invariant(15)
def test_what_the_documents_say_of_the_normals_is_so():
    # The page has the bounds that `box_muller` derives and the tests above hold.
    page = pathlib.Path(__file__).parents[2] / "docs" / "guarantee.md"
    text = " ".join(page.read_text(encoding="utf-8").split())
    assert f"largest generated normal is {box_muller.LARGEST_NORMAL:.2f}" in text
    assert 2.0 * stats.norm.sf(box_muller.LARGEST_NORMAL) < 1e-47
    assert "below 10⁻⁴⁷" in text
    assert checks.SMALLEST_DELTA == 1e-20
    assert "10⁻²⁰, for up to 10¹⁵ entries" in text
    # Angles next to each other, where the sine is smallest.
    angles = tf.constant([0, 1, 2], tf.int32)
    _, sines = box_muller.cosine_and_sine(angles)
    np.testing.assert_allclose(np.diff(sines), 2 * [np.pi * 2.0**-31], rtol=1e-6)
    assert f"{np.pi * 2.0**-31:.1e}" == "1.5e-09"
    assert "1.5·10⁻⁹ apart" in text
