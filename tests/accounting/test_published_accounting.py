"""Reproduces noise levels and worked examples that were published in papers."""

import math

import pytest

import tf_bandmf
from tf_bandmf import strategies
from tf_bandmf.accounting import gaussian
from tf_bandmf.accounting.cyclic_poisson import CyclicPoissonAccountant

# Number of users in TensorFlow Federated's Stack Overflow data.
USERS = 342_477


def test_appendix_f5():
    """With 2 bands, 1,000 queries are amplified; with 100 bands, sampling gains nothing.

    Each of the queries has the sampling probability 2%. The run has 2,000 steps with
    batches of 500 of 50,000 examples.
    """
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
    """The noise for a budget is sqrt(6) times the published sigma.

    The published sigmas assume a sensitivity of 1, but with 6 participations, the
    sensitivity is sqrt(6).
    """
    sampler = tf_bandmf.CyclicPoisson(USERS, 1000, bands)
    assert sampler.participations(2052) == queries
    actual = CyclicPoissonAccountant(queries, sampler.sampling_probability)
    noise = actual.calibrate(epsilon, 1e-6).noise_stddev
    assert noise == pytest.approx(published * math.sqrt(6), rel=1e-3)
