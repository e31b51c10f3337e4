"""Tests of noise: quiet on the noise of a strategy, loud on any other."""

import numpy as np
import pytest
from whiteness import whiteness

from tf_bandmf import strategies, workloads

N, D = 16, 2048
STRATEGY = strategies.bsr(workloads.prefix_sum(N), 4)


def normals(seed=0):
    return np.random.default_rng(seed).standard_normal((N, D))


def noise(z):
    return STRATEGY.matrix.solve(z)


@pytest.mark.slow
def test_false_alarms_are_as_rare_as_stated():
    # p-values below 0.05 in at most 5% of 100 samples, up to chance.
    samples = (noise(normals(seed))[:, :512] for seed in range(100))
    actual = [whiteness(STRATEGY, sample).p_value for sample in samples]
    assert np.mean(np.array(actual) < 0.05) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 100)
    assert min(actual) > 1e-6


def repeated_part():
    z = normals()
    z[:, 300 : 300 + 700] = z[:, 1000:1700]
    return noise(z)


# What the mutations of tests/mutations do not show.
BROKEN = {
    "too little": (lambda: 0.9 * noise(normals()), "variance"),
    "shifted": (lambda: noise(normals() + 0.3), "mean"),
    "a part twice": (repeated_part, "no number twice"),
    "not a number": (lambda: np.full((N, D), np.nan), "finite"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_other_noise_is_noticed(name):
    make, test = BROKEN[name]
    actual = whiteness(STRATEGY, make())
    assert actual.p_value < 1e-6
    assert actual.p_values[test] < 1e-6 and test in str(actual)


def test_distances_of_ones_own_are_looked_at():
    z = normals()
    z[:, 700:] = z[:, : D - 700]
    # The distance is not a power of two; equal numbers show it anyhow.
    z[:, 700:] += 0.5 * normals(1)[:, 700:]
    z[:, 700:] /= z[:, 700:].std()
    assert whiteness(STRATEGY, noise(z)).p_values["coordinates"] > 1e-6
    actual = whiteness(STRATEGY, noise(z), lags=(700,))
    assert actual.p_values["coordinates"] < 1e-9


def test_too_small_samples_are_refused():
    with pytest.raises(ValueError, match="d >= 64"):
        whiteness(STRATEGY, normals()[:, :50])
    with pytest.raises(ValueError, match="shape"):
        whiteness(STRATEGY, normals()[1:])
