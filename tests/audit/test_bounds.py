"""Audits' lower bounds on epsilon match formulas, and hold as often as stated."""

import math

import numpy as np
import pytest
from scipy import special, stats

from tf_bandmf import audit


@pytest.mark.parametrize("right", [30, 60, 90, 100])
def test_guesses_without_delta_are_a_binomial_test(right):
    # For delta near 0, the p-value of Theorem 5.2 of arXiv:2305.08846 is
    # P[Bin(r, e^eps / (1 + e^eps)) >= v].
    actual = audit.epsilon_from_guesses(1000, 100, right, 1e-300, 0.95)
    p_value = stats.binom.sf(right - 1, 100, special.expit(actual))
    if right <= 50:
        assert actual == 0.0
    else:
        assert p_value == pytest.approx(0.05, rel=1e-6)


def test_guesses_with_delta_follow_the_theorem_term_by_term():
    m, r, v, delta = 500, 200, 150, 1e-4
    epsilon = audit.epsilon_from_guesses(m, r, v, delta, 0.9)
    accuracy = special.expit(epsilon)
    near = [
        sum(stats.binom.pmf(v - j, r, accuracy) for j in range(1, i + 1)) / i
        for i in range(1, v + 1)
    ]
    p_value = stats.binom.sf(v - 1, r, accuracy) + 2 * m * delta * max(near)
    assert p_value == pytest.approx(0.1, rel=1e-6)
    assert epsilon < audit.epsilon_from_guesses(m, r, v, 1e-300, 0.9)


def test_rates_are_those_of_clopper_and_pearson():
    low = stats.beta.ppf(0.025, 90, 11)
    high = stats.beta.ppf(0.975, 11, 90)
    actual = audit.epsilon_from_rates(90, 100, 10, 100, 1e-5, 0.95)
    assert actual == pytest.approx(math.log((low - 1e-5) / high), rel=1e-9)
    mu = audit.mu_from_rates(90, 100, 10, 100, 0.95)
    assert mu == pytest.approx(stats.norm.ppf(low) - stats.norm.ppf(high), rel=1e-9)
    # The bounds are finite even if all guesses are wrong, or all are right.
    assert audit.epsilon_from_rates(0, 100, 0, 100, 1e-5) == 0.0
    assert audit.epsilon_from_guesses(1000, 1000, 500, 1e-5) == 0.0
    assert audit.mu_from_guesses(1000, 1000, 500) == 0.0
    assert audit.mu_from_rates(100, 100, 0, 100) > 3.0
    assert audit.mu_from_rates(100, 100, 100, 100) == 0.0


def test_printed_bounds_are_rounded_down():
    bound = audit.LowerBound(2.9999, "guesses", "nothing")
    text = str(audit.AuditResult((bound,), 1e-5, 0.95, 100, 50, 2.5))
    assert text.count("epsilon >= 2.99") == 2 and "CONTRADICTS" in text
    scores, included = np.repeat([3.0, 0.0], 50), np.repeat([True, False], 50)
    made = audit.evaluate(scores, included, delta=1e-5, is_gaussian=True).bounds[1]
    printed = float(made.method.split()[2])
    assert printed <= made.mu < printed + 0.01


@pytest.mark.slow_cases("0.5")
@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_randomized_response_is_bounded_as_often_as_stated(epsilon):
    # Theorem 5.2 of arXiv:2305.08846 is tight if each guess is right with probability
    # e^eps / (1 + e^eps).
    rng = np.random.default_rng(0)
    right = rng.binomial(500, special.expit(epsilon), size=1000)
    table = {
        v: audit.epsilon_from_guesses(500, 500, int(v), 1e-12, 0.9) for v in set(right)
    }
    above = np.mean([table[v] > epsilon for v in right])
    assert 0.05 < above <= 0.1 + 3 * math.sqrt(0.09 / 1000)


@pytest.mark.parametrize("mu", [0.5, 1.0, 2.0])
def test_a_gaussian_mechanism_is_bounded_as_often_as_stated(mu):
    rng = np.random.default_rng(1)
    m, guesses, runs = 400, 80, 300
    included = rng.random((runs, m)) < 0.5
    scores = rng.normal(size=(runs, m)) + mu * included
    order = np.argsort(scores, axis=1)
    top = np.take_along_axis(included, order[:, -guesses // 2 :], 1).sum(1)
    bottom = (~np.take_along_axis(included, order[:, : guesses // 2], 1)).sum(1)
    right = top + bottom
    table = {v: audit.mu_from_guesses(m, guesses, int(v), 0.9) for v in set(right)}
    assert np.mean([table[v] > mu for v in right]) <= 0.1
    assert np.median([table[v] for v in right]) > 0.3 * mu
    said = scores > mu / 2
    rates = [
        audit.mu_from_rates(
            int((s & i).sum()), int(i.sum()), int((s & ~i).sum()), int((~i).sum()), 0.9
        )
        for s, i in zip(said, included)
    ]
    assert np.mean(np.array(rates) > mu) <= 0.1
