"""The noise of every registered strategy is C^-1 Z, eager, in a graph and under XLA.

C times the noise must consist of standard normals that are independent over steps,
coordinates, variables and replicas. Independence over steps tests the covariance
C^-1 C^-T of the noise: see whiteness.py. Seeds are fixed. The probability of a false
alarm in any case of this file is below 1e-6 (Bonferroni).
"""

import numpy as np
import pytest
import tensorflow as tf
from whiteness import rows_of, whiteness

import tf_bandmf
from tf_bandmf import workloads
from tf_bandmf.strategies import FAMILIES, registry

N, D, SHARDS = 12, 4096, 2
FAMILY_WISE = 1e-6
SPECIFICATIONS = [s for name in sorted(FAMILIES) for s in FAMILIES[name].examples]
MODES = ("graph", "eager", "xla")
ALPHA = FAMILY_WISE / (len(SPECIFICATIONS) * len(MODES))


@pytest.fixture(params=SPECIFICATIONS, scope="module")
def strategy(request):
    name, options = registry.parse(request.param)
    participation, workload = tf_bandmf.MinSep(4, 3), workloads.prefix_sum(N)
    built = registry.build_strategy(name, workload, participation, **options)
    return built.in_float32()


@pytest.mark.slow_cases(
    "b[ai]*-graph", "dense-graph", "tree-graph", "amplified:4-graph"
)
@pytest.mark.attack(
    "The noise of every registered strategy",
    tried="Marginals, covariance over steps, independence of coordinates, variables "
    "and replicas; in graphs, eagerly and under XLA. Chance of a false alarm: 1e-6.",
    area="noise",
)
@pytest.mark.invariant(8, 9)
@pytest.mark.parametrize(
    "mode",
    [
        "graph",
        pytest.param("eager", marks=pytest.mark.slow),
        pytest.param("xla", marks=pytest.mark.slow),
    ],
)
def test_the_noise_is_that_of_the_strategy(strategy, mode):
    tf.config.run_functions_eagerly(mode == "eager")
    try:
        noise = rows_of(strategy, D * SHARDS, SHARDS, jit_compile=mode == "xla", seed=5)
    finally:
        tf.config.run_functions_eagerly(False)
    # A variable may begin at any index of the noise, so the test includes lags that are
    # not powers of two.
    verdict = whiteness(strategy, noise, lags=(3, 100, 1000, D))
    assert verdict.p_value >= ALPHA, str(verdict)


@pytest.mark.slow
def test_false_alarms_are_as_rare_as_stated():
    """For correct noise, about 5% of p-values are below 0.05, and none below 1e-6."""
    chain = tf_bandmf.strategies.lambda_cgd(N, 0.8)
    p_values = []
    for seed in range(100):
        z = np.random.default_rng(seed).standard_normal((N, 512))
        p_values.append(whiteness(chain, chain.matrix.solve(z)).p_value)
    assert np.mean(np.array(p_values) < 0.05) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 100)
    assert min(p_values) > 1e-6


def test_the_same_test_sees_noise_of_another_strategy(strategy):
    other = np.random.default_rng(0).standard_normal((N, D))
    if strategy.family == "identity":
        other[1] += 0.3 * other[0]
    assert whiteness(strategy, other).p_value < ALPHA
