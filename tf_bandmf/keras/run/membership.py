"""A run among the other runs of its process: a second one is announced, or refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from tf_bandmf.keras.run import known_runs
from tf_bandmf.noise.keys import NoiseKey
from tf_bandmf.planning.composition import compose
from tf_bandmf.planning.plan import Plan
from tf_bandmf.planning.statement import PrivacyStatement


class Membership:
    """Which other runs of this process share weights or examples with one.

    Args:
      plan: plan of the run.
      is_additional: whether the user announced that there may be another run.
    """

    __slots__ = ("_counts", "_may_be_second", "_name", "_plan", "_variables")

    def __init__(self, plan: Plan, is_additional: bool) -> None:
        # A run with a test seed protects nobody: it neither counts nor is refused.
        self._counts = plan.test_seed is None
        self._may_be_second = is_additional or not self._counts
        self._plan = plan
        self._name: str | None = None
        self._variables: tuple[Any, ...] = ()

    def join(self, key: NoiseKey, variables: Sequence[Any]) -> None:
        """Gives the run its name, and its trainable weights."""
        self._name, self._variables = known_runs.name_of(key), tuple(variables)

    def refuse_second(self, weights: Sequence[Any], schedule_id: int) -> None:
        """Raises RuntimeError if this would be a second run that was not announced.

        Args:
          weights: all of the model's.
          schedule_id: of the data, or `known_runs.NO_SCHEDULE`.
        """
        refusal = self._refusal(weights, schedule_id)
        if refusal is not None:
            raise RuntimeError(refusal)

    def _refusal(self, weights: Sequence[Any], schedule_id: int) -> str | None:
        if self._may_be_second or known_runs.is_known(self._name):
            return None
        return known_runs.refusal(self._name, weights, schedule_id)

    def refuse_same_sample(self, schedule_id: int) -> None:
        """Raises RuntimeError if another run had the run's secret sample.

        Args:
          schedule_id: of the data, or `known_runs.NO_SCHEDULE`.
        """
        if self._counts and self._plan.participation.has_secret_sampler:
            name = known_runs.name_of_schedule(schedule_id)
            if name not in (None, self._name):
                raise RuntimeError(known_runs.SAME_SAMPLE)

    def note(self, schedule_id: int) -> None:
        """Counts the run, which takes a step, or took one in another process."""
        if self._counts and self._name is not None:
            known_runs.note(self._name, self._plan, self._variables, schedule_id)

    def statement(
        self, unit: str | None, weights: Sequence[Any], schedule_id: int
    ) -> PrivacyStatement:
        """The plan's statement; if there are other runs, that of all of them together.

        Args:
          unit: see `Plan.statement`.
          weights: all of the model's, as far as they are at hand.
          schedule_id: of the data, or `known_runs.NO_SCHEDULE`.

        Raises:
          ValueError: see `JointGuarantee.statement`.
        """
        plan = self._plan
        weights = [*self._variables, *weights]
        found = known_runs.others(self._name, weights, schedule_id)
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
