"""Noise and examples that the papers print."""

import dataclasses
import math

import dp_accounting
import numpy as np
import pytest

import tf_bandmf
from tf_bandmf import strategies
from tf_bandmf.accounting import gaussian
from tf_bandmf.accounting.cyclic_poisson import CyclicPoissonAccountant

# Users of Stack Overflow, as TensorFlow Federated has them.
USERS = 342_477


def test_theorem_1_cifar_10_example():
    """arXiv:2306.08153, section 1: 200 queries with p = 0.1, DP-SGD 2,000 with 0.01."""
    participation = tf_bandmf.CyclicPoisson(50_000, 500, 10)
    strategy = strategies.bsr(tf_bandmf.workloads.prefix_sum(2000), 10)
    actual = CyclicPoissonAccountant.of_strategy(
        strategy.matrix,
        participation.num_parts,
        participation.sampling_probability,
    )
    norm = float(strategy.matrix.column_norms().max())
    assert dataclasses.astuple(actual) == (200, 0.1, norm)
    assert participation.participations(2000) == 200
    # "In rounds 1, 11, 21 ... we sample from D_1", a subset of 5,000 examples.
    schedule = tf_bandmf.plan(
        strategy,
        sampling=participation,
        num_steps=2000,
        epsilon=8.0,
        delta=1e-5,
    ).batches(np.arange(50_000))
    for step in (0, 10, 20):
        assert set(schedule.example_indices(step) % 10) == {0}
    dp_sgd = tf_bandmf.Poisson(50_000, 500)
    one = CyclicPoissonAccountant.of_strategy(
        strategies.identity(2000).matrix, 1, dp_sgd.sampling_probability
    )
    assert dataclasses.astuple(one) == (2000, 0.01, 1.0)


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


def test_example_f1_with_m_and_n_put_right():
    """The listing divides the steps by b to get q, and the examples to get the count."""
    m, n, b, batch_size, noise = 50_000, 2000, 10, 500, 3.0
    expected = dp_accounting.SelfComposedDpEvent(
        dp_accounting.PoissonSampledDpEvent(
            batch_size / math.floor(m / b), dp_accounting.GaussianDpEvent(noise)
        ),
        math.ceil(n / b),
    )
    sampler = tf_bandmf.CyclicPoisson(m, batch_size, b)
    accountant = CyclicPoissonAccountant(
        sampler.participations(n), sampler.sampling_probability
    )
    assert accountant.event(noise) == expected
    # As printed it is no event at all: a probability above 1.
    assert batch_size / math.floor(n / b) > 1.0


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
