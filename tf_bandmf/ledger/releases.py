"""What was released without a run of a bound plan, as a cost."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import dp_accounting

from tf_bandmf.accounting.checks import check_positive, whole_number
from tf_bandmf.accounting.guarantee import REPLACE_ONE, ZERO_OUT, Guarantee
from tf_bandmf.ledger import bounds
from tf_bandmf.ledger.amounts import number
from tf_bandmf.ledger.costs import (
    Cost,
    gaussian_cost,
    kind_cost,
    plan_cost,
    stated_cost,
)
from tf_bandmf.planning.composition import JointGuarantee, compose
from tf_bandmf.planning.elsewhere import ApproximateDP, ZeroConcentratedDP
from tf_bandmf.planning.parts import Part
from tf_bandmf.planning.plan import Plan
from tf_bandmf.planning.tuning import TuningCost

if TYPE_CHECKING:
    from tf_bandmf.ledger.balances import Balance
    from tf_bandmf.ledger.datasets import Dataset

# At which Gaussian releases state an epsilon, beside their mu.
_DELTA = 1e-9


def described(what: Any, dataset: Dataset) -> tuple[Cost, dict[str, Any]]:
    """Its cost, and what an entry says of it.

    Raises:
      TypeError: if it is nothing that has a cost.
      ValueError: if it says nothing for the data set's unit or adjacency.
    """
    neighbors = dataset.neighbors
    if isinstance(what, JointGuarantee):
        plans = what.plans
    else:
        plans = (what,) if isinstance(what, Plan) else ()
    for plan in plans:
        dataset.check_plan(plan)
    if isinstance(what, Plan):
        cost = plan_cost(what, neighbors)
        return cost, {"what": "run", "plan": what.fingerprint, **_pair(cost)}
    if isinstance(what, TuningCost):
        dataset.check_unit(what.unit, "A trial")
        found = Guarantee(
            what.epsilon,
            what.delta,
            "bound",
            what.method,
            adjacency=what.adjacency,
            confidence=what.confidence,
        )
        cost = stated_cost(found, neighbors)
        trials = {"expected_trials": what.expected_trials, "trials": what.distribution}
        return cost, {"what": "tuning", **trials, **_pair(cost)}
    if isinstance(what, JointGuarantee):
        pairs = [part for part in what.parts if isinstance(part, ApproximateDP)]
        delta = max((plan.delta for plan in what.plans), default=_DELTA)
        # Less than what pairs leak means nothing.
        delta += math.fsum(pair.delta for pair in pairs)
        return _stated(what.guarantee_at(delta), neighbors, "runs")
    if isinstance(what, Part):
        return _of_part(what, neighbors)
    if isinstance(what, Guarantee):
        return _stated(what, neighbors, "guarantee")
    if isinstance(what, dp_accounting.DpEvent):
        cost = _of_event(what, neighbors)
        return cost, {"what": "event", "event": str(what), **_pair(cost)}
    if isinstance(what, tuple) and len(what) == 2:
        cost = kind_cost(float(what[0]), float(what[1]))
        return cost, {"what": "guarantee", **_pair(cost)}
    raise TypeError(
        f"what must be a Guarantee, TuningCost, Plan, joint guarantee, release made "
        f"elsewhere (tf_bandmf.ApproximateDP and others), event of dp-accounting, or "
        f"(epsilon, delta) for the data set's adjacency, found {what!r}."
    )


def _of_part(part: Part, neighbors: str) -> tuple[Cost, dict[str, Any]]:
    """The cost of a release made elsewhere, as `tf_bandmf.compose` takes it."""
    replaced = neighbors == REPLACE_ONE
    if part.replaces and not replaced:
        raise ValueError(
            f"{part.describe()} It is stated for neighbors in which one unit is replaced, "
            f"and the data set's adjacency is zero-out: state it for that."
        )
    if part.kind == "estimate":
        raise ValueError(
            f"An estimate is no bound, and cannot be spent: {part.describe()}"
        )
    if isinstance(part, ApproximateDP):
        cost = kind_cost(*part.stated(replaced))
    elif isinstance(part, ZeroConcentratedDP):
        rho = part.zcdp(replaced)
        # Bun and Steinke, 2016, arXiv:1605.02065, Proposition 1.3.
        epsilon = rho + 2.0 * math.sqrt(rho * math.log(1.0 / _DELTA))
        cost = kind_cost(epsilon, _DELTA, rho=rho)
    else:
        cost = stated_cost(compose([part]).guarantee_at(_DELTA), neighbors)
    return cost, {"what": "elsewhere", "stated": part.describe(), **_pair(cost)}


def _stated(found: Guarantee, neighbors: str, name: str) -> tuple[Cost, dict[str, Any]]:
    if found.kind == "estimate":
        raise ValueError(
            f"An estimate is no bound, and cannot be spent: {found.accountant}. Give what "
            f"holds for certain."
        )
    cost = stated_cost(found, neighbors)
    return cost, {"what": name, "accountant": found.accountant, **_pair(cost)}


def _pair(cost: Cost) -> dict[str, float]:
    return {"epsilon": number(cost.epsilon), "delta": number(cost.delta)}


def _of_event(event: dp_accounting.DpEvent, neighbors: str) -> Cost:
    """The cost of Gaussian events, also composed and Poisson-sampled.

    Raises:
      ValueError: for others, or under another adjacency than they are stated for.
    """
    moved = 2.0 if neighbors == REPLACE_ONE else 1.0
    single, count = event, 1
    if isinstance(event, dp_accounting.SelfComposedDpEvent):
        single, count = event.event, int(event.count)
    whole_number("count", count)
    if isinstance(single, dp_accounting.GaussianDpEvent):
        check_positive("noise_multiplier", single.noise_multiplier)
        mu = moved * math.sqrt(count) / single.noise_multiplier
        return gaussian_cost(mu, bounds.gaussian_epsilon(mu, _DELTA), _DELTA)
    is_sampled = isinstance(single, dp_accounting.PoissonSampledDpEvent)
    if is_sampled and isinstance(single.event, dp_accounting.GaussianDpEvent):
        noise = float(single.event.noise_multiplier)
        check_positive("noise_multiplier", noise)
        mu = moved * math.sqrt(count) / noise
        epsilon = bounds.gaussian_epsilon(mu, _DELTA)
        if neighbors != ZERO_OUT:
            return gaussian_cost(mu, epsilon, _DELTA)
        query = [float(single.sampling_probability), noise, count]
        return kind_cost(epsilon, _DELTA, mu=mu, poisson=query)
    raise ValueError(
        f"what must be an event of Gaussian mechanisms, found {event}: give its guarantee, "
        f"tf_bandmf.Guarantee(epsilon, delta, 'bound', 'what computed it')."
    )


def risk_of(balance: Balance) -> float:
    """Probability, at most, that a simulated bound does not hold."""
    return number(balance.risk)
