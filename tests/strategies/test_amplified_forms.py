"""Banded Toeplitz and BLT strategies for the amplified error."""

import numpy as np
import pytest

import tf_bandmf
from tf_bandmf import strategies, workloads
from tf_bandmf.participation import BallsInBins, MinSep
from tf_bandmf.planning import calibration, comparison

BUDGET = {"epsilon": 2.0, "delta": 1e-5}
BINS = BallsInBins(600, 100, 4)
WORKLOAD = workloads.prefix_sum(24)
BUILD = {
    "toeplitz": strategies.optimized_amplified_toeplitz,
    "blt": strategies.optimized_amplified_blt,
}
PLAIN = {"toeplitz": strategies.optimized_toeplitz, "blt": strategies.blt}


@pytest.fixture(scope="module")
def calibrator():
    return calibration.for_budget(BINS, **BUDGET)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "others"),
    [
        ("amplified_toeplitz:4", ["toeplitz:4", "bsr:4"]),
        ("amplified_blt:2", ["blt:2"]),
    ],
)
def test_better_than_the_same_form_without_the_budget(name, others, calibrator):
    table = comparison.compare(WORKLOAD, BINS, [name, *others], calibrator)
    best = table[name]
    assert best.converged
    assert 1 <= best.memory_vectors <= 3
    for other in others:
        assert best.rmse < 0.99 * table[other].rmse


@pytest.mark.slow_cases("toeplitz")
@pytest.mark.parametrize("form", BUILD)
def test_without_steps_it_is_the_best_start(form, calibrator):
    found = BUILD[form](WORKLOAD, BINS, 2, **BUDGET, max_steps=0)
    rmse, other = (
        comparison.row("", strategy, WORKLOAD, BINS, calibrator, 0.0).rmse
        for strategy in (found, PLAIN[form](WORKLOAD, BINS, 2))
    )
    assert rmse <= 1.001 * other
    assert not found.diagnostics["converged"]


@pytest.mark.parametrize("form", BUILD)
def test_without_amplification_it_is_the_optimum_for_the_sensitivity(form):
    participation = MinSep(6, 4)
    found = BUILD[form](WORKLOAD, participation, 3)
    other = PLAIN[form](WORKLOAD, participation, 3)
    assert found.family == f"amplified_{form}"
    np.testing.assert_array_equal(found.matrix.to_dense(), other.matrix.to_dense())


@pytest.mark.parametrize("form", BUILD)
def test_without_a_budget_it_is_refused(form):
    with pytest.raises(ValueError, match=f"amplified_{form} is optimized for a budget"):
        comparison.compare(WORKLOAD, BINS, [f"amplified_{form}:2"])
    with pytest.raises(ValueError, match="delta must be in"):
        BUILD[form](WORKLOAD, BINS, 2, epsilon=1.0, delta=0.0)


def test_one_band_is_identity():
    found = strategies.optimized_amplified_toeplitz(WORKLOAD, BINS, 1, **BUDGET)
    np.testing.assert_array_equal(found.matrix.to_dense(), np.eye(24))


@pytest.mark.parametrize("name", ["amplified_toeplitz:2", "amplified_blt:1"])
@pytest.mark.slow_cases("amplified_blt*")
def test_a_plan_has_the_bands_or_buffers_of_its_name(name):
    plan = tf_bandmf.plan(
        name, participation=BallsInBins(12, 4, 2), epsilon=1.0, delta=0.02
    )
    assert strategies.registry.specification(plan.strategy) == name
    assert plan.strategy.memory_vectors == 1
    assert plan.strategy.matrix.is_nonnegative()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "limit"), [("amplified_toeplitz:64", 4.31), ("amplified_blt:4", 4.46)]
)
def test_reference_points(name, limit):
    """n = 512, b = 64, k = 8, epsilon = 8; BSR has 4.320 with 64 bands, BLT 4.588."""
    plan = tf_bandmf.plan(
        name,
        num_examples=64 * 128,
        batch_size=128,
        epochs=8,
        sampling="balls-in-bins",
        epsilon=8.0,
        delta=1e-5,
    )
    assert plan.rmse() <= limit
