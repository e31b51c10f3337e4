"""Tests `betting_upper_bound`, a confidence bound on the mean of random draws."""

import numpy as np
import pytest
import scipy.stats

from tf_bandmf.accounting.monte_carlo import betting_upper_bound


@pytest.mark.parametrize("probability", [0.002, 0.2])
def test_coverage(probability):
    """At beta = 0.1, the true mean exceeds the bound in at most a tenth of the cases.

    The test allows about 40 failures in 200 cases. More failures than that have a
    probability of at most 1e-5 if the bound is valid.
    """
    rng = np.random.default_rng(0)
    failures = 0
    for _ in range(200):
        values = (rng.random(2000) < probability) * rng.random(2000)
        failures += betting_upper_bound(values, 1.0, 0.1, 1e-9) < 0.5 * probability
    assert failures <= scipy.stats.binom.isf(1e-5, 200, 0.1)


def test_zero_draws_give_log_one_over_beta_over_n():
    bound = betting_upper_bound(np.zeros(100_000), 1.0, 1e-6, 1e-9)
    ideal = -np.log(1e-6) / 100_000
    assert ideal < bound < 1.1 * ideal


def test_few_draws_bound_nothing():
    assert betting_upper_bound(np.zeros(3), 2.0, 1e-6, 1e-9) == 2.0
