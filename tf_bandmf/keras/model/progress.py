"""A callback that shows the budget while a model trains, and its private counts."""

from __future__ import annotations

import warnings
from typing import Any

import keras

from tf_bandmf.keras.optimizer.private import private_optimizer_of
from tf_bandmf.keras.run.counts import PrivateCounts as PrivateCounts


class PrivacyProgress(keras.callbacks.Callback):
    """Adds `epsilon` (spent) and `steps_left` to the logs of each epoch.

    If the plan has reserved private counts, it also adds `private_clipped`,
    `private_zero` and `private_bad`: noisy shares of the examples of all steps so far.

    The progress bar, the history, `CSVLogger` and `TensorBoard` show what is in the
    logs; put this callback before them in the list of callbacks:

        model.fit(batches, callbacks=[tf_bandmf.keras.PrivacyProgress(), TensorBoard(...)])

    WARNING: `epsilon` is `plan.epsilon_after(steps)`, which holds for a number of steps
    that was fixed in advance. A run that is stopped because of its models has the
    epsilon of the whole plan.

    Args:
      delta: the delta at which epsilon is shown; by default the plan's.

    Raises:
      TypeError: when training begins, if the model is not compiled with a
        PrivateOptimizer.
    """

    def __init__(self, delta: float | None = None) -> None:
        super().__init__()
        self._delta = delta

    def on_train_begin(self, logs: Any = None) -> None:
        """Checks that there is a budget to show."""
        private_optimizer_of(self.model)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Adds the entries."""
        if logs is None:
            return
        optimizer = self.model.optimizer
        plan, taken = optimizer.plan, optimizer.steps_taken
        logs["epsilon"] = plan.epsilon_after(taken, self._delta)
        logs["steps_left"] = plan.num_steps - taken
        counts = optimizer.run.counts.value(taken)
        if counts is not None:
            logs["private_clipped"] = counts.clipped
            logs["private_zero"] = counts.zero
            logs["private_bad"] = counts.bad


def warn_of_counts(model: Any) -> None:
    """Says how many examples contributed nothing, if private counts show some."""
    optimizer = model.optimizer
    counts = optimizer.run.counts.value(optimizer.steps_taken)
    said = "" if counts is None else counts.sentence()
    if said:
        warnings.warn(said, stacklevel=3)
