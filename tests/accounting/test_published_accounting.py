"""Noise and examples that the papers print."""

import math

import pytest

import tf_bandmf
from tf_bandmf import strategies
from tf_bandmf.accounting import gaussian
from tf_bandmf.accounting.cyclic_poisson import CyclicPoissonAccountant

# Users of Stack Overflow, as TensorFlow Federated has them.
USERS = 342_477


def test_appendix_f5():
    """b = 2: parts of 25,000, q = 2%, 1,000 events; b = 100: no amplification."""
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
    """Amplified rows; sigma there is for sensitivity 1 under (k=6, b=342): times sqrt 6."""
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
    """And Table 5 without amplification, for which b = n = 2052 counts at epsilon = 16."""
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
