"""A run among the other runs of its process: a second one is announced, or refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

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

    def conditions(
        self, is_new: tf.Tensor, weights: Sequence[Any], schedule_id: tf.Tensor
    ) -> list[tuple[tf.Tensor, str]]:
        """`refuse_second` within a step, and that no other run has had its sample.

        Args:
          is_new: whether the step is the run's first one.
          weights: all of the model's.
          schedule_id: of the data, or `known_runs.NO_SCHEDULE`, int64.
        """
        found = []
        if not self._may_be_second:

            def is_first(schedule_id: Any) -> np.bool_:
                return np.bool_(self._refusal(weights, int(schedule_id)) is None)

            found.append((is_first, known_runs.SECOND_RUN))
        if self._counts and self._plan.participation.has_secret_sampler:

            def is_fresh(schedule_id: Any) -> np.bool_:
                name = known_runs.name_of_schedule(int(schedule_id))
                return np.bool_(name in (None, self._name))

            found.append((is_fresh, known_runs.SAME_SAMPLE))

        def at_first(holds: Any) -> tf.Tensor:
            answer = tf.cond(
                is_new,
                lambda: tf.numpy_function(holds, [schedule_id], tf.bool),
                lambda: tf.constant(True),
            )
            return tf.ensure_shape(answer, [])

        return [(at_first(holds), text) for holds, text in found]

    def note(self, schedule_id: int) -> None:
        """Counts the run, which takes a step, or took one in another process."""
        if self._counts and self._name is not None:
            known_runs.note(self._name, self._plan, self._variables, schedule_id)

    def noted(self, step: tf.Tensor, schedule_id: tf.Tensor) -> tf.Tensor:
        """`note` within the first step: the step, after the note."""
        if not self._counts:
            return step

        def note(schedule_id: Any, step: Any) -> Any:
            self.note(int(schedule_id))
            return step

        noted = tf.cond(
            tf.equal(step, 0),
            lambda: tf.numpy_function(note, [schedule_id, step], tf.int64),
            lambda: tf.identity(step),
        )
        return tf.ensure_shape(noted, [])

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
