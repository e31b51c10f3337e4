"""Noise levels and worked examples that are published in papers."""

import math

import pytest

import tf_bandmf
from tf_bandmf import strategies
from tf_bandmf.accounting import gaussian
from tf_bandmf.accounting.cyclic_poisson import CyclicPoissonAccountant

# Number of users in TensorFlow Federated's Stack Overflow data.
USERS = 342_477


def test_appendix_f5():
    """b = 2 gives 1,000 queries at q = 2%; b = 100 gives no amplification."""
    two = tf_bandmf.CyclicPoisson(50_000, 500, 2)
    matrix = strategies.bsr(tf_bandmf.workloads.prefix_sum(2000), 2).matrix
    actual = CyclicPoissonAccountant.of_strategy(matrix, 2, two.sampling_probability)
    assert (actual.num_queries, actual.sampling_probability) == (1000, 0.02)
    hundred = tf_bandmf.CyclicPoisson(50_000, 500, 100)
    assert hundred.sampling_probability == 1.0
    matrix = strategies.bsr(tf_bandmf.workloads.prefix_sum(2000), 100).matrix
    actual = CyclicPoissonAccountant.of_strategy(matrix, 100, 1.0)
    unamplified = gaussian.calibrate_noise_stddev(1.0, 1e-6) * math.sqrt(20)
    noise = actual.calibrate(1.0, 1e-6).noise_stddev
    assert noise == pytest.approx(unamplified * actual.column_norm, rel=1e-14)


@pytest.mark.slow_cases("16.0-1-2052-0.16876")
@pytest.mark.parametrize(
    "epsilon, bands, queries, published",
    [
        pytest.param(1.0, 1, 2052, 0.37313, marks=pytest.mark.slow),
        (1.0, 9, 228, 0.79118),
        (16.0, 1, 2052, 0.16876),
    ],
)
def test_table_5_of_amplified_banded_mf(epsilon, bands, queries, published):
    """Published sigmas assume sensitivity 1: ours are sqrt(6) times as large for k = 6."""
    sampler = tf_bandmf.CyclicPoisson(USERS, 1000, bands)
    assert sampler.participations(2052) == queries
    actual = CyclicPoissonAccountant(queries, sampler.sampling_probability)
    noise = actual.calibrate(epsilon, 1e-6).noise_stddev
    assert noise == pytest.approx(published * math.sqrt(6), rel=1e-3)


@pytest.mark.parametrize(
    "epsilon, published",
    [(1, 4.22468), (2, 2.23048), (4, 1.19352), (8, 0.65294), (16, 0.36861)],
)
def test_table_4_of_amplified_banded_mf(epsilon, published):
    """The values equal the rows of Table 5 without amplification.

    At epsilon = 16, this is the row b = n = 2052.
    """
    noise = gaussian.calibrate_noise_stddev(epsilon, 1e-6)
    assert noise == pytest.approx(published, rel=2e-5)
    strategy = strategies.identity(2052)
    made = tf_bandmf.plan(
        strategy,
        sampling=tf_bandmf.MinSep(342, 6),
        num_steps=2052,
        epsilon=epsilon,
        delta=1e-6,
    )
    assert made.noise_multiplier == pytest.approx(noise, rel=1e-9)
    assert made.noise_stddev == pytest.approx(noise * math.sqrt(6), rel=1e-6)
