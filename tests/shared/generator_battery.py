"""Statistical tests of random bits, selected from NIST SP 800-22 and TestU01.

Each test takes 2^17 uint32 words, and returns a p-value that is uniform for random
bits. Sources: A. Rukhin et al., NIST SP 800-22 rev. 1a (2010), sections 2.1 to 2.6 and
2.11, which the tests name by number; P. L'Ecuyer and R. Simard, TestU01 (ACM TOMS 33,
2007): birthday spacings, collisions, gaps and weights of SmallCrush; G. Marsaglia: ranks
of binary matrices.
"""

import numpy as np
from scipy import special, stats

SIZE = 2**17


def bits(words):
    return np.unpackbits(words.astype("<u4").view(np.uint8), bitorder="little")


def _two_sided(p_low):
    return float(2.0 * min(p_low, 1.0 - p_low))


def _poisson(count, mean):
    tails = stats.poisson.sf(count - 1, mean), stats.poisson.cdf(count, mean)
    return float(min(1.0, 2.0 * min(tails)))


def monobit(words):
    """Tests that there are about as many ones as zeros (NIST, section 2.1)."""
    drawn = bits(words)
    z = (2.0 * drawn.sum() - drawn.size) / np.sqrt(drawn.size)
    return float(2.0 * special.ndtr(-abs(z)))


def block_frequency(words):
    """Tests that about half of the bits in 4096-bit blocks are ones (NIST, section 2.2)."""
    ones = bits(words).reshape(-1, 4096).sum(1)
    return float(stats.chi2.sf(np.sum((ones - 2048.0) ** 2) / 1024.0, ones.size))


def runs(words):
    """Tests the number of runs of equal bits (NIST, section 2.3)."""
    drawn = bits(words)
    changes = int(np.sum(drawn[1:] != drawn[:-1]))
    z = (changes - 0.5 * (drawn.size - 1)) / np.sqrt(0.25 * (drawn.size - 1))
    return float(2.0 * special.ndtr(-abs(z)))


def bit_positions(words):
    """Tests that the 32 bits of a word are uniform and pairwise independent."""
    matrix = ((words[:, None] >> np.arange(32, dtype=np.uint32)) & 1).astype(np.float64)
    gram = (2.0 * matrix - 1.0).T @ (2.0 * matrix - 1.0) / np.sqrt(len(words))
    means = (2.0 * matrix - 1.0).sum(0) / np.sqrt(len(words))
    z = np.concatenate([means, gram[np.triu_indices(32, 1)]])
    return float(min(1.0, 2.0 * special.ndtr(-np.abs(z).max()) * z.size))


def serial(words):
    """Tests that pairs of neighboring bytes are uniform (NIST, section 2.11)."""
    part = words.astype("<u4").view(np.uint8).astype(np.int64)
    counts = np.bincount(256 * part[0::2] + part[1::2], minlength=65536)
    return float(_two_sided(stats.chisquare(counts).pvalue))


def spectral(words):
    """Tests the largest spectral amplitude; NIST, section 2.6, counts large amplitudes."""
    signal = 2.0 * bits(words[: 2**14]).astype(np.float64) - 1.0
    power = np.abs(np.fft.rfft(signal))[1:-1] ** 2 / signal.size
    # The spectral powers are independent and exponential. The p-value comes from the
    # distribution of their maximum.
    return float(-np.expm1(power.size * np.log1p(-np.exp(-power.max()))))


def matrix_rank(words):
    """Tests the ranks of 32 x 32 matrices over GF(2) (NIST, section 2.5; Marsaglia)."""
    rows = words.reshape(-1, 32).copy()
    rank = np.zeros(len(rows), int)
    for column in range(32):
        bit = (rows >> np.uint32(column)) & 1
        has = bit.any(axis=1)
        pivot = np.argmax(bit, axis=1)
        pivots = np.where(has, rows[np.arange(len(rows)), pivot], 0).astype(np.uint32)
        rows ^= bit.astype(np.uint32) * pivots[:, None]
        rank += has
    full = np.prod(1.0 - 0.5 ** np.arange(1, 33))
    one_less = full * 2.0 * (1.0 - 0.5**32) ** 2 / (1.0 - 0.5) / 2.0
    expected = np.array([full, one_less, 1.0 - full - one_less]) * len(rows)
    counts = [np.sum(rank == 32), np.sum(rank == 31), np.sum(rank < 31)]
    return float(stats.chisquare(counts, expected).pvalue)


def gaps(words):
    """Tests the lengths of gaps between numbers below 1/16 (Knuth; SmallCrush)."""
    hits = np.flatnonzero(words < 2**28)
    length = np.minimum(np.diff(hits) - 1, 60)
    counts = np.bincount(length, minlength=61)
    probability = (1 / 16) * (15 / 16) ** np.arange(61)
    probability[60] = (15 / 16) ** 60
    return float(_two_sided(stats.chisquare(counts, probability * counts.sum()).pvalue))


def birthday_spacings(words):
    """Tests the number of equal spacings of 4096 birthdays in 2^32 days (Marsaglia)."""
    total = 0
    groups = words.reshape(-1, 4096).astype(np.int64)
    for group in groups:
        spacings = np.sort(np.diff(np.sort(group)))
        total += int(np.sum(spacings[1:] == spacings[:-1]))
    return _poisson(total, len(groups) * 4096**3 / 2.0**34)


def collisions(words):
    """Tests that the number of repeated words is Poisson distributed (SmallCrush)."""
    repeated = words.size - len(np.unique(words))
    return _poisson(repeated, words.size**2 / 2.0**33)


def weights(words):
    """Tests that the number of ones per word is binomially distributed (SmallCrush)."""
    counts = np.bincount(
        bits(words).reshape(-1, 32).sum(1, dtype=np.int64), minlength=33
    )
    expected = stats.binom.pmf(np.arange(33), 32, 0.5)

    def pooled(values):
        return np.concatenate([[values[:7].sum()], values[7:26], [values[26:].sum()]])

    expected = pooled(expected) * words.size
    return float(stats.chisquare(pooled(counts), expected).pvalue)


ALL = {
    test.__name__: test
    for test in (
        monobit,
        block_frequency,
        runs,
        bit_positions,
        serial,
        spectral,
        matrix_rank,
        gaps,
        birthday_spacings,
        collisions,
        weights,
    )
}
