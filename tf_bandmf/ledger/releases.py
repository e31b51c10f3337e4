"""What one run or release costs the data set that it uses."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import dp_accounting

from tf_bandmf import matrices
from tf_bandmf.accounting.guarantee import REPLACE_ONE, ZERO_OUT, Guarantee
from tf_bandmf.analysis.sensitivity import sensitivity
from tf_bandmf.planning.composition import REPLACE_ONLY, JointGuarantee
from tf_bandmf.planning.elsewhere import AccountedEvent, ApproximateDP
from tf_bandmf.planning.parts import Part, Run
from tf_bandmf.planning.plan import Plan
from tf_bandmf.planning.release import Release, release_of
from tf_bandmf.planning.tuning import TuningCost

ADJACENCIES = {"zero-out": ZERO_OUT, "replace-one": REPLACE_ONE}


@dataclasses.dataclass(frozen=True)
class Dataset:
    """A data set of a ledger.

    Attributes:
      name: by which plans are bound to it.
      id: the digest of its first entry.
      unit: whose presence its budget hides; plans must have the same.
      adjacency: "zero-out" or "replace-one".
    """

    name: str
    id: str
    unit: str
    adjacency: str

    @property
    def replaces(self) -> bool:
        """Whether neighbors are data sets in which one unit is replaced."""
        return ADJACENCIES[self.adjacency] == REPLACE_ONE

    def check(self, unit: str, test_seed: int | None = None) -> None:
        """Raises ValueError if a run may not use the data, or hides another unit."""
        if unit != self.unit:
            raise ValueError(
                f"{self.name!r} is for unit={self.unit!r}, and the plan hides {unit!r}."
            )
        if test_seed is not None:
            raise ValueError("A plan with a test seed protects nobody: plan without.")


def of_plan(plan: Plan, dataset: Dataset, steps: int | None = None) -> Release:
    """A run of a plan, or of its first steps alone.

    Raises:
      ValueError: if no meaningful epsilon is known, or no run of it may use the data.
    """
    dataset.check(plan.unit, plan.test_seed)
    whole = release_of(Run(plan), dataset.replaces)
    if steps == 0:
        return Release(0.0, 0.0)
    if steps is None or steps == plan.num_steps:
        return whole
    if not whole.is_gaussian:
        epsilon = plan.epsilon_after(steps)
        return dataclasses.replace(
            whole, epsilon=epsilon, poisson=None, fixed_size=None
        )
    if plan.participation.is_simulated:
        return whole
    block = matrices.leading_block(plan.strategy.matrix, steps)
    value = sensitivity(block, plan.participation, steps).value
    mu = math.hypot(value / plan.unit_noise_stddev, plan.measurements.mu)
    mu = min(whole.mu or math.inf, mu * (2.0 if dataset.replaces else 1.0))
    return Release.of_mu(mu, plan.delta)


def described(what: Any, dataset: Dataset) -> tuple[Release, ...]:
    """What a release that is not a run of a bound plan costs; see `Ledger.spend`.

    Raises:
      TypeError: if it is nothing that has a cost.
      ValueError: if it says nothing for the data set's unit or adjacency.
    """
    if isinstance(what, JointGuarantee):
        parts = [part.plan if isinstance(part, Run) else part for part in what.parts]
        return tuple(one for part in parts for one in described(part, dataset))
    if isinstance(what, Plan):
        return (of_plan(what, dataset),)
    risk = 1.0 - (getattr(what, "confidence", None) or 1.0)
    if isinstance(what, dp_accounting.DpEvent):
        what = AccountedEvent(what)
    elif isinstance(what, tuple) and len(what) == 2:
        what = ApproximateDP(*what, replace_one=dataset.replaces)
    elif isinstance(what, (TuningCost, Guarantee)):
        dataset.check(getattr(what, "unit", dataset.unit))
        # What is stated for plans that replace one holds for zero-out, too.
        replaces = what.adjacency == REPLACE_ONLY or (
            what.adjacency == REPLACE_ONE and dataset.replaces
        )
        kind = "estimate" if getattr(what, "kind", "") == "estimate" else "bound"
        what = ApproximateDP(what.epsilon, what.delta, replaces, kind)
    if not isinstance(what, Part):
        raise TypeError(
            f"what must be a Plan, TuningCost, Guarantee, joint guarantee, part of one, "
            f"event of dp-accounting, or (epsilon, delta), found {what!r}."
        )
    return (dataclasses.replace(release_of(what, dataset.replaces), risk=risk),)
