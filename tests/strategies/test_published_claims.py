"""Claims that papers make about the closed-form strategies and BandInvMF."""

import numpy as np
import pytest

from tf_bandmf import strategies, workloads
from tf_bandmf.participation import MinSep
from tf_bandmf.strategies import registry


def powers(limit):
    return [2**i for i in range(limit.bit_length()) if 2**i <= limit]


# arXiv:2505.12128 ---------------------------------------------------------


@pytest.mark.parametrize(("momentum", "decay"), [(0.0, 1.0), (0.9, 0.9999)])
@pytest.mark.parametrize("k", [4, 8])
def test_figure_1_best_bandwidth_of_bsr_is_b_and_of_bisr_is_below(momentum, decay, k):
    n = 2048
    b = n // k
    workload, participation = workloads.momentum_sgd(n, momentum, decay), MinSep(b)
    bands = powers(n)
    bisr = [strategies.bisr(workload, p).rmse(workload, participation) for p in bands]
    bsr = [strategies.bsr(workload, p).rmse(workload, participation) for p in bands]
    assert bands[int(np.argmin(bsr))] == b
    assert bands[int(np.argmin(bisr))] < b
    # For few bands, BISR has far less error than BSR.
    assert bisr[2] < 0.8 * bsr[2]


def test_figure_3_optimized_inverses_beat_bisr_at_small_bandwidths():
    n, k = 512, 8
    workload, participation = workloads.prefix_sum(n), MinSep(n // k)
    for p in (2, 4):
        optimized = registry.build_strategy("bandinv", workload, participation, bands=p)
        error = optimized.rmse(workload, participation)
        square_root = strategies.bisr(workload, p).rmse(workload, participation)
        assert error < 0.8 * square_root
        # One additional band reduces the error drastically.
        trivial = strategies.identity(n).rmse(workload, participation)
        assert error < 0.5 * trivial


# arXiv:2601.22334 ----------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 5, 40])
def test_theorem_4_full_batch_bounds(n):
    workload, participation = workloads.prefix_sum(n), MinSep(1, n)
    trivial = strategies.identity(n).rmse(workload, participation)
    np.testing.assert_allclose(trivial, np.sqrt(n * (n + 1) / 2))
    lower = np.sqrt((n + 1) * (2 * n + 1) / 6)
    names = ["bsr", "bisr", "lambda_cgd", "blt", "tree", "dense"]
    for name in names:
        strategy = registry.build_strategy(name, workload, participation)
        assert strategy.rmse(workload, participation) >= lower * (1 - 1e-9)
    # Corollary 6: lambda = 0 is optimal here.
    best = strategies.optimized_lambda_cgd(workload, participation)
    assert best.rmse(workload, participation) >= trivial * (1 - 1e-9)
