"""What one run costs: everything that is known of its privacy, under one adjacency.

A run without amplification is a Gaussian mechanism, and that is all there is to know: its
cost is mu^2. Any other cost is a *kind*: (epsilon, delta), and what else is known of it, as
a text of canonical JSON, by which equal ones are counted.

| field of a kind | what |
|---|---|
| `epsilon`, `delta` | as stated; always there |
| `mu` | of the Gaussian mechanism that it is at least as private as |
| `rho` | of zCDP, where there is no `mu` |
| `poisson` | `[q, noise, queries]`: Poisson-sampled Gaussian queries |
| `fixed_size` | `[part, batch, noise, queries]`: samples without replacement |
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from typing import TYPE_CHECKING, Any

from tf_bandmf.accounting.checks import (
    check_delta,
    check_epsilon,
    check_nonnegative,
    check_positive,
    whole_number,
)
from tf_bandmf.accounting.guarantee import REPLACE_ONE, ZERO_OUT, Guarantee
from tf_bandmf.ledger.amounts import amount, square_amount

if TYPE_CHECKING:
    from tf_bandmf.planning.plan import Plan

ADJACENCIES = {"zero-out": ZERO_OUT, "replace-one": REPLACE_ONE}


@dataclasses.dataclass(frozen=True)
class Cost:
    """What one run costs.

    Attributes:
      epsilon, delta: as stated, in units; both 0 for a run that took no step.
      gaussian: mu^2 in units, if the run is a Gaussian mechanism; else 0.
      kind: of any other run, canonical JSON; else None.
      risk: probability, in units, that a simulated bound does not hold.
    """

    epsilon: int
    delta: int
    gaussian: int = 0
    kind: str | None = None
    risk: int = 0

    def to_json(self) -> dict[str, Any]:
        """Plain values for an entry."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Cost:
        """Reads `to_json`."""
        return cls(**value)


NOTHING = Cost(0, 0)


def gaussian_cost(mu: float, epsilon: float, delta: float) -> Cost:
    """The cost of a Gaussian mechanism: sensitivity `mu` per unit of noise."""
    check_positive("mu", mu)
    return Cost(amount(epsilon), amount(delta), square_amount(mu))


