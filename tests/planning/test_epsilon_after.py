"""Epsilon of the first steps of a run."""

import numpy as np
import pytest
from small_plans import planned

from tf_bandmf import matrices
from tf_bandmf.accounting import gaussian


def make_plan(mechanism="identity", sampling=None, **changes):
    options = {
        "epsilon": 4.0,
        "delta": 1e-5,
        "num_examples": 40,
        "batch_size": 10,
        "epochs": 4,
        "test_seed": 0,
        **changes,
    }
    return planned(mechanism, sampling=sampling, **options)


@pytest.mark.parametrize("kind", sorted(matrices.KINDS))
def test_leading_blocks_are_those_of_the_dense_matrix(kind):
    matrix = matrices.KINDS[kind].example(8)
    for rows in (1, 3, 8):
        block = matrices.leading_block(matrix, rows)
        assert block.num_rows == rows
        np.testing.assert_allclose(
            block.to_dense(), matrix.to_dense()[:rows, :rows], atol=1e-12
        )
    for rows in (0, 9):
        with pytest.raises(ValueError, match="num_rows"):
            matrices.leading_block(matrix, rows)


def test_fresh_noise_is_a_composition_of_epochs():
    plan = make_plan()
    # One Gaussian query for each epoch that an example was in.
    for steps, epochs in ((1, 1), (4, 1), (5, 2), (12, 3)):
        stddev = plan.unit_noise_stddev / np.sqrt(epochs)
        expected = gaussian.gaussian_epsilon(stddev, plan.delta)
        np.testing.assert_allclose(plan.epsilon_after(steps), expected, rtol=1e-9)
    assert plan.epsilon_after(0) == 0.0
    assert plan.epsilon_after(16) == plan.epsilon


@pytest.mark.slow_cases(
    "lambda_cgd-balls-in-bins",
    "identity-cyclic-fixed-size",
    "bsr:2-cyclic-poisson",
    "identity-poisson",
)
@pytest.mark.parametrize(
    ("mechanism", "sampling"),
    [
        ("lambda_cgd", None),
        ("bisr:3", None),
        ("bsr:2", None),
        ("tree", None),
        ("bsr:2", "cyclic-poisson"),
        ("identity", "poisson"),
        ("identity", "cyclic-fixed-size"),
        ("lambda_cgd", "balls-in-bins"),
    ],
)
def test_it_grows_to_that_of_the_plan(mechanism, sampling):
    plan = make_plan(mechanism, sampling)
    actual = [plan.epsilon_after(steps) for steps in (0, 1, 4, 8, 16)]
    assert actual[0] == 0.0 and actual[-1] == plan.epsilon
    assert all(a <= b + 1e-9 for a, b in zip(actual, actual[1:]))
    assert 0.0 < actual[2] < plan.epsilon


@pytest.mark.parametrize("mechanism", ["lambda_cgd", "bsr:3"])
def test_it_is_the_gaussian_mechanism_of_the_worst_pattern(mechanism):
    plan = make_plan(mechanism)
    dense = plan.strategy.matrix.to_dense()
    for steps in (3, 6, 11):
        block = dense[:steps, :steps]
        worst = max(
            np.linalg.norm(block[:, first::4].sum(axis=1)) for first in range(4)
        )
        stddev = plan.unit_noise_stddev / worst
        expected = gaussian.gaussian_epsilon(stddev, plan.delta)
        np.testing.assert_allclose(plan.epsilon_after(steps), expected, rtol=1e-6)


def test_other_deltas_and_wrong_arguments():
    plan = make_plan()
    assert (
        plan.epsilon_after(8, 1e-3)
        < plan.epsilon_after(8)
        < plan.epsilon_after(8, 1e-8)
    )
    for steps in (-1, 17, True):
        with pytest.raises(ValueError, match="steps"):
            plan.epsilon_after(steps)
    with pytest.raises(ValueError, match="delta"):
        plan.epsilon_after(8, 0.0)
