"""The runs of this process: a second one on the same data or model is never silent.

Every `PrivateOptimizer` has a noise key of its own. Two keys on the same data are two
releases, whose privacy losses add up, however alike plan and code are: a model that is
compiled again, trials of a tuner, folds, seeds, comparisons. Runs are recognized by
their weights (the same variables) and their examples (`sampling.identity`).

A run counts from its first step on. The registry lives as long as the process: the
caller must know about runs in other processes. A plan with a test seed promises nothing
and does not count.
"""

from __future__ import annotations

import dataclasses
import hashlib
import threading
import weakref
from collections.abc import Sequence
from typing import Any

from tf_bandmf.noise.keys import NoiseKey
from tf_bandmf.planning.plan import Plan
from tf_bandmf.sampling import identity
from tf_bandmf.sampling.identity import Records

# Stands for data whose batches the caller makes.
NO_SCHEDULE = -1
# In a graph, where the other run cannot be named.
SECOND_RUN = (
    "This is a second run: a run of this process trained on the same weights or examples "
    "with another noise key, and both together spend more than either. If it is meant, "
    "give PrivateOptimizer(..., additional_run=True), or fit_privately, and publish the "
    "joint guarantee, model.privacy_statement(). To go on with the first run, compile "
    "with its optimizer, or resume it from its private state file."
)


SAME_SAMPLE = (
    "Another run was trained on these batches. Their sample is secret and drawn for one "
    "run: the guarantee of two assumes that each has a sample of its own. Draw this run's: "
    "for batch in model.begin_run(plan.batches(x, y)): ..., or model.fit(plan.batches(x, "
    "y)), which does it by itself."
)


@dataclasses.dataclass(frozen=True, eq=False)
class KnownRun:
    """A run that took a step.

    Attributes:
      plan: plan of the run.
      trained: weak references to its trainable weights.
      schedule_id: id of its schedule, or `NO_SCHEDULE` if the caller made its batches.
    """

    plan: Plan
    trained: tuple[weakref.ref[Any], ...]
    schedule_id: int

    def shares(self, weights: Sequence[Any], data: Records) -> str | None:
        """What another run on these weights and data has in common with this one."""
        own = {id(weight) for weight in (ref() for ref in self.trained)}
        found = []
        if any(id(weight) in own for weight in weights):
            found.append("weights")
        own_data = identity.records_of(self.schedule_id)
        if identity.share_examples(own_data, data):
            found.append("examples")
        return " and ".join(found) or None


_RUNS: dict[str, KnownRun] = {}
# The private evaluations that each run has spent.
_EVALUATIONS: dict[str, set[str]] = {}
_LOCK = threading.RLock()


def name_of(key: NoiseKey) -> str:
    """The name of a run, from its noise key: a resumed run has the same name."""
    return hashlib.sha256(b"tf-bandmf run" + key.secret_bytes()).hexdigest()


def evaluations_of(key: NoiseKey) -> set[str]:
    """Names of the evaluations that a run has spent; one set for all its models."""
    with _LOCK:
        return _EVALUATIONS.setdefault(name_of(key), set())


def is_known(name: str | None) -> bool:
    """Whether the run has taken a step in this process."""
    return name in _RUNS


def name_of_schedule(schedule_id: int) -> str | None:
    """The name of the run that is trained on the batches of a schedule, if any."""
    with _LOCK:
        items = list(_RUNS.items())
    return next((n for n, run in items if run.schedule_id == schedule_id), None)


def others(
    name: str | None, weights: Sequence[Any], schedule_id: int
) -> list[tuple[str, KnownRun]]:
    """Other runs on the same weights or examples, and what they have in common.

    Args:
      name: of the run that asks; None if it has no key yet.
      weights: all of its model's.
      schedule_id: of its data, or `NO_SCHEDULE`.
    """
    data = identity.records_of(schedule_id)
    with _LOCK:
        pairs = [
            (run.shares(weights, data), run)
            for other, run in _RUNS.items()
            if other != name
        ]
    return [(common, run) for common, run in pairs if common is not None]


def refusal(name: str | None, weights: Sequence[Any], schedule_id: int) -> str | None:
    """Why a run may not begin unless it was announced as an additional one, or None."""
    found = others(name, weights, schedule_id)
    if not found:
        return None
    common, run = found[-1]
    return (
        f"{SECOND_RUN} (In common: {common}. The other run: epsilon = "
        f"{run.plan.epsilon:g}, delta = {run.plan.delta:g}, plan "
        f"{run.plan.fingerprint[:12]}.)"
    )


def note(name: str, plan: Plan, trained: Sequence[Any], schedule_id: int) -> None:
    """Counts a run that takes a step."""
    run = KnownRun(
        plan,
        tuple(weakref.ref(weight) for weight in trained),
        schedule_id,
    )
    with _LOCK:
        _RUNS[name] = run


def forget() -> None:
    """Forgets all runs; for tests, each of which starts without runs."""
    with _LOCK:
        _RUNS.clear()
        _EVALUATIONS.clear()
