"""Random banded matrices, and brute-force sensitivities over participation patterns."""

import itertools

import numpy as np


def random_rows(rng, n, w):
    """Returns the rows [n, w] of a well-conditioned banded matrix, padded with zeros."""
    rows = rng.uniform(-1.0, 1.0, size=(n, w)) / w
    rows[:, 0] = rng.uniform(0.7, 1.5, size=n)
    for j in range(1, w):
        rows[:j, j] = 0.0
    return rows


def min_sep_patterns(n, b, k):
    """Yields participation patterns: up to k of n steps, at least b steps apart."""
    for size in range(1, k + 1):
        for pattern in itertools.combinations(range(n), size):
            if all(j - i >= b for i, j in zip(pattern, pattern[1:])):
                yield list(pattern)


def fixed_patterns(n, b):
    """Returns participation patterns with one fixed step in each epoch of b steps."""
    return [list(range(i, n, b)) for i in range(b)]


def brute_force(dense, patterns):
    """Returns the largest sensitivity over all patterns and signs of contributions."""
    best = 0.0
    for pattern in patterns:
        signs = np.array(list(itertools.product([1.0, -1.0], repeat=len(pattern) - 1)))
        signs = np.concatenate([np.ones((len(signs), 1)), signs], axis=1)
        best = max(best, np.linalg.norm(dense[:, pattern] @ signs.T, axis=0).max())
    return best
