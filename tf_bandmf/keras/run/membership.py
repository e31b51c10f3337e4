"""What a `PrivateOptimizer` knows of its run beside the noise: which one it is, and of
what else the statement must speak.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_bandmf.keras.run import known_runs
from tf_bandmf.keras.run.secrets import SecretState
from tf_bandmf.keras.run.weights_seal import WeightsSeal
from tf_bandmf.planning.plan import Plan
from tf_bandmf.planning.statement import PrivacyStatement, sentence

RESTORED = (
    "The optimizer and its noise are at different steps: it was restored from a file, and "
    "files hold no noise key, or a step was interrupted. Training on would add noise that "
    "the plan did not account for. Resume with the run's private state file, "
    "model.fit(batches, private_state=path), or start a new run with a new "
    "PrivateOptimizer and its own budget."
)


class RunMembership:
    """Mixin of `PrivateOptimizer`."""

    # Of the optimizer.
    _plan: Plan
    _secret_state: SecretState
    _seal: WeightsSeal
    _additional_run: bool
    _trainable_variables: list[Any]
    built: bool
    iterations: Any
    schedule_id: tf.Tensor
    clip_groups: Any
    scaling: Any

    # Held while a step of the run is taken.
    turn: threading.RLock
    # Whether Keras loaded it from an .h5 file, which leaves its variables behind.
    loaded_without_weights: bool
    # What the caller said of weights that he changed, in order.
    vouched: tuple[str, ...]
    # Where it was resumed with other versions or devices, and how they differ.
    resumed_elsewhere: tuple[str, ...]

    @property
    def seal(self) -> WeightsSeal:
        """By which changes of the weights between steps are noticed."""
        return self._seal

    def vouch_for_weights(self, reason: str) -> None:
        """Lets the next step begin with weights that something else changed.

        Whoever calls it asserts that no private data had a part in the change, but for
        what noisy gradients have told: weights of an earlier step of the run, of public
        data, rounded, pruned by a rule.

        Args:
          reason: what changed them, one line; `statement` publishes it.

        Raises:
          ValueError: if the reason is empty, or the run has not begun.
        """
        if not isinstance(reason, str) or not reason.strip():
            raise ValueError(
                f"reason must say what changed the weights, found {reason!r}."
            )
        if not self.built:
            raise ValueError("The run has not begun: any weights may begin it.")
        said = dict.fromkeys((*self.vouched, reason.strip()))
        with self.turn:
            self._seal.open()
            object.__setattr__(self, "vouched", tuple(said))

    def statement(self, unit: str | None = None) -> PrivacyStatement:
        """The plan's statement, with what this run adds to it.

        It names other runs of the process on the same weights or examples, and changes of
        the weights that were vouched for.

        Args:
          unit: see `Plan.statement`.
        """
        remarks = []
        if self.clip_groups is not None:
            remarks.append(
                "Gradients are clipped in groups of weights, each to a public norm of its "
                "own; the squares of these norms add up to that of the l2 norm clip."
            )
        if self.scaling is not None:
            remarks.append(
                "Gradients are clipped and noised after each coordinate was multiplied by "
                "a scale, which follows from noisy gradients of earlier steps; the l2 norm "
                "clip is that of scaled gradients."
            )
        if self.built:
            weights, name = (
                self._trainable_variables,
                known_runs.name_of(self._secret_state.key),
            )
            found = known_runs.others(name, weights, int(self.schedule_id))
            plans = ", ".join(run.plan.fingerprint[:12] for _, run in found)
            if found:
                remarks.append(
                    f"{len(found)} other run(s) of the same process trained on the same "
                    f"weights or examples (plans {plans}): the numbers above are for this "
                    f"run alone, and add up with theirs."
                )
        remarks += [
            f"Weights were changed between steps, for which whoever trained vouches that "
            f"no private data had a part in it: {sentence(reason)}"
            for reason in self.vouched
        ]
        remarks += [
            f"The run was interrupted, and resumed on another kind of machine or with "
            f"other versions ({said}). Steps that were taken after the last checkpoint, "
            f"and lost, may have been taken again with sums that are rounded differently, "
            f"and with independent noise: the numbers above hold for whoever did not see "
            f"the lost weights."
            for said in self.resumed_elsewhere
        ]
        return self._plan.statement(unit, remarks)

    def check_run(self, weights: Sequence[Any], schedule_id: int) -> None:
        """Raises RuntimeError if this would be a second run that was not announced.

        Args:
          weights: of the model.
          schedule_id: of the data, or `known_runs.NO_SCHEDULE`.
        """
        refusal = self._refusal(weights, schedule_id)
        if refusal is not None:
            raise RuntimeError(refusal)

    def _refusal(self, weights: Sequence[Any], schedule_id: int) -> str | None:
        if self._additional_run or self._plan.test_seed is not None:
            return None
        if self.built and self._was_restored():
            return None  # Refused for that, with another fix.
        name = known_runs.name_of(self._secret_state.key) if self.built else None
        return (
            None
            if known_runs.is_known(name)
            else known_runs.refusal(name, weights, schedule_id)
        )

    def refuse_restored(self) -> None:
        """Raises InvalidArgumentError before a step does, if none may be taken.

        That is so if the optimizer was restored from a file without its private noise
        state, or a step was interrupted.
        """
        if self.loaded_without_weights or (self.built and self._was_restored()):
            raise tf.errors.InvalidArgumentError(None, None, RESTORED)

    def _was_restored(self) -> bool:
        taken = tf.convert_to_tensor(self.iterations.value)
        return int(taken) != int(self._secret_state.step)

    def note_run(self, schedule_id: int) -> None:
        """Counts the run, which takes a step, or took one in another process."""
        if self._plan.test_seed is None:
            name = known_runs.name_of(self._secret_state.key)
            known_runs.note(name, self._plan, self._trainable_variables, schedule_id)

    def may_begin(
        self, weights: Sequence[Any], schedule_id: tf.Tensor
    ) -> tuple[tf.Tensor, str]:
        """`check_run` within a step, as a condition of `checked_step`."""
        if self._additional_run or self._plan.test_seed is not None:
            return tf.constant(True), known_runs.SECOND_RUN

        def look_up(schedule_id: Any) -> np.bool_:
            return np.bool_(self._refusal(weights, int(schedule_id)) is None)

        is_new = tf.equal(self._secret_state.step, 0)
        # One that was restored is refused for that, with another fix.
        is_new &= tf.equal(tf.cast(self.iterations.value, tf.int64), 0)
        may = tf.cond(
            is_new,
            lambda: tf.numpy_function(look_up, [schedule_id], tf.bool),
            lambda: tf.constant(True),
        )
        return tf.ensure_shape(may, []), known_runs.SECOND_RUN

    def note_first_step(self, step: tf.Tensor, schedule_id: tf.Tensor) -> tf.Tensor:
        """`note_run` within a step: what `checked_step` returned, after the note."""
        if self._plan.test_seed is not None:
            return step

        def note(schedule_id: Any, step: Any) -> Any:
            self.note_run(int(schedule_id))
            return step

        return tf.ensure_shape(
            tf.cond(
                tf.equal(step, 0),
                lambda: tf.numpy_function(note, [schedule_id, step], tf.int64),
                lambda: tf.identity(step),
            ),
            [],
        )
