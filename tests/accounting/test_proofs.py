"""Checks claims of docs/proofs.md on the joint output of all steps of small runs."""

import itertools
import math

import numpy as np
import pytest

from tf_bandmf import matrices
from tf_bandmf.accounting import tilted
from tf_bandmf.accounting.balls_in_bins import BallsInBinsAccountant
from tf_bandmf.accounting.bins_simulator import gram_matrix


def cyclic_delta(strategy, num_parts, q, noise, epsilon, num_draws, seed):
    """Estimates the delta of releasing C x + z, for an example in the first part.

    Every `num_parts` steps, this example is sampled with probability q.
    """
    n = len(strategy)
    steps = np.arange(0, n, num_parts)
    patterns = list(itertools.product((0, 1), repeat=steps.size))
    weights = np.array([q ** sum(p) * (1 - q) ** (len(p) - sum(p)) for p in patterns])
    means = np.array([strategy[:, steps] @ np.array(p) for p in patterns])
    generator = np.random.default_rng(seed)
    # Importance sampling: larger means make rare losses frequent, and the weights
    # correct for the larger means.
    chosen = generator.choice(len(patterns), num_draws, p=weights)
    y = 1.5 * means[chosen] + noise * generator.standard_normal((num_draws, n))

    def log_density(factor):
        exponents = factor * y @ means.T - 0.5 * factor**2 * (means**2).sum(axis=1)
        exponents = exponents / noise**2 + np.log(weights)
        return np.logaddexp.reduce(exponents, axis=1)

    loss = log_density(1.0)
    values = np.exp(loss - log_density(1.5)) * np.maximum(-np.expm1(epsilon - loss), 0)
    return values.mean(), values.std() / math.sqrt(num_draws)


@pytest.mark.parametrize("bands", [1, 2, 3])
def test_cyclic_sampling_is_that_of_its_queries_up_to_as_many_bands_as_parts(bands):
    """The claimed delta is right for bands <= parts (here 3), and too small otherwise."""
    q, noise, epsilon, parts = 0.4, 1.2, 2.0, 3
    column = np.array([1.0, 0.6, 0.4, 0.5])

    def of_bands(count):
        strategy = np.zeros((6, 6))
        for j in range(count):
            strategy += np.diag(np.full(6 - j, column[j]), -j)
        return strategy

    strategy = of_bands(bands)
    kappa = float(np.linalg.norm(strategy, axis=0)[0])
    claimed = tilted.delta([tilted.Query(q, noise / kappa, 2)], epsilon)
    value, error = cyclic_delta(strategy, parts, q, noise, epsilon, 40_000, 1)
    assert abs(value - claimed) <= 5.0 * error + 1e-3 * claimed
    overlapping = of_bands(4)
    kappa = float(np.linalg.norm(overlapping, axis=0)[0])
    claimed = tilted.delta([tilted.Query(q, noise / kappa, 2)], epsilon)
    value, error = cyclic_delta(overlapping, parts, q, noise, epsilon, 40_000, 1)
    assert value - 5.0 * error > claimed


@pytest.mark.parametrize("coupling", [0.5, 2.0])
@pytest.mark.parametrize("noise, epsilon", [(0.6, 1.0), (1.5, 0.5)])
def test_no_choice_by_what_was_released_is_worse_than_the_dominating_pair(
    coupling, noise, epsilon
):
    """A second gradient that depends on the first output does not increase delta."""
    strategy = np.array([[1.0, 0.0], [coupling, 1.0]])
    matrix = matrices.Dense(strategy)
    places = np.linspace(-7.0, 10.0, 241) * noise
    cell = (places[1] - places[0]) ** 2
    first, second = np.meshgrid(places, places, indexing="ij")

    def density(mean_1, mean_2):
        exponents = (first - mean_1) ** 2 + (second - mean_2) ** 2
        return np.exp(-0.5 * exponents / noise**2) / (2.0 * math.pi * noise**2)

    none = density(0.0, 0.0)

    def deltas(sign):
        # The example is used at step 0 if it is in the first bin, else at step 1.
        some = 0.5 * density(1.0, coupling) + 0.5 * density(0.0, sign)
        grown = math.exp(epsilon)
        removed = np.maximum(some - grown * none, 0.0).sum() * cell
        added = np.maximum(none - grown * some, 0.0).sum() * cell
        return removed, added

    largest = deltas(np.ones_like(first))
    choices = [
        np.where(first > t, s, -s) for t in (-1.0, 0.0, 0.5, 1.5) for s in (1, -1)
    ]
    choices += [np.cos(first / noise), -np.ones_like(first), np.zeros_like(first)]
    for choice in choices:
        for actual, most in zip(deltas(choice), largest):
            assert actual <= most * (1.0 + 1e-6)
    accountant = BallsInBinsAccountant(gram_matrix(matrix, 2), 1.0 - 1e-6)
    assert max(largest) <= accountant.delta(epsilon, noise)
