"""BLT strategies for the amplified error."""

import numpy as np
import pytest

import tf_bandmf
from tf_bandmf import strategies, workloads
from tf_bandmf.participation import BallsInBins, MinSep

BUDGET = {"epsilon": 2.0, "delta": 1e-5}
BINS = BallsInBins(600, 100, 4)
WORKLOAD = workloads.prefix_sum(24)


@pytest.mark.slow
def test_better_than_the_same_form_without_the_budget():
    names = ["amplified_blt:2", "blt:2"]
    best, other = tf_bandmf.compare(names, participation=BINS, **BUDGET)
    assert best.converged
    assert 1 <= best.memory_vectors <= 3
    assert best.rmse < 0.99 * other.rmse


@pytest.mark.slow
def test_without_steps_it_is_the_best_start():
    found = strategies.optimized_amplified_blt(WORKLOAD, BINS, 2, **BUDGET, max_steps=0)
    rmse, other = (
        row.rmse
        for row in tf_bandmf.compare(
            [found, strategies.blt(WORKLOAD, BINS, 2)], participation=BINS, **BUDGET
        )
    )
    assert rmse <= 1.001 * other
    assert not found.diagnostics["converged"]


def test_without_amplification_it_is_the_optimum_for_the_sensitivity():
    participation = MinSep(6, 4)
    found = strategies.optimized_amplified_blt(WORKLOAD, participation, 3)
    other = strategies.blt(WORKLOAD, participation, 3)
    assert found.family == "amplified_blt"
    np.testing.assert_array_equal(found.matrix.to_dense(), other.matrix.to_dense())


def test_without_a_budget_it_is_refused():
    with pytest.raises(ValueError, match="amplifies a budget"):
        tf_bandmf.compare(["amplified_blt:2"], participation=BINS)
    with pytest.raises(ValueError, match="delta must be in"):
        strategies.optimized_amplified_blt(WORKLOAD, BINS, 2, epsilon=1.0, delta=0.0)


@pytest.mark.slow
def test_a_plan_has_the_buffers_of_its_name():
    plan = tf_bandmf.plan(
        "amplified_blt:1", participation=BallsInBins(12, 4, 2), epsilon=1.0, delta=0.02
    )
    assert strategies.registry.specification(plan.strategy) == "amplified_blt:1"
    assert plan.strategy.memory_vectors == 1
    assert plan.strategy.matrix.is_nonnegative()


@pytest.mark.slow
def test_a_reference_point():
    """n = 512, b = 64, k = 8, epsilon = 8; BLT has 4.588."""
    plan = tf_bandmf.plan(
        "amplified_blt:4",
        num_examples=64 * 128,
        batch_size=128,
        epochs=8,
        sampling="balls-in-bins",
        epsilon=8.0,
        delta=1e-5,
    )
    assert plan.rmse() <= 4.46
