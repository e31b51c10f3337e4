"""At which steps a canary takes part: the worst that is permitted, or by chance."""

from __future__ import annotations

import numpy as np

from tf_bandmf.matrices import LowerTriangular
from tf_bandmf.participation import Participation

# Entries of an intermediate array held at once.
_CHUNK = 8_000_000


def worst_pattern(matrix: LowerTriangular, participation: Participation) -> np.ndarray:
    """What one example may add at each step to move `C x` most: signs and zeros.

    Among all patterns `i, i + b, i + 2b, ...` of at most k steps, with signs that add
    up. For the strategies and participations of this library, the norm of `C x` is the
    sensitivity where that is exact for such patterns; otherwise it is smaller, and the
    audit is less sharp.

    Args:
      matrix: C.
      participation: b and k; without amplification.

    Returns:
      x, float64, shape [n], entries -1, 0 and 1.
    """
    n = matrix.num_rows
    b, k = participation.separation(), participation.participations(n)
    last = min(b, n) if participation.has_fixed_positions else n
    best, found = -1.0, np.zeros(n)
    chunk = max(1, _CHUNK // n)
    for start in range(0, last, chunk):
        starts = np.arange(start, min(start + chunk, last))
        patterns = np.zeros((n, starts.size))
        moved = np.zeros((n, starts.size))
        for number in range(k):
            steps = starts + number * b
            exists = steps < n
            if not exists.any():
                break
            one = np.zeros_like(patterns)
            one[steps[exists], np.flatnonzero(exists)] = 1.0
            column = matrix.matmul(one)
            signs = np.where(np.sum(column * moved, axis=0) < 0.0, -1.0, 1.0)
            patterns += signs * one
            moved += signs * column
        norms = np.sum(moved**2, axis=0)
        if norms.max() > best:
            best, found = float(norms.max()), patterns[:, int(norms.argmax())]
    return found


def sampled_patterns(
    participation: Participation,
    num_steps: int,
    num_canaries: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """When the sampler of a participation takes each canary: 0 and 1.

    The canaries are the first examples of the data set; if there are more of them than
    examples, of several data sets.

    Returns:
      Float64, shape [num_canaries, num_steps].

    Raises:
      TypeError: if the caller makes the batches.
    """
    size = participation.num_examples  # type: ignore[attr-defined]
    parts = []
    for first in range(0, num_canaries, size):
        seeds: dict[int, int] = {}

        def words(step: int, count: int, seeds: dict[int, int] = seeds) -> np.ndarray:
            seed = seeds.setdefault(step, int(rng.integers(2**63)))
            drawn = np.random.default_rng(seed)
            return drawn.integers(0, 2**64, count, dtype=np.uint64)

        sampler = participation.sampler(words)
        taken = np.zeros((size, num_steps))
        for step in range(num_steps):
            taken[sampler.example_indices(step), step] = 1.0
        parts.append(taken[: num_canaries - first])
    return np.concatenate(parts)
