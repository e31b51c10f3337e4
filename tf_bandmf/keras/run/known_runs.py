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
import weakref
from collections.abc import Sequence
from typing import Any

from tf_bandmf.noise.keys import NoiseKey
from tf_bandmf.planning.composition import compose
from tf_bandmf.planning.plan import Plan
from tf_bandmf.planning.statement import PrivacyStatement
from tf_bandmf.sampling import identity

# Stands for data whose batches the caller makes.
NO_SCHEDULE = -1
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

    def shares(self, weights: Sequence[Any], schedule_id: int) -> str:
        """What a run on these weights and data has in common with this one, if anything."""
        own = {id(reference()) for reference in self.trained}
        found = ["weights"] if any(id(weight) in own for weight in weights) else []
        data = identity.records_of(schedule_id)
        if identity.share_examples(identity.records_of(self.schedule_id), data):
            found.append("examples")
        return " and ".join(found)


_RUNS: dict[str, KnownRun] = {}
# The private evaluations that each run has spent.
_EVALUATIONS: dict[str, set[str]] = {}


def name_of(key: NoiseKey) -> str:
    """The name of a run, from its noise key: a resumed run has the same name."""
    return hashlib.sha256(b"tf-bandmf run" + key.secret_bytes()).hexdigest()


def evaluations_of(key: NoiseKey) -> set[str]:
    """Names of the evaluations that a run has spent; one set for all its models."""
    return _EVALUATIONS.setdefault(name_of(key), set())


def note(name: str, plan: Plan, trained: Sequence[Any], schedule_id: int) -> None:
    """Counts a run that takes a step."""
    _RUNS[name] = KnownRun(plan, tuple(map(weakref.ref, trained)), schedule_id)


def forget() -> None:
    """Forgets all runs; for tests, each of which starts without runs."""
    _RUNS.clear()
    _EVALUATIONS.clear()


class Membership:
    """A run among the others of its process: a second one is announced, or refused.

    Args:
      plan: plan of the run.
      is_additional: whether the user announced that there may be another run.
    """

    def __init__(self, plan: Plan, is_additional: bool) -> None:
        # A run with a test seed protects nobody: it neither counts nor is refused.
        self._counts = plan.test_seed is None
        self._may_be_second = is_additional or not self._counts
        self._plan = plan
        self._name: str | None = None
        self._variables: Sequence[Any] = ()

    def join(self, key: NoiseKey, variables: Sequence[Any]) -> None:
        """Gives the run its name, and its trainable weights."""
        self._name, self._variables = name_of(key), variables

    def note(self, schedule_id: int) -> None:
        """Counts the run, which takes a step, or took one in another process."""
        if self._counts and self._name is not None:
            note(self._name, self._plan, self._variables, schedule_id)

    def refuse_second(self, weights: Sequence[Any], schedule_id: int) -> None:
        """Raises RuntimeError if this is a second run that was not announced.

        Or if another run had its secret sample, announced or not.

        Args:
          weights: all of the model's.
          schedule_id: of the data, or `NO_SCHEDULE`.
        """
        is_new = not self._may_be_second and self._name not in _RUNS
        found = self._others(weights, schedule_id) if is_new else []
        if found:
            common, run = found[-1]
            raise RuntimeError(
                f"{SECOND_RUN} (In common: {common}. The other run: epsilon = "
                f"{run.plan.epsilon:g}, delta = {run.plan.delta:g}, plan "
                f"{run.plan.fingerprint[:12]}.)"
            )
        if self._counts and self._plan.participation.has_secret_sampler:
            others = [run for name, run in list(_RUNS.items()) if name != self._name]
            if any(run.schedule_id == schedule_id for run in others):
                raise RuntimeError(SAME_SAMPLE)

    def _others(
        self, weights: Sequence[Any], schedule_id: int
    ) -> list[tuple[str, KnownRun]]:
        """Other runs on the same weights or examples, and what they have in common."""
        others = [run for name, run in list(_RUNS.items()) if name != self._name]
        found = [(run.shares(weights, schedule_id), run) for run in others]
        return [(common, run) for common, run in found if common]

    def statement(
        self, unit: str | None, weights: Sequence[Any], schedule_id: int
    ) -> PrivacyStatement:
        """The plan's statement; if there are other runs, that of all of them together.

        Args:
          unit: see `Plan.statement`.
          weights: all of the model's, as far as they are at hand.
          schedule_id: of the data, or `NO_SCHEDULE`.

        Raises:
          ValueError: see `JointGuarantee.statement`.
        """
        plan = self._plan
        found = self._others([*self._variables, *weights], schedule_id)
        if not found:
            return plan.statement(unit)
        names = ", ".join(run.plan.fingerprint[:12] for _, run in found)
        joint = compose([plan, *(run.plan for _, run in found)]).statement(unit=unit)
        remark = (
            f"{len(found)} other run(s) of the same process trained on the same weights "
            f"or examples (plans {names}), trials of which the best was kept included: "
            f"the numbers are for all of them together. This run alone has epsilon = "
            f"{plan.epsilon:.6g} at delta = {plan.delta:.3g}."
        )
        return dataclasses.replace(joint, remarks=(remark,))
