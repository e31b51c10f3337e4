"""The privacy cost of one run or release for the data set that it uses."""

from __future__ import annotations

import dataclasses
from typing import Any

import dp_accounting

from tf_bandmf.accounting.guarantee import Guarantee
from tf_bandmf.planning.composition import ADJACENCIES, JointGuarantee, Release, compose
from tf_bandmf.planning.plan import Plan
from tf_bandmf.planning.tuning import TuningCost

# The delta at which epsilon is computed for releases without a delta.
_DELTA = 1e-9


@dataclasses.dataclass(frozen=True)
class Dataset:
    """A data set of a ledger.

    Attributes:
      name: the name that is used to bind a plan.
      id: the digest of the data set's first entry.
      unit: the unit whose presence the budget hides; plans must have the same unit.
      adjacency: "zero-out" or "replace-one".
    """

    name: str
    id: str
    unit: str
    adjacency: str

    @property
    def replaces(self) -> bool:
        """True if neighbors are data sets in which one unit is replaced."""
        return self.adjacency == "replace-one"

    def check(self, unit: str, test_seed: int | None = None) -> None:
        """Raises ValueError if a run may not use the data set or protects another unit."""
        if unit != self.unit:
            raise ValueError(
                f"The unit must be {self.unit!r} for {self.name!r}, found {unit!r}."
            )
        if test_seed is not None:
            raise ValueError("A plan with a test seed gives no privacy. Omit the seed.")


def of_plan(plan: Plan, dataset: Dataset, steps: int | None = None) -> Release:
    """Returns the cost of a run of a plan, or of its first steps alone.

    Raises:
      ValueError: if no meaningful epsilon is known, or the plan may not use the data.
    """
    dataset.check(plan.unit, plan.test_seed)
    whole = recorded(Release.of_plan(plan), dataset)
    if steps == 0:
        return Release(epsilon=0.0)
    if steps is None or steps == plan.num_steps:
        return whole
    if not whole.is_gaussian:
        epsilon = plan.epsilon_after(steps)
        return dataclasses.replace(whole, epsilon=epsilon, event=None)
    if plan.participation.is_simulated:
        return whole
    noise = plan.accounting(steps=steps).multiplier(plan.unit_noise_stddev)
    noise = max(noise, plan.unamplified_noise)
    return recorded(Release.gaussian(noise, plan.delta), dataset)


def described(what: Any, dataset: Dataset) -> tuple[Release, ...]:
    """Returns the cost of a release other than a bound plan's run; see `Ledger.spend`.

    Raises:
      TypeError: if `Ledger.spend` does not accept releases of this type.
      ValueError: if the release has no guarantee for the data set's unit or adjacency.
    """
    if isinstance(what, JointGuarantee):
        parts = [part.plan or part for part in what.parts]
        return tuple(one for part in parts for one in described(part, dataset))
    if isinstance(what, Plan):
        return (of_plan(what, dataset),)
    if isinstance(what, dp_accounting.DpEvent):
        what = Release(event=what)
    elif isinstance(what, tuple) and len(what) == 2:
        pair = dict(zip(("epsilon", "delta"), what))
        what = Release(**pair, adjacency=dataset.adjacency)
    elif isinstance(what, (TuningCost, Guarantee)):
        dataset.check(getattr(what, "unit", dataset.unit))
        what = Release(
            epsilon=what.epsilon,
            delta=what.delta,
            adjacency=next(k for k, v in ADJACENCIES.items() if v == what.adjacency),
            kind="estimate" if getattr(what, "kind", "") == "estimate" else "",
            risk=0.0 if what.confidence is None else 1.0 - what.confidence,
        )
    if not isinstance(what, Release):
        raise TypeError(
            f"what must be a Plan, TuningCost, Guarantee, joint guarantee, Release, event "
            f"of dp-accounting, or (epsilon, delta), found {what!r}."
        )
    return (recorded(what, dataset),)


def recorded(release: Release, dataset: Dataset) -> Release:
    """Returns the proven part of a release, as numbers that an entry can store.

    Raises:
      ValueError: if the release is an estimate, has no guarantee for the data set's
        adjacency, or has no meaningful epsilon.
    """
    one = release.proven()
    if one.kind == "estimate":
        raise ValueError(f"A release must be a bound, found an estimate: {release}.")
    if one.adjacency == "replace-one" and not dataset.replaces:
        raise ValueError(
            f"{one.describe()} It is stated for neighbors in which one unit is replaced, "
            f"and the data set's adjacency is zero-out. State its guarantee for zero-out."
        )
    if one.is_gaussian:
        noise = one.gaussian_noise(dataset.replaces)
        return Release.gaussian(noise, one.delta or _DELTA, dataset.adjacency)  # type: ignore[arg-type]
    fields: dict[str, Any] = {"about": Release.about, "plan": None}
    if one.epsilon is None:
        stated = compose([one]).guarantee_at(_DELTA)
        fields |= {"epsilon": stated.epsilon, "delta": stated.delta}
    if None in one.kinds:
        fields["event"] = None
    return dataclasses.replace(one, **fields)