def kind_cost(epsilon: float, delta: float, **known: Any) -> Cost:
    """The cost of anything else, by what is known of it; see the table above."""
    check_epsilon(epsilon)
    if delta != 0.0:
        check_delta(delta)
    fields = {name: value for name, value in known.items() if value is not None}
    _check_known(fields)
    kind = {"epsilon": float(epsilon), "delta": float(delta), **fields}
    text = json.dumps(kind, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return Cost(amount(epsilon), amount(delta), kind=text)


def _check_known(fields: dict[str, Any]) -> None:
    """Raises ValueError for what no mechanism has: an entry stays for ever."""
    for name in ("mu", "rho"):
        if name in fields:
            check_nonnegative(name, fields[name])
    if "poisson" in fields:
        probability, noise, queries = fields["poisson"]
        check_positive("noise_multiplier", noise)
        whole_number("count", queries)
        if not 0.0 < probability <= 1.0:
            raise ValueError(
                f"sampling_probability must be in (0, 1], found {probability!r}."
            )


@functools.lru_cache(maxsize=4096)
def parsed(kind: str) -> dict[str, Any]:
    """The fields of a kind."""
    return json.loads(kind)


def plan_cost(plan: Plan, adjacency: str, steps: int | None = None) -> Cost:
    """The cost of a run of a plan, or of its first steps alone.

    Under replace-one adjacency a run that is stated for zero-out counts with half of its
    noise and without its amplification: one replacement is twice a zero-out (as in
    `planning.composition`).

    Args:
      plan: of the run.
      adjacency: of the data set, `ZERO_OUT` or `REPLACE_ONE`.
      steps: that were taken; None for all of the plan.

    Raises:
      ValueError: if no meaningful epsilon is known.
    """
    steps = plan.num_steps if steps is None else steps
    if steps == 0:
        return NOTHING
    is_moved = adjacency == REPLACE_ONE and plan.adjacency != REPLACE_ONE
    moved = 2.0 if is_moved else 1.0
    if plan.participation.is_amplified and not is_moved:
        return _amplified_cost(plan, adjacency, steps)
    mu = moved / plan.unamplified_noise
    if steps < plan.num_steps:
        mu = min(mu, moved * _block_mu(plan, steps))
    if not is_moved and steps == plan.num_steps:
        return gaussian_cost(mu, plan.epsilon, plan.delta)
    from tf_bandmf.accounting.gaussian import gaussian_epsilon

    epsilon = gaussian_epsilon(1.0 / mu, plan.delta)
    return gaussian_cost(
        mu, epsilon if is_moved else min(epsilon, plan.epsilon), plan.delta
    )


def _amplified_cost(plan: Plan, adjacency: str, steps: int) -> Cost:
    """With what is known of the sampling, for the data set's adjacency.

    An estimate is no bound: such a run counts without its amplification.
    """
    from tf_bandmf.accounting.gaussian import gaussian_epsilon

    is_replaced = adjacency == REPLACE_ONE
    mu = (2.0 if is_replaced else 1.0) / plan.unamplified_noise
    if plan.kind == "estimate":
        return gaussian_cost(mu, gaussian_epsilon(1.0 / mu, plan.delta), plan.delta)
    cost = kind_cost(
        plan.epsilon_after(steps), plan.delta, mu=mu, **_sampled(plan, steps)
    )
    return _with_risk(cost, plan.confidence)


def _with_risk(cost: Cost, confidence: float | None) -> Cost:
    """The cost, with the probability with which a simulated bound fails."""
    risk = 0.0 if confidence is None else 1.0 - confidence
    return dataclasses.replace(cost, risk=amount(risk))


def _block_mu(plan: Plan, steps: int) -> float:
    """Sensitivity of the leading block of C per unit of noise, evaluations included."""
    from tf_bandmf import matrices
    from tf_bandmf.analysis.sensitivity import sensitivity

    block = matrices.leading_block(plan.strategy.matrix, steps)
    found = sensitivity(block, plan.participation, steps)
    mu = found.value / plan.unit_noise_stddev
    return math.hypot(mu, plan.measurements.mu)


def _sampled(plan: Plan, steps: int) -> dict[str, Any]:
    """dp-accounting's event of a run's sampling, if it has one."""
    import dp_accounting

    # Events of the sampling say nothing of private evaluations.
    if plan.participation.is_simulated or plan.measurements.evaluations:
        return {}
    from tf_bandmf import matrices

    matrix = plan.strategy.matrix
    if steps < plan.num_steps:
        matrix = matrices.leading_block(matrix, steps)
    accountant = plan.participation.accountant(matrix)
    event = accountant.event(plan.unit_noise_stddev)
    if not isinstance(event, dp_accounting.SelfComposedDpEvent):
        return {}
    query, count = event.event, int(event.count)
    if isinstance(query, dp_accounting.PoissonSampledDpEvent):
        noise = float(query.event.noise_multiplier)  # type: ignore[attr-defined]
        return {"poisson": [float(query.sampling_probability), noise, count]}
    if isinstance(query, dp_accounting.SampledWithoutReplacementDpEvent):
        noise = float(query.event.noise_multiplier)  # type: ignore[attr-defined]
        return {
            "fixed_size": [
                int(query.source_dataset_size),
                int(query.sample_size),
                noise,
                count,
            ]
        }
    return {}


def stated_cost(guarantee: Guarantee, adjacency: str) -> Cost:
    """The cost of a release that only states its guarantee.

    Raises:
      ValueError: if it is stated for another adjacency than the data set's.
    """
    if adjacency == REPLACE_ONE and guarantee.adjacency != REPLACE_ONE:
        # Zero one out, put another one in: group privacy for two steps.
        epsilon = 2.0 * guarantee.epsilon
        delta = guarantee.delta * (1.0 + math.exp(guarantee.epsilon))
        rho = None if guarantee.zcdp_rho is None else 4.0 * guarantee.zcdp_rho
        if delta >= 1.0:
            raise ValueError(
                f"The guarantee is for zero-out adjacency, and says nothing for the data "
                f"set's, replace-one: delta would be {delta:.3g}."
            )
    else:
        epsilon, delta, rho = guarantee.epsilon, guarantee.delta, guarantee.zcdp_rho
    return _with_risk(kind_cost(epsilon, delta, rho=rho), guarantee.confidence)
