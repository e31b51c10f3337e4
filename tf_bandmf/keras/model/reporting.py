"""Noisy numbers of a run (evaluations, budget spent, counts), and their callbacks."""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_bandmf.accounting.checks import whole_number
from tf_bandmf.keras.audit.metric_sums import first_record, function_of, sums_of
from tf_bandmf.keras.audit.private_metrics import PrivateMetric, checked
from tf_bandmf.keras.clipping import Same
from tf_bandmf.keras.compat.keras_objects import all_layers, compile_loss
from tf_bandmf.keras.optimizer.private import private_optimizer_of
from tf_bandmf.planning.statement import ONE_EXAMPLE


class NoisyMetrics(dict[str, float]):
    """Private metrics by name. They are released: you may show them and act on them.

    Attributes:
      noise: the standard deviation of each metric's noise, by the metric's name.
    """

    def __init__(self, values: dict[str, float], noise: dict[str, float]) -> None:
        super().__init__(values)
        self.noise = noise


def evaluate_privately(
    model: Any,
    x: Any,
    y: Any = None,
    *,
    metrics: Any = "accuracy",
    users: Any = None,
    batch_size: int = 256,
) -> NoisyMetrics:
    """Noisy metrics of private data; each call is one of the plan's evaluations.

        plan = tf_bandmf.plan(...).reserve(metrics=0.1, evaluations=10)
        ...
        model.evaluate_privately(x_held_out, y_held_out)

    The metrics are part of the run's release and covered by its statement: you may
    show them, stop training by them, or choose a checkpoint by them. The data may be
    held out or trained on. WARNING: each row is one unit; a duplicated record counts
    twice.

    Args:
      model: a private model, whose method this is.
      x: inputs, arrays [N, ...]; or a `tf.data.Dataset` of batches `(x, y)`. N is
        public.
      y: targets, arrays [N, ...].
      metrics: "accuracy", or `PrivateAccuracy`, `PrivateLoss`, `PrivateAUC`,
        `PrivateMean`, or a list of them, which share the noise budget: each of q
        metrics has sqrt(q) times the noise of a single metric.
      users: the user of each record, [N], if the plan hides users: the metric is
        the mean over users of the mean over a user's records.
      batch_size: batch size of the pass over arrays.

    Returns:
      The metrics by name, with `noise`: the standard deviations of their noise.

    Raises:
      ValueError: if the plan has reserved no evaluations, none is left, the run has
        not taken a step, or the data do not fit.
      UnsupportedModelError: if the model cannot be run on each record by itself.
      InvalidArgumentError: if something else changed the weights since the last step.
      RuntimeError: within a graph.
    """
    run = model._optimizer_for_data("evaluate_privately").run
    model._before_use()
    plan = run.plan
    run.evaluations.refuse_unreserved()
    if plan.unit != ONE_EXAMPLE and users is None:
        raise ValueError(
            f"The plan hides {plan.unit!r}: give users=, the user of each record, so that "
            f"all records of a user count as one."
        )
    asked = checked(metrics)
    records = hashlib.blake2b(digest_size=32)
    sums, count = sums_of(model, x, y, asked, users, batch_size, records, _traced)
    about = [str(count), records.hexdigest(), *(metric.describe() for metric in asked)]
    what = "\n".join(about)
    noisy = run.evaluate(sums, what)
    assert plan.measurements.noise_multiplier is not None
    # Each of the q metrics gets 1 / sqrt(q) of the norm of 1: see `_bounded`.
    unit = math.sqrt(len(asked))
    noise = unit * plan.measurements.noise_multiplier
    values, spreads, start = {}, {}, 0
    for metric in asked:
        part = unit * noisy[start : start + metric.size]
        values[metric.name], spreads[metric.name] = metric.result(part, count, noise)
        start += metric.size
    return NoisyMetrics(values, spreads)


