"""What an account has spent: the best of several theorems, kept as exact sums."""

import math
import random

import pytest

import tf_bandmf
from tf_bandmf.accounting import gaussian
from tf_bandmf.accounting.cyclic_poisson import CyclicPoissonAccountant
from tf_bandmf.ledger import bounds
from tf_bandmf.ledger.amounts import amount, number
from tf_bandmf.ledger.balances import Balance
from tf_bandmf.ledger.budgets import Budget
from tf_bandmf.ledger.costs import Cost, gaussian_cost, kind_cost

DELTA = 1e-5


def gaussian_run(epsilon, delta=1e-6):
    mu = 1.0 / gaussian.calibrate_noise_stddev(epsilon, delta)
    return gaussian_cost(mu, epsilon, delta)


def poisson_run(epsilon=0.8, queries=100):
    return kind_cost(epsilon, 1e-6, mu=1.5, poisson=[0.01, 1.0, queries])


def total(*costs):
    balance = Balance()
    for cost in costs:
        balance = balance.plus(cost)
    return balance


def test_sums_are_exact_in_any_order():
    assert number(10 * amount(0.1)) == 1.0
    assert amount(0.1) * 3 == amount(0.3)
    for value in (1e-20, 0.1, 1 / 3, 4.0, 123.456):
        assert number(amount(value)) == value
    for bad in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="finite and >= 0"):
            amount(bad)
    rng = random.Random(1)
    costs = [gaussian_run(rng.uniform(0.1, 2)) for _ in range(20)]
    costs += [kind_cost(rng.uniform(0.1, 2), 1e-7) for _ in range(300)]
    balance = total(*costs)
    back, rest = Balance(), []
    for cost in costs:
        rest.append(back.is_rest(cost))
        back = back.plus(cost)
    assert any(rest)
    places = list(range(len(costs)))
    rng.shuffle(places)
    for place in places:
        balance = balance.minus(costs[place], rest[place])
    assert balance == Balance()
    assert Balance.from_json(back.to_json()) == back
    assert Cost.from_json(costs[-1].to_json()) == costs[-1]


def test_gaussian_runs_compose_exactly():
    balance = total(*[gaussian_run(1.0)] * 4)
    noise = gaussian.calibrate_noise_stddev(1.0, 1e-6)
    expected = gaussian.gaussian_epsilon(noise / 2.0, DELTA)
    found = bounds.best(balance, DELTA)
    assert found.epsilon == pytest.approx(expected, rel=1e-9)
    assert found.method == bounds.GAUSSIAN


@pytest.mark.slow_cases("mixed", "poisson")
@pytest.mark.parametrize(
    "costs",
    [
        [gaussian_run(1.0)] * 3,
        [kind_cost(0.5, 1e-7)] * 3,
        [kind_cost(0.01, 0.0)] * 50,
        [poisson_run()] * 2 + [gaussian_run(0.3)],
        [poisson_run(), kind_cost(0.2, 1e-8), gaussian_run(0.3)],
        [kind_cost(0.5, 1e-7, fixed_size=[100, 10, 2.0, 20], mu=4.0)] * 2,
    ],
    ids=["gaussian", "stated", "pure", "poisson", "mixed", "fixed-size"],
)
def test_never_worse_than_basic_composition(costs):
    balance = total(*costs)
    epsilon = sum(number(cost.epsilon) for cost in costs)
    delta = sum(number(cost.delta) for cost in costs) or 1e-6
    found = bounds.best(balance, delta * (1 + 1e-9)).epsilon
    assert 0.0 < found <= epsilon * (1 + 1e-9)
    budget = Budget("year", epsilon=epsilon, delta=delta)
    assert budget.admits(balance)
    # And no budget that is smaller than the best bound admits it.
    smaller = Budget("year", epsilon=0.99 * found, delta=delta)
    assert not smaller.admits(balance)


@pytest.mark.slow
def test_amplified_runs_compose_by_their_losses_as_compose_does():
    plan = tf_bandmf.plan(
        "identity",
        epsilon=1.0,
        delta=1e-6,
        num_examples=1200,
        batch_size=40,
        epochs=2,
        sampling="poisson",
    )
    from tf_bandmf.accounting.guarantee import ZERO_OUT
    from tf_bandmf.ledger.costs import plan_cost

    cost = plan_cost(plan, ZERO_OUT)
    found = bounds.best(total(cost, cost, cost), DELTA)
    joint = tf_bandmf.compose([plan] * 3).epsilon(DELTA)
    assert found.epsilon == pytest.approx(joint, rel=1e-3)
    assert found.epsilon < 0.9 * 3 * plan.guarantee_at(DELTA / 3).epsilon


@pytest.mark.slow_cases("1e-08", "1e-11", "1e-14")
@pytest.mark.parametrize("delta", [1e-5, 1e-8, 1e-11, 1e-14])
def test_a_balance_of_poisson_runs_is_never_below_their_accountant(delta):
    """At tiny deltas, too, where convolutions of many queries are rounding errors.

    One run as it states it; two, as one run of twice as many queries.
    """
    probability, noise, queries = 0.05, 1.5, 400
    stated = CyclicPoissonAccountant(queries, probability).epsilon(delta, noise)
    mu, query = math.sqrt(queries) / noise, [probability, noise, queries]
    run = kind_cost(stated, delta, mu=mu, poisson=query)
    twice = CyclicPoissonAccountant(2 * queries, probability).epsilon(delta, noise)
    for runs, exact in ((1, stated), (2, twice)):
        balance = total(*[run] * runs)
        assert exact <= bounds.best(balance, delta).epsilon <= 1.001 * exact
        budget = Budget("always", epsilon=0.99 * exact, delta=delta)
        assert not budget.admits(balance)


@pytest.mark.parametrize("delta", [1e-6, 1e-11, 1e-12, 1e-13, 1e-14])
def test_many_pure_releases_are_never_below_their_binomial(delta):
    """1000 randomized responses of epsilon .01: their exact delta, in rationals' stead.

    Losses are (2 k - n) epsilon; beyond the epsilon found, the mass must be <= delta.
    """
    count, epsilon = 1000, 0.01
    found = bounds.best(total(*[kind_cost(epsilon, 0.0)] * count), delta).epsilon
    log_p, log_q = -math.log1p(math.exp(-epsilon)), -math.log1p(math.exp(epsilon))
    exact = 0.0
    for k in range(count + 1):
        loss = (2 * k - count) * epsilon
        if loss > found:
            log_mass = math.lgamma(count + 1) - math.lgamma(k + 1)
            log_mass += k * log_p + (count - k) * log_q - math.lgamma(count - k + 1)
            exact += math.exp(log_mass) * -math.expm1(found - loss)
    assert exact <= delta
    assert found <= count * epsilon


def test_several_kinds_are_never_below_the_best_that_one_can_do():
    """A Gaussian mechanism beside randomized response, by one dimensional integrals.

    The joint delta is the mean over the response's two losses of the Gaussian profile.
    """
    mu, response = 0.5, 1.0
    p = 1.0 / (1.0 + math.exp(-response))
    for delta in (1e-5, 1e-8, 1e-11, 1e-13):
        balance = total(gaussian_cost(mu, 9.0, 1e-15), kind_cost(response, 0.0))
        found = bounds.best(balance, delta).epsilon
        exact = p * gaussian.gaussian_delta(1.0 / mu, found - response)
        exact += (1.0 - p) * gaussian.gaussian_delta(1.0 / mu, found + response)
        assert exact <= delta
