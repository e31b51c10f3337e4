"""No feasible banded strategy has an error below the certified lower bound."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tf_bandmf import workloads
from tf_bandmf.optimize import certificate


def rows_of(dense, bands):
    n = len(dense)
    rows = np.zeros((n, bands))
    for j in range(min(bands, n)):
        rows[j:, j] = np.diag(dense, -j)
    return rows


def feasible(c, separation):
    """Scales C so that the squared norms of columns i, i + b, ... sum to 1."""
    n = len(c)
    squared = np.zeros(separation)
    np.add.at(squared, np.arange(n) % separation, (c**2).sum(axis=0))
    return c / np.sqrt(squared[np.arange(n) % separation])


def weighted_error(c, a, weights):
    return float(weights @ ((a @ np.linalg.inv(c)) ** 2).sum(axis=1))


def bounds(c, a, weights, bands, separation):
    """Returns the error's lower bound by `dual_bound`, and the one by `lower_bound`."""
    inverse = np.linalg.inv(c.T @ c)
    gram = rows_of(inverse @ a.T @ np.diag(weights) @ a @ inverse, bands)
    value, norms = weighted_error(c, a, weights), np.linalg.norm(c, axis=0)
    lower = {-j: gram[:, j] for j in range(bands)}
    first = value**2 / certificate.dual_bound(lower, norms, separation)
    product = rows_of(c @ np.linalg.inv(a), len(c))
    matrices = gram, rows_of(c, bands), product
    return first, certificate.lower_bound(value, norms, separation, weights, *matrices)


@st.composite
def problems(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n = draw(st.integers(1, 9))
    bands, separation = draw(st.integers(1, n)), draw(st.integers(1, n))
    rates = rng.uniform(0.3, 1.0, n)
    momentum = draw(st.sampled_from([0.0, 0.9]))
    a = workloads.momentum_sgd(n, momentum, 1.0, rates).to_dense()
    weights = rng.uniform(0.05, 1.0, n)

    def banded(spread):
        c = np.tril(np.triu(rng.normal(0.0, spread, (n, n)), 1 - bands))
        np.fill_diagonal(c, rng.uniform(0.5, 1.5, n))
        return c

    c = banded(draw(st.sampled_from([0.05, 0.3, 1.0])))
    others = [banded(0.5) for _ in range(20)]
    others += [c + 0.1 * (banded(0.5) - c) for _ in range(20)]
    actual = feasible(c, separation)
    return (
        actual,
        a,
        weights,
        bands,
        separation,
        [feasible(o, separation) for o in others],
    )


@settings(derandomize=True, deadline=None, max_examples=150)
@given(problems())
def test_no_strategy_is_below_a_bound(problem):
    c, a, weights, bands, separation, others = problem
    first, best = bounds(c, a, weights, bands, separation)
    assert first <= best
    least = min(weighted_error(other, a, weights) for other in [c, *others])
    assert best <= least * (1.0 + 1e-9)


def test_dual_bound_is_reached_by_columns_that_are_nearly_parallel():
    """The dual bound is tight: nearly parallel columns attain it up to 1e-6."""
    a = 0.7
    lower = {0: np.ones(2), -1: np.array([0.0, a])}
    dual = certificate.dual_bound(lower, np.ones(2), 2)
    c = np.array([[1e-4, 0.0], [np.sqrt(1.0 - 1e-8), 1.0]])
    reached = np.sum(np.array([[1.0, a], [a, 1.0]]) * (c.T @ c))
    assert reached <= dual <= reached + 1e-6