def _traced(model: Any, batch: Any, metrics: Sequence[PrivateMetric]) -> Any:
    """The result of `function_of`, cached until something that it depends on changes."""
    state = model._training
    specs = tf.nest.map_structure(lambda t: (t.shape[1:], t.dtype), batch)
    parts = [*metrics, compile_loss(model), *model.weights, *all_layers(model)]
    described = [metric.describe() for metric in metrics]
    key = (str(specs), described, [Same(part) for part in parts])
    if state.evaluation is None or state.evaluation[0] != key:
        state.evaluation = (key, function_of(model, batch, metrics))
    return state.evaluation[1]


class PrivateEvaluation(keras.callbacks.Callback):
    """Evaluates a model privately at the ends of epochs; adds the metrics to the logs.

        plan = tf_bandmf.plan(...).reserve(metrics=0.1, evaluations=10)
        model.fit(plan.batches(x, y), epochs=10, callbacks=[
            tf_bandmf.keras.PrivateEvaluation(x_held_out, y_held_out),
            keras.callbacks.EarlyStopping("private_accuracy", mode="max", patience=2),
        ])

    Put it before the callbacks that read the logs. Names begin with `private_`.

    Args:
      x, y, metrics, users, batch_size: as for `model.evaluate_privately`.
      every: number of epochs from one evaluation to the next.

    Raises:
      ValueError: before the first step, if the plan has reserved fewer evaluations than
        remain to be made, or the first record cannot be evaluated.
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
        self._options: Any = {
            "metrics": self._metrics,
            "users": users,
            "batch_size": batch_size,
        }
        self.noise: dict[str, float] = {}

    def on_train_begin(self, logs: Any = None) -> None:
        """Raises ValueError if too few evaluations are left, or if they would fail."""
        optimizer = private_optimizer_of(self.model)
        evaluations = optimizer.run.evaluations
        evaluations.refuse_unreserved()
        steps, epochs = self.params.get("steps"), self.params.get("epochs", 1)
        done = optimizer.steps_taken // steps if steps else 0
        needed = epochs // self._every - done // self._every
        # A resumed run repeats some evaluations, which costs nothing.
        if not done and needed > evaluations.left:
            raise ValueError(
                f"{needed} private evaluations are asked for, but the plan has only "
                f"{evaluations.left} left. Reserve more, or give every="
                f"{-(-epochs // max(evaluations.left, 1))}. Nothing was trained."
            )
        try:
            record = first_record(*self._data)
            function = _traced(self.model, record, self._metrics)
            function(*record, tf.ones([1], tf.float64))
        except (ValueError, TypeError, tf.errors.OpError) as error:
            raise ValueError(
                f"PrivateEvaluation fails at its first record: {error}\nGive it x and y "
                f"as the model takes them, and metrics that fit. Nothing was trained."
            ) from error

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Adds the metrics to the logs."""
        if (epoch + 1) % self._every:
            return
        noisy = evaluate_privately(self.model, *self._data, **self._options)
        self.noise = {f"private_{name}": value for name, value in noisy.noise.items()}
        if logs is not None:
            logs.update({f"private_{name}": value for name, value in noisy.items()})
            # The noise serves as an error bar, for example for `min_delta` of
            # `EarlyStopping`.
            logs.update({f"{name}_noise": value for name, value in self.noise.items()})


class PrivacyProgress(keras.callbacks.Callback):
    """Adds `epsilon` (spent) and `steps_left` to the logs of each epoch.

    If the plan has reserved private counts, it also adds `private_clipped`,
    `private_zero` and `private_bad`: noisy shares of the examples of all steps so far.

    The progress bar, the history, `CSVLogger` and `TensorBoard` show what is in the
    logs; put this callback before them in the list of callbacks:

        model.fit(batches, callbacks=[tf_bandmf.keras.PrivacyProgress(), TensorBoard(...)])

    WARNING: `epsilon` is `plan.epsilon_after(steps)`, which holds for a number of steps
    that was fixed in advance. A run that is stopped because of its models' performance
    has the epsilon of the whole plan.

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
        """Adds the entries to the logs."""
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
    """Warns of examples that contributed nothing, if the private counts show many."""
    optimizer = model.optimizer
    counts = optimizer.run.counts.value(optimizer.steps_taken)
    said = "" if counts is None else counts.sentence()
    if said:
        warnings.warn(said, stacklevel=3)
