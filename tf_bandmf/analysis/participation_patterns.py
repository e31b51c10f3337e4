"""Maximum sums over participation patterns: the algorithms behind `sensitivity`.

A pattern is a set of at most `k` of `n` steps, any two of which are at least `b` steps
apart. Let `X = C^T C` be the Gram matrix of the strategy `C`. The sum of a pattern is
the sum of `|X[i, j]|` over all pairs of its steps `i, j`. The squared sensitivity is at
most the maximum sum of a pattern. It equals this maximum if the signs of the
contributions can be chosen so that nothing cancels (arXiv:2306.08153, Prop. E.1, eq.
5).
"""

from __future__ import annotations

import numpy as np

from tf_bandmf import matrices
from tf_bandmf.analysis import vector_contributions

# The maximum number of entries in an intermediate array.
_CHUNK = 8_000_000
# `vec_sens` tries closed forms for special cases first if its dynamic program would
# need more operations than this.
_LONG = 50_000_000
# `vector_contributions` is used only if n k^2 <= _MOST_FOR_VECTORS, for n steps and k
# participations: inverting one matrix per pattern takes roughly n k^2 operations. Up to
# _AT_ONCE patterns are processed in one batch.
_MOST_FOR_VECTORS, _AT_ONCE = 5e6, 64


