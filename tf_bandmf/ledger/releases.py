"""The privacy cost of one run or release, in the form that a ledger records."""

from __future__ import annotations

import dataclasses
from typing import Any

import dp_accounting

from tf_bandmf.accounting.guarantee import Guarantee
from tf_bandmf.planning.composition import ADJACENCIES, JointGuarantee, Release, compose
from tf_bandmf.planning.plan import Plan
from tf_bandmf.planning.tuning import TuningCost

# The delta at which epsilon is computed for a release that states no delta.
_DELTA = 1e-9


@dataclasses.dataclass(frozen=True)
class Dataset:
    """A data set in a ledger.

    Attributes:
      name: the data set's name in the ledger.
      id: the digest of the data set's first entry in the ledger.
      unit: the privacy unit that the budget protects; plans must have the same unit.
      adjacency: "zero-out" or "replace-one".
    """

    name: str
    id: str
    unit: str
    adjacency: str

    @property
    def replaces(self) -> bool:
        """True if neighboring data sets differ by the replacement of one privacy unit."""
        return self.adjacency == "replace-one"

    def check(self, unit: str, test_seed: int | None = None) -> None:
        """Raises ValueError if `unit` is not the data set's, or a test seed is set."""
        if unit != self.unit:
            raise ValueError(
                f"Data set {self.name!r} needs privacy unit {self.unit!r}, not {unit!r}."
            )
        if test_seed is not None:
            raise ValueError("A run with test_seed=... is not private. Omit test_seed.")


def of_plan(plan: Plan, dataset: Dataset, steps: int | None = None) -> Release:
    """Returns the cost of a run of a plan, or of only the first `steps` steps of the run.

    If the accounting of the run needs a simulation, the first steps cost as much as the
    whole run.

    Raises:
      ValueError: if no meaningful epsilon is known, or if `Dataset.check` refuses the
        plan.
    """
    dataset.check(plan.unit, plan.test_seed)
    run = Release.of_plan(plan)
    if steps == 0:
        return Release(epsilon=0.0)
    if steps not in (None, plan.num_steps) and not plan.participation.is_simulated:
        taken, noise = plan.accounting(steps=steps), plan.unit_noise_stddev
        bounds = {
            "event": taken.event(noise),
            "noise_multiplier": taken.multiplier(noise),
        }
        run = dataclasses.replace(run, epsilon=plan.epsilon_after(steps), **bounds)
    return recorded(run, dataset)


def described(what: Any, dataset: Dataset) -> tuple[Release, ...]:
    """Returns the privacy cost of a release that was passed to `Ledger.spend`.

    Raises:
      TypeError: if `Ledger.spend` does not accept releases of this type.
      ValueError: if the release has no guarantee for the data set's privacy unit or
        adjacency.
    """
    if isinstance(what, JointGuarantee):
        parts = [part.plan or part for part in what.parts]
        return tuple(one for part in parts for one in described(part, dataset))
    if isinstance(what, Plan):
        return (of_plan(what, dataset),)
    if isinstance(what, dp_accounting.DpEvent):
        what = Release(event=what)
    elif isinstance(what, tuple) and len(what) == 2:
        epsilon, delta = what
        what = Release(epsilon=epsilon, delta=delta, adjacency=dataset.adjacency)
    elif isinstance(what, (TuningCost, Guarantee)):
        dataset.check(getattr(what, "unit", dataset.unit))
        what = Release(
            epsilon=what.epsilon,
            delta=what.delta,
            rho=getattr(what, "zcdp_rho", None) or None,
            adjacency=next(k for k, v in ADJACENCIES.items() if v == what.adjacency),
            kind="estimate" if getattr(what, "kind", "") == "estimate" else "",
            risk=0.0 if what.confidence is None else 1.0 - what.confidence,
        )
    if not isinstance(what, Release):
        raise TypeError(
            f"`what` must be a Plan, TuningCost, Guarantee, JointGuarantee, Release, "
            f"dp-accounting event, or pair (epsilon, delta), but found {what!r}."
        )
    return (recorded(what, dataset),)


def recorded(release: Release, dataset: Dataset) -> Release:
    """Converts a release to bounds that an entry of a ledger can store.

    A simulated bound is kept, with the probability that it does not hold. An estimate
    is replaced by a proven bound, if one is known.

    Raises:
      ValueError: if the release is an estimate without a known bound, has no guarantee
        for the data set's adjacency, or has no meaningful epsilon.
    """
    one = release.proven() if release.kind == "estimate" else release
    if one.kind == "estimate":
        raise ValueError(f"Pass a proven cost. This is only an estimate: {release}.")
    if one.adjacency == "replace-one" and not dataset.replaces:
        raise ValueError(
            f"{one.describe()} This guarantee is for replace-one adjacency, but the "
            f"data set's adjacency is zero-out. Pass a guarantee for zero-out."
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
