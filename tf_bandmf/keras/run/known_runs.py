"""Records the runs of this process, to detect a second run on the same data or model.

Every `PrivateOptimizer` has its own noise key. Two keys on the same data are two
releases, whose privacy losses add up even if their plans and code are equal: a model
that is compiled again, trials of a tuner, folds, seeds, comparisons. Runs are
recognized by their weights (the same variables) and their examples
(`sampling.identity`).

A run is recorded from its first step on. The records last as long as the process: the
caller must know about runs in other processes. Runs of plans with a test seed, which have
no guarantee, are not recorded.
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

# Schedule id of runs whose batches the caller makes, without a schedule.
NO_SCHEDULE = -1
SECOND_RUN = (
    "This is a second run: a run of this process trained on the same weights or examples "
    "with another noise key, and both together spend more than either. If it is intended, "
    "give additional_run=True to PrivateOptimizer or fit_privately, and publish the joint "
    "guarantee, model.privacy_statement(). To go on with the first run, compile with its "
    "optimizer, or resume it from its private state file."
)
SAME_SAMPLE = (
    "Another run was trained on these batches. Their sample is secret and drawn for one "
    "run: the joint guarantee of two runs assumes that each has its own sample. Draw "
    "one for this run: for batch in model.begin_run(plan.batches(x, y)): ..., or use "
    "model.fit(plan.batches(x, y)), which does it by itself."
)

_RUNS: dict[str, Membership] = {}
# The private evaluations that each run has spent.
_EVALUATIONS: dict[str, set[str]] = {}


def name_of(key: NoiseKey) -> str:
    """The name of a run; it follows from the noise key, so a resumed run keeps it."""
    return hashlib.sha256(b"tf-bandmf run" + key.secret_bytes()).hexdigest()


def evaluations_of(key: NoiseKey) -> set[str]:
    """The names of the evaluations that a run has spent; one set for all its models."""
    return _EVALUATIONS.setdefault(name_of(key), set())


def forget() -> None:
    """Forgets all runs, so that each test starts without any."""
    _RUNS.clear()
    _EVALUATIONS.clear()


class Membership:
    """A run's entry in the records of this process; refuses unannounced second runs.

    Args:
      plan: plan of the run.
      is_additional: True if the user announced that there may be another run.
      key: key of the run; None before the run has begun.
      trained: the run's trainable weights.

    Attributes:
      schedule_id: id of the run's schedule; `NO_SCHEDULE` before the run has one, or if
        the caller makes its batches.
    """

    def __init__(
        self,
        plan: Plan,
        is_additional: bool,
        key: NoiseKey | None = None,
        trained: Sequence[Any] = (),
    ) -> None:
        # A run with a test seed protects nobody: it is neither recorded nor refused.
        self._counts = plan.test_seed is None
        self._may_be_second = is_additional or not self._counts
        self._plan = plan
        self._name = None if key is None else name_of(key)
        self._trained = [weakref.ref(variable) for variable in trained]
        self.schedule_id = NO_SCHEDULE

    def note(self, schedule_id: int) -> None:
        """Records the run when it takes a step, or has taken one in another process."""
        self.schedule_id = schedule_id
        if self._counts and self._name is not None:
            _RUNS[self._name] = self

    def refuse_second(self, weights: Sequence[Any], schedule_id: int) -> None:
        """Raises RuntimeError if this is a second run that was not announced.

        It also raises if another run used the same secret sample, even if announced.

        Args:
          weights: all weights of the model.
          schedule_id: id of the data's schedule, or `NO_SCHEDULE`.
        """
        is_new = not self._may_be_second and self._name not in _RUNS
        related = self._related(weights, schedule_id) if is_new else []
        if related:
            common, plan = related[-1]
            raise RuntimeError(
                f"{SECOND_RUN} (In common: {common}. The other run: epsilon = "
                f"{plan.epsilon:g}, delta = {plan.delta:g}, plan "
                f"{plan.fingerprint[:12]}.)"
            )
        if self._counts and self._plan.participation.has_secret_sampler:
            if any(run.schedule_id == schedule_id for run in self._others()):
                raise RuntimeError(SAME_SAMPLE)

    def _variables(self) -> list[Any]:
        variables = [reference() for reference in self._trained]
        return [variable for variable in variables if variable is not None]

    def _others(self) -> list[Membership]:
        return [run for name, run in list(_RUNS.items()) if name != self._name]

    def _related(
        self, weights: Sequence[Any], schedule_id: int
    ) -> list[tuple[str, Plan]]:
        """Returns the common parts ("weights", "examples") and the plan of related runs."""
        related = []
        for run in self._others():
            trained = {id(variable) for variable in run._variables()}
            common = ["weights"] if any(id(w) in trained for w in weights) else []
            theirs, ours = map(identity.records_of, (run.schedule_id, schedule_id))
            if identity.share_examples(theirs, ours):
                common.append("examples")
            if common:
                related.append((" and ".join(common), run._plan))
        return related

    def statement(self, unit: str | None, weights: Sequence[Any]) -> PrivacyStatement:
        """The plan's statement; if there are other runs, the joint statement of all runs.

        Args:
          unit: see `Plan.statement`.
          weights: all weights of the model that the caller has at hand.

        Raises:
          ValueError: see `JointGuarantee.statement`.
        """
        plan = self._plan
        related = self._related([*self._variables(), *weights], self.schedule_id)
        if not related:
            return plan.statement(unit)
        plans = [other for _, other in related]
        names = ", ".join(other.fingerprint[:12] for other in plans)
        joint = compose([plan, *plans]).statement(unit=unit)
        remark = (
            f"{len(plans)} other run(s) of the same process trained on the same weights "
            f"or examples (plans {names}), including trials of which only the best was "
            f"kept: the numbers are for all of them together. This run alone has epsilon = "
            f"{plan.epsilon:.6g} at delta = {plan.delta:.3g}."
        )
        return dataclasses.replace(joint, remarks=(remark,))