def vec_sens(v: np.ndarray, min_separation: int, max_participations: int) -> np.ndarray:
    """Returns the largest sum of at most k entries of v that are at least b apart.

    This is Alg. 3 (VecSens) of arXiv:2306.08153 for non-negative `v`, vectorized.

    Args:
      v: the entries, shape [n], or [m, n] for m separate problems, one per row.
      min_separation: b, the minimum difference of the entries' indices.
      max_participations: k, the maximum number of entries.

    Returns:
      The largest sums, shape [] or [m].
    """
    v = np.asarray(v, dtype=np.float64)
    n = v.shape[-1]
    if v.size * max_participations > _LONG:
        # The largest sum contains no negative entry.
        v = np.maximum(v, 0.0)
        if min_separation == 1:
            picked = min(max_participations, n)
            return np.sort(v, axis=-1)[..., n - picked :].sum(axis=-1)
        if np.all(v == v[..., :1]):
            return v[..., 0] * min(max_participations, -(-n // min_separation))
    # After m iterations, best[i] is the largest sum of at most m picks from v[i:].
    best = np.zeros_like(v)
    for _ in range(max_participations):
        candidate = v.copy()
        if min_separation < n:
            candidate[..., : n - min_separation] += best[..., min_separation:]
        # For every i, from the last to the first, the dynamic program either picks v[i]
        # or skips it, whichever gives the larger sum.
        best = np.maximum.accumulate(candidate[..., ::-1], axis=-1)[..., ::-1]
    return best[..., 0]


def path_maximum(
    matrix: matrices.LowerTriangular, min_separation: int, max_participations: int
) -> float:
    """Returns the squared sensitivity if only consecutive participations interact.

    Two participations interact if their columns of `C` are not orthogonal. Only
    consecutive participations interact if there are at most two, or if `bands <= 2 b`.
    Then the signs of the contributions can be chosen one after the other so that
    nothing cancels. Therefore the bound of arXiv:2306.08153, Prop. E.1, is exact, for
    entries of any sign. A dynamic program over the pattern's first step and its number
    of participations finds the maximum in O(k n (bands - b)) operations, in addition to
    the computation of the diagonals of `C^T C`.

    Args:
      matrix: `C`, with `bands <= 2 b` unless k <= 2.
      min_separation: b.
      max_participations: k.

    Returns:
      The exact squared sensitivity.

    Raises:
      ValueError: if `bands > 2 b` and k > 2, because participations that are not
        consecutive may then interact.
    """
    n, b, width = matrix.num_rows, min_separation, matrix.bands
    if width > 2 * b and max_participations > 2:
        raise ValueError(f"bands = {width} must be <= 2 * min_separation = {2 * b}.")
    offsets = range(b, min(width, n))
    diagonal = matrix.gram_diagonal(0)
    doubled = [2.0 * np.abs(matrix.gram_diagonal(offset)) for offset in offsets]
    # After m - 1 iterations, best[i] is the largest sum over a pattern of at most m
    # steps whose first step is i.
    best = np.array(diagonal)
    for _ in range(max_participations - 1):
        following = np.zeros(n)
        apart = max(width, b)
        if apart < n:
            after = np.maximum.accumulate(best[::-1])[::-1]
            following[: n - apart] = after[apart:]
        for offset, gain in zip(offsets, doubled):
            window = following[: n - offset]
            np.maximum(window, best[offset:] + gain, out=window)
        best = diagonal + following
    return float(best.max())


def banded_gram_bound(
    matrix: matrices.LowerTriangular, min_separation: int, max_participations: int
) -> float:
    """Returns an upper bound on the squared sensitivity of a banded `C`.

    The bound is that of Alg. 4 of arXiv:2306.08153, which applies VecSens (`vec_sens`)
    to every row of `|X|`, where `X = C^T C`, and then to the vector of the n results.
    Each row of X has at most `2 bands - 1` non-zero entries, so VecSens considers only
    these entries, and only as many participations as fit among them. For all rows
    together, VecSens takes O(n bands min(k, 2 bands / b)) operations, compared to
    O(n^2 k) for a dense X. The computation of X takes O(n bands^2) operations, or
    O(n bands) if `C` is Toeplitz.
    """
    n, width = matrix.num_rows, min(matrix.bands, matrix.num_rows)
    diagonals = [np.abs(matrix.gram_diagonal(offset)) for offset in range(width)]
    window = 2 * width - 1
    picks = min(max_participations, -(-window // min_separation))
    rows = np.empty(n)
    chunk = max(1, _CHUNK // window)
    for start in range(0, n, chunk):
        stop = min(start + chunk, n)
        local = np.zeros((stop - start, window))
        for offset, diagonal in enumerate(diagonals):
            right = diagonal[start : min(stop, n - offset)]
            local[: right.size, width - 1 + offset] = right
            first = max(start, offset)
            left = diagonal[first - offset : max(stop - offset, first - offset)]
            local[first - start : first - start + left.size, width - 1 - offset] = left
        rows[start:stop] = vec_sens(local, min_separation, picks)
    return float(vec_sens(rows, min_separation, max_participations))


def dense_gram_bound(
    entries: np.ndarray, min_separation: int, max_participations: int
) -> float:
    """Returns an upper bound on the squared sensitivity of `C`, banded or not.

    This is Alg. 4 of arXiv:2306.08153. The algorithm applies VecSens (`vec_sens`) to
    every row of `|X|`, where `X = C^T C`, and then to the vector of the n results. It
    takes O(n^3 + n^2 k) operations.

    Args:
      entries: `C`, shape [n, n].
      min_separation: b.
      max_participations: k.
    """
    n = entries.shape[0]
    rows = np.empty(n)
    chunk = max(1, _CHUNK // n)
    for start in range(0, n, chunk):
        gram = np.abs(entries[:, start : start + chunk].T @ entries)
        rows[start : start + chunk] = vec_sens(gram, min_separation, max_participations)
    return float(vec_sens(rows, min_separation, max_participations))


def best_pair(entries: np.ndarray, min_separation: int) -> float:
    """Returns the squared sensitivity of `C` for at most two participations.

    The value is exact even if `C` has negative entries, because the sign of the second
    contribution can be chosen so that nothing cancels.
    """
    n = entries.shape[0]
    squared = np.sum(entries**2, axis=0)
    best = float(squared.max())
    chunk = max(1, _CHUNK // n)
    for start in range(0, n - min_separation, chunk):
        stop = min(start + chunk, n - min_separation)
        gram = np.abs(entries[:, start:stop].T @ entries)
        total = squared[start:stop, None] + squared[None] + 2.0 * gram
        early = np.arange(n)[None] < np.arange(start, stop)[:, None] + min_separation
        total[early] = 0.0
        best = max(best, float(total.max()))
    return best


def scaled_toeplitz_bound(
    column: np.ndarray, scale: np.ndarray, min_separation: int, max_participations: int
) -> float:
    """Returns a bound on the squared sensitivity of a column-scaled Toeplitz matrix.

    Let `c` be the first column of the Toeplitz matrix, `m[t]` the maximum of `|c[u]|`
    for u >= t, `s` the scales of the columns, and X the Gram matrix of the scaled
    columns. Columns `i` and `j = i + d` with `d >= d0` satisfy

        |X[i, j]| <= s[i] s[j] sum_{t < n - j} |c[t]| m[t + d]
                  <= s[j] max_{i <= j - d0} s[i] sum_{t < n - j} |c[t]| m[t + d0].

    Let `h(d0)` be the maximum of the right side over `j`. It is an upper bound on all
    entries of `|X|` at a distance of `d0` or more from the diagonal. The p-th and the
    q-th participation of a pattern are at least `|p - q| b` steps apart. Therefore the
    squared sensitivity is at most `k h(0) + 2 sum_{p = 1}^{k - 1} (k - p) h(p b)`. The
    computation takes O(n k) operations.

    Args:
      column: c, shape [n].
      scale: s > 0, shape [n].
      min_separation: b.
      max_participations: k; `(k - 1) b` must be below n.
    """
    n = column.size
    absolute = np.abs(column)
    majorant = np.maximum.accumulate(absolute[::-1])[::-1]
    norms = np.cumsum(absolute**2)[::-1] * scale**2
    largest_scale = np.maximum.accumulate(scale)
    total = max_participations * float(norms.max())
    for pair in range(1, max_participations):
        d = pair * min_separation
        sums = np.cumsum(absolute[: n - d] * majorant[d:])[::-1]
        bound = float(np.max(scale[d:] * largest_scale[: n - d] * sums))
        total += 2.0 * (max_participations - pair) * bound
    return total


def fixed_order_maximum(
    matrix: matrices.LowerTriangular, min_separation: int
) -> tuple[float, bool, str]:
    """Returns the squared sensitivity under a fixed epoch order, or an upper bound.

    The possible patterns are the steps `i, i + b, i + 2 b, ...` for each `i < b`. Let
    `X = C^T C` be the Gram matrix.

    Returns:
      The value, True if it is exact, and the method, which is one of:
        "the b fixed patterns": exact. In the best pattern, no entry of X is negative
          (beyond rounding), or only consecutive participations interact. Therefore the
          signs of the contributions can be chosen so that nothing cancels.
        "the b fixed patterns, the best vectors": exact up to a factor of 1 + 1e-8.
          The value is an upper bound. Contributions with at least as many dimensions as
          participations attain it up to this factor (see `vector_contributions`).
        "bound, |X| on the fixed patterns": the maximum sum of `|X|` over a pattern, an
          upper bound. The best vectors were too expensive to compute, or were not
          found.
    """
    n, b = matrix.num_rows, min_separation
    absolute, signed = np.zeros(b), np.zeros(b)
    offsets = range(0, min(matrix.bands, n), b)
    for offset in offsets:
        diagonal = matrix.gram_diagonal(offset)
        weight = 1.0 if offset == 0 else 2.0
        start = np.arange(n - offset) % b
        absolute += weight * np.bincount(start, np.abs(diagonal), minlength=b)
        signed += weight * np.bincount(start, diagonal, minlength=b)
    best = int(np.argmax(absolute))
    agree = absolute - signed <= 1e-9 * absolute
    if agree[best] or matrix.bands <= 2 * b or n <= 2 * b:
        return float(absolute[best]), True, "the b fixed patterns"
    k = -(-n // b)
    bound = float(absolute[best]), False, "bound, |X| on the fixed patterns"
    if not vectors_are_affordable(n, k):
        return bound
    diagonals = {offset: matrix.gram_diagonal(offset) for offset in offsets}
    value = 0.0
    # Patterns are tried in decreasing order of their bounds, until no remaining bound
    # exceeds the maximum so far (`value`). For a Toeplitz matrix, the pattern that
    # starts at step 0 has the largest sensitivity: a pattern that starts later has the
    # same columns without their last entries.
    order = np.argsort(-absolute, kind="stable")
    if matrix.toeplitz_column() is not None:
        order = np.zeros(1, np.int64)
    for first in range(0, order.size, _AT_ONCE):
        chosen = [i for i in order[first : first + _AT_ONCE] if absolute[i] > value]
        if not chosen:
            break
        grams = _pattern_grams(diagonals, chosen, n, b)
        value, upper = vector_contributions.largest(grams, value)
        if upper > value * (1.0 + 1e-8):
            return bound
        value = upper
    return value, True, "the b fixed patterns, the best vectors"


def vectors_are_affordable(num_steps: int, participations: int) -> bool:
    """Returns True if `vector_contributions` is fast enough for patterns of this size.

    Args:
      num_steps: n, the number of steps.
      participations: k, the number of participations in a pattern.
    """
    return float(num_steps) * participations**2 <= _MOST_FOR_VECTORS


def _pattern_grams(
    diagonals: dict[int, np.ndarray], starts: list[int], num_rows: int, b: int
) -> np.ndarray:
    """Returns one Gram matrix for each start `i`, of columns `i, i + b, ...` of C.

    Args:
      diagonals: the diagonals of the Gram matrix of all columns, by their offset, for
        all offsets that are multiples of b.
      starts: the starts `i` < b.
      num_rows: the number of steps.
      b: the number of steps between two participations.

    Returns:
      Shape [number of starts, k, k], where k is the maximum number of columns. For a
      start with fewer columns, the matrix is padded with zeros.
    """
    k = -(-num_rows // b)
    grams = np.zeros((len(starts), k, k))
    for offset, diagonal in diagonals.items():
        apart = offset // b
        for row, start in enumerate(starts):
            entries = diagonal[start::b]
            index = np.arange(entries.size)
            grams[row, index, index + apart] = entries
            grams[row, index + apart, index] = entries
    return grams
