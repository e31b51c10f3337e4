"""Sensitivity against brute force over all participation patterns, n <= 10."""

import time

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from patterns import brute_force, fixed_patterns, min_sep_patterns

from tf_bandmf import matrices, workloads
from tf_bandmf import strategies as families
from tf_bandmf.analysis import participation_patterns
from tf_bandmf.analysis import sensitivity as sensitivity_lib
from tf_bandmf.participation import FixedEpochOrder, MinSep

SETTINGS = hypothesis.settings(derandomize=True, deadline=None, max_examples=40)


def closed_form_strategies(n):
    prefix, momentum = workloads.prefix_sum(n), workloads.momentum_sgd(n, 0.5, 0.9)
    yield families.identity(n)
    for lambda_ in (0.0, 0.3, 0.95):
        yield families.lambda_cgd(n, lambda_)
        yield families.lambda_cgd(n, lambda_, column_normalized=True)
    for workload in (prefix, momentum):
        for width in (1, 2, 4, n):
            yield families.bsr(workload, min(width, n))
            yield families.bisr(workload, min(width, n))
        yield families.bsr(workload, 3, column_normalized=True)
        yield families.bisr(workload, 3, column_normalized=True)


@pytest.mark.parametrize(("b", "k"), [(1, 3), (2, 4), (3, 2), (4, 2), (8, 1), (9, 1)])
def test_min_sep_sensitivity_is_that_of_the_worst_pattern(b, k):
    n = 8 if b < 9 else 9
    exact = 0
    for strategy in closed_form_strategies(n):
        expected = brute_force(strategy.matrix.to_dense(), min_sep_patterns(n, b, k))
        actual = strategy.sensitivity(MinSep(b, k))
        if actual.is_exact:
            exact += 1
            np.testing.assert_allclose(actual.value, expected, rtol=1e-10)
        else:
            assert actual.value >= expected * (1 - 1e-10)
    assert exact >= 10


@pytest.mark.parametrize(("b", "k"), [(1, 6), (2, 4), (3, 3), (4, 2), (9, 1)])
def test_fixed_epoch_order_sensitivity_is_that_of_the_worst_pattern(b, k):
    n = b * k
    participation = FixedEpochOrder(num_examples=b, batch_size=1, epochs=k)
    for strategy in closed_form_strategies(n):
        expected = brute_force(strategy.matrix.to_dense(), fixed_patterns(n, b))
        actual = strategy.sensitivity(participation)
        # All of these are non-negative: every fixed order is exact.
        assert actual.is_exact, (strategy, actual)
        np.testing.assert_allclose(actual.value, expected, rtol=1e-10)


@SETTINGS
@hypothesis.given(
    v=st.lists(st.floats(0, 10), min_size=1, max_size=9),
    b=st.integers(1, 4),
    k=st.integers(1, 4),
)
def test_vec_sens_is_the_best_selection(v, b, k):
    expected = max(sum(v[i] for i in p) for p in min_sep_patterns(len(v), b, k))
    np.testing.assert_allclose(sensitivity_lib.vec_sens(np.array(v), b, k), expected)


@pytest.mark.parametrize("shape", [(40,), (3, 40)])
@pytest.mark.parametrize("b, k", [(1, 7), (1, 50), (3, 5), (7, 50)])
def test_shorter_ways_of_long_runs_select_the_same(shape, b, k, monkeypatch):
    v = np.random.default_rng(0).random(shape)
    for values in (v, np.full(shape, 0.3)):
        actual = sensitivity_lib.vec_sens(values, b, k)
        with monkeypatch.context() as patch:
            patch.setattr(participation_patterns, "_LONG", 0)
            short = sensitivity_lib.vec_sens(values, b, k)
        np.testing.assert_allclose(short, actual, rtol=1e-13)


def test_a_million_participations_take_no_dynamic_program():
    began = time.process_time()
    assert sensitivity_lib.vec_sens(np.ones(10**6), 1, 10**6) == 1e6
    assert time.process_time() - began < 20.0  # hours with one


@pytest.mark.parametrize("lambda_", [0.0, 0.5, 0.9, 0.99])
@pytest.mark.parametrize(("b", "k"), [(5, 4), (1, 7), (391, 10)])
def test_lambda_cgd_sensitivity_in_closed_form(lambda_, b, k):
    # arXiv:2601.22334, eq. 16.
    expected = np.sqrt(
        (1 - lambda_ ** (2 * b))
        / ((1 - lambda_**2) * (1 - lambda_**b) ** 2)
        * sum((1 - lambda_ ** (b * j)) ** 2 for j in range(1, k + 1))
    )
    actual = families.lambda_cgd(b * k, lambda_).sensitivity(MinSep(b, k))
    assert actual.is_exact
    np.testing.assert_allclose(actual.value, expected, rtol=1e-12)


@SETTINGS
@hypothesis.given(
    head=st.lists(st.floats(0.0, 1.0), min_size=4, max_size=4), b=st.integers(1, 4)
)
def test_the_order_of_the_first_b_entries_does_not_matter(head, b):
    # Theorem 1 of arXiv:2601.22334 asks for a non-increasing column; see the comment in
    # sensitivity.py for why it is enough that it does not increase from lag b on.
    n, k = 9, 4
    tail = np.linspace(min(head[:b]), 0.0, n - b) if b < 4 else np.full(5, 0.01)
    column = np.concatenate([[1.0], head[: b - 1], tail])[:n]
    matrix = matrices.ToeplitzBanded(column, n)
    actual = sensitivity_lib.sensitivity(matrix, MinSep(b, k), n)
    assert actual.is_exact
    expected = brute_force(matrix.to_dense(), min_sep_patterns(n, b, k))
    np.testing.assert_allclose(actual.value, expected, rtol=1e-9)


def test_the_result_says_whether_it_is_a_bound():
    matrix = matrices.ToeplitzBanded([1.0, -0.9, 0.5, -0.3, 0.4, 0.2, -0.7], 9)
    actual = sensitivity_lib.sensitivity(matrix, MinSep(2, 4), 9)
    assert not actual.is_exact
    assert "<=" in str(actual)


def test_a_strategy_for_another_number_of_steps_is_refused():
    matrix = matrices.ToeplitzBanded([1.0], 9)
    with pytest.raises(ValueError, match="9 steps"):
        sensitivity_lib.sensitivity(matrix, MinSep(2, 3), 10)
