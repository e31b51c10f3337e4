"""Callbacks of `fit` that log private evaluations, private counts and the budget."""

from __future__ import annotations

import itertools
from typing import Any

import keras
import tensorflow as tf

from tf_bandmf.accounting.checks import whole_number
from tf_bandmf.keras.metrics.evaluation import evaluate_privately, evaluations_left
from tf_bandmf.keras.metrics.metric_sums import batches_of, traced
from tf_bandmf.keras.metrics.private_metrics import checked


class PrivateEvaluation(keras.callbacks.Callback):
    """Evaluates a model privately at the ends of epochs; adds the metrics to the logs.

        plan = tf_bandmf.plan(...).reserve(metrics=0.1, evaluations=10)
        model.fit(plan.batches(x, y), epochs=10, callbacks=[
            tf_bandmf.keras.PrivateEvaluation(x_held_out, y_held_out),
            keras.callbacks.EarlyStopping("private_accuracy", mode="max", patience=2),
        ])

    Put this callback before the callbacks that read the logs. The names of the metrics
    in the logs begin with `private_`.

    Args:
      x, y, metrics, users, batch_size: the data, the metrics and further arguments of
        `model.evaluate_privately`.
      every: number of epochs from one evaluation to the next.

    Raises:
      ValueError: before the first step, if the plan has fewer evaluations left than the
        run would make, or the first record cannot be evaluated.
    """

    def __init__(
        self,
        x: Any,
        y: Any = None,
        metrics: Any = "accuracy",
        *,
        every: int = 1,
        users: Any = None,
        batch_size: int = 256,
    ) -> None:
        super().__init__()
        self._data, self._every = (x, y), whole_number("every", every)
        self._metrics = checked(metrics)
        self._options: Any = {"users": users, "batch_size": batch_size}

    def on_train_begin(self, logs: Any = None) -> None:
        """Raises ValueError if too few evaluations are left, or if they would fail."""
        run = self.model._private_optimizer().run
        left, needed = evaluations_left(run), self.params["epochs"] // self._every
        # A run that has taken steps is not checked: if it was resumed, it may repeat
        # evaluations that it made before, and repeating them costs nothing.
        if not run.step and needed > left:
            raise ValueError(
                f"PrivateEvaluation needs {needed} private evaluations, but the plan has "
                f"only {left} left. Reserve more in the plan; or set the argument `every` "
                f"to more than {self.params['epochs'] // (left + 1)}. Nothing was trained."
            )
        try:
            for batch in itertools.islice(batches_of(*self._data, 1), 1):
                traced(self.model, batch[:2], self._metrics)(*batch)
        except (ValueError, tf.errors.OpError) as error:
            leaves = tf.nest.flatten(self._data)
            kinds = [f"{x.dtype}{x.shape}" for x in leaves if hasattr(x, "shape")]
            raise ValueError(
                f"PrivateEvaluation fails on x and y ({', '.join(kinds)}). y needs one "
                f"target per row of x: numbers, not names. Nothing was trained: {error}"
            ) from error

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Adds the metrics and their noise, which serves as an error bar, to the logs."""
        if logs is None or (epoch + 1) % self._every:
            return
        noisy = evaluate_privately(
            self.model, *self._data, metrics=self._metrics, **self._options
        )
        for name, value in noisy.items():
            logs[f"private_{name}"] = value
            logs[f"private_{name}_noise"] = noisy.noise[name]


class PrivacyProgress(keras.callbacks.Callback):
    """Adds `epsilon` (spent) and `steps_left` to the logs of each epoch.

    If the plan has reserved private counts, the callback also adds `private_clipped`,
    `private_zero` and `private_bad`: noisy shares of the examples of all steps so far.

    The progress bar, the history, `CSVLogger` and `TensorBoard` show what is in the
    logs; put this callback before them in the list of callbacks:

        model.fit(batches, callbacks=[tf_bandmf.keras.PrivacyProgress(), TensorBoard(...)])

    WARNING: `epsilon` is `plan.epsilon_after(steps)`, which holds for a number of steps
    that was fixed in advance. If you stop a run because of how its model performs, its
    epsilon is that of the whole plan.

    Args:
      delta: the delta at which epsilon is shown; by default the plan's.

    Raises:
      TypeError: at the end of an epoch, if the model is not compiled with a
        PrivateOptimizer.
    """

    def __init__(self, delta: float | None = None) -> None:
        super().__init__()
        self._delta = delta

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Adds epsilon, the remaining steps and the private counts to the logs."""
        if logs is None:
            return
        optimizer = self.model._private_optimizer()
        plan, taken = optimizer.plan, optimizer.steps_taken
        logs["epsilon"] = plan.epsilon_after(taken, self._delta)
        logs["steps_left"] = plan.num_steps - taken
        counts = optimizer.run.counts.value(taken)
        if counts is not None:
            logs["private_clipped"] = counts.clipped
            logs["private_zero"] = counts.zero
            logs["private_bad"] = counts.bad
