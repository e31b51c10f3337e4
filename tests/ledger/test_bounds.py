"""What an account has spent: the best of several theorems, kept as exact sums."""

import math
import random

import numpy as np
import pytest

import tf_bandmf
from tf_bandmf.accounting import gaussian
from tf_bandmf.ledger import bounds, filters, renyi
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
    assert found.method == bounds.LOSSES
    assert found.epsilon == pytest.approx(joint, rel=1e-3)
    assert found.epsilon < 0.9 * 3 * plan.guarantee_at(DELTA / 3).epsilon


def test_randomized_response_has_its_divergence():
    for epsilon in (0.01, 1.0, 8.0):
        log_p, log_q = -math.log1p(math.exp(-epsilon)), -math.log1p(math.exp(epsilon))
        for order in renyi.ORDERS:
            terms = np.logaddexp(
                order * log_p + (1 - order) * log_q, order * log_q + (1 - order) * log_p
            )
            expected = terms / (order - 1.0)
            found = renyi.randomized_response(epsilon, order)
            assert found == pytest.approx(expected, rel=1e-6, abs=1e-12)
            assert found <= min(epsilon, 0.5 * order * epsilon**2) * (1 + 1e-9)


def test_filters_need_more_than_fixed_plans():
    for costs in ([gaussian_run(1.0)] * 4, [poisson_run()] * 3):
        balance = total(*costs)
        fixed = Budget("year", epsilon=4.0, delta=DELTA).spent(balance).value
        adaptive = Budget("year", epsilon=4.0, delta=DELTA, adaptive=True)
        assert fixed < adaptive.spent(balance).value < 2.5 * fixed
        # One filter for all of delta.
        shares = {"gaussian": 1.0}
        one = Budget("year", epsilon=4.0, delta=DELTA, adaptive=True, shares=shares)
        gaussian_alone = bounds.gaussian_epsilon(bounds.gaussian_mu(balance), DELTA)
        assert one.spent(balance).value == pytest.approx(gaussian_alone, rel=1e-6)


def test_an_adaptive_analyst_cannot_beat_the_filters():
    """Chooses by the loss so far; delta of what was let through, by simulation.

    Gaussian mechanisms, whose loss is a normal variable: an analyst who was lucky goes on,
    with as much as any filter lets him. 200,000 runs; the share of hockey-stick mass is
    compared with delta, at five standard errors.
    """
    budget = Budget("year", epsilon=1.0, delta=0.05, adaptive=True)
    rng, trials = np.random.default_rng(0), 200_000
    squares = {}
    for name, part in budget.shares.items():
        order = filters.fixed_order(1.0, part * 0.05)
        low, high = 0.0, 4.0
        for _ in range(40):
            middle = 0.5 * (low + high)
            cost = gaussian_cost(math.sqrt(middle), 9.0, 1e-9)
            needed = filters.needed_epsilon(total(cost), name, part * 0.05, order)
            low, high = (middle, high) if needed <= 1.0 else (low, middle)
        squares[name] = low
    most = max(squares.values())
    losses = np.zeros(trials)
    spent = np.zeros(trials)
    for step in range(8):
        # Half of what is left where the loss is high, a little elsewhere.
        share = np.where(losses > 0.3 * step / 8, 0.5, 0.1)
        mu2 = share * (most - spent)
        losses += rng.normal(0.5 * mu2, np.sqrt(mu2))
        spent += mu2
    assert (spent <= most).all()
    mass = np.maximum(0.0, 1.0 - np.exp(1.0 - losses))
    assert mass.mean() + 5 * mass.std() / math.sqrt(trials) < 0.05
    assert squares["gaussian"] == most


def test_an_odometer_holds_at_all_moments():
    """The largest excess over time of 20,000 losses: as often as delta says, or less."""
    rng, trials, steps = np.random.default_rng(1), 20_000, 200
    mu2 = np.full(steps, 0.01)
    losses = np.cumsum(
        rng.normal(0.5 * mu2, np.sqrt(mu2), size=(trials, steps)), axis=1
    )
    rho = np.cumsum(0.5 * mu2)
    line = [filters.odometer_epsilon(r, 0.05, rho[-1]) for r in rho]
    assert (losses > line).any(axis=1).mean() < 0.05
    # It is not idle, and at the end about as tight as the conversion of zCDP.
    assert line[-1] == pytest.approx(
        rho[-1] + 2 * math.sqrt(rho[-1] * math.log(1 / 0.05))
    )
    assert filters.odometer_epsilon(math.inf, 0.05, 1.0) == math.inf


def test_what_would_fit_composes_the_runs_of_an_account_once(monkeypatch):
    # Each composition takes tenths of a second, and a refusal tries a dozen epsilons.
    calls = []
    together = bounds._together

    def noted(a, b):
        calls.append(a is not None)
        return together(a, b)

    monkeypatch.setattr(bounds, "_together", noted)
    bounds._of_kinds.cache_clear()
    balance = total(*(poisson_run(queries=count) for count in (20, 21, 22)))
    before = bounds.losses_epsilon(balance, DELTA)
    assert sum(calls) == 2
    calls.clear()
    for epsilon in (0.1, 0.2, 0.3):
        more = bounds.losses_epsilon(balance.plus(gaussian_run(epsilon)), DELTA)
        assert more > before
    assert sum(calls) == 3
