"""`model.evaluate_privately`, and the callback that calls it while a model trains."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import keras
import tensorflow as tf

from tf_bandmf.accounting.checks import whole_number
from tf_bandmf.keras.audit.metric_sums import first_record, function_of, sums_of
from tf_bandmf.keras.audit.private_metrics import checked
from tf_bandmf.keras.model import preparation
from tf_bandmf.planning.statement import ONE_EXAMPLE


class NoisyMetrics(dict[str, float]):
    """Private metrics by name. They are released: you may show them and act on them.

    Attributes:
      noise: the standard deviation of each one's noise, by name.
    """

    def __init__(self, values: dict[str, float], noise: dict[str, float]) -> None:
        super().__init__(values)
        self.noise = noise


def evaluate_privately(
    model: Any,
    x: Any,
    y: Any,
    metrics: Any,
    users: Any,
    batch_size: int,
    function: Any = None,
) -> NoisyMetrics:
    """See `PrivateTraining.evaluate_privately`; `function` is `metric_sums.function_of`."""
    if not tf.executing_eagerly():
        raise RuntimeError(
            "evaluate_privately cannot be part of a graph, which could run it again: call "
            "it between steps, outside of tf.function."
        )
    model._before_use()
    optimizer = preparation.optimizer_of(model)
    run, plan = optimizer.run, optimizer.plan
    run.evaluations.refuse_unreserved()
    if preparation.num_replicas(model) > 1:
        raise NotImplementedError(
            "Private evaluations work on one replica. Evaluate public data, or train on "
            "one device."
        )
    if plan.unit != ONE_EXAMPLE and users is None:
        raise ValueError(
            f"The plan hides {plan.unit!r}: give users=, whose each record is, so that all "
            f"records of one count as one."
        )
    preparation.refuse_preprocessor(model)
    found = checked(metrics)
    records = hashlib.blake2b(digest_size=32)
    sums, count = sums_of(model, x, y, found, users, batch_size, records, function)
    about = [str(count), records.hexdigest(), *(metric.describe() for metric in found)]
    what = "\n".join(about)
    noisy = run.evaluate(sums, what, model.weights)
    assert plan.measurements.noise_multiplier is not None
    # Each metric has its part of the norm.
    unit = math.sqrt(len(found))
    noise = unit * plan.measurements.noise_multiplier
    values, spreads, start = {}, {}, 0
    for metric in found:
        part = unit * noisy[start : start + metric.size]
        values[metric.name], spreads[metric.name] = metric.result(part, count, noise)
        start += metric.size
    return NoisyMetrics(values, spreads)


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
        self._data, self._metrics = (x, y), checked(metrics)
        self._every = whole_number("every", every)
        self._options = {"users": users, "batch_size": batch_size}
        self.noise: dict[str, float] = {}
        self._function: Any = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Refuses to begin if evaluations will be missing, or fail."""
        optimizer = preparation.optimizer_of(self.model)
        evaluations = optimizer.run.evaluations
        evaluations.refuse_unreserved()
        steps, epochs = self.params.get("steps"), self.params.get("epochs", 1)
        done = optimizer.steps_taken // steps if steps else 0
        needed = epochs // self._every - done // self._every
        # A resumed run makes some again, which costs nothing.
        if not done and needed > evaluations.left:
            raise ValueError(
                f"{needed} private evaluations are asked for, and {evaluations.left} are "
                f"left of the plan's. Reserve more, or give every="
                f"{-(-epochs // max(evaluations.left, 1))}. Nothing was trained."
            )
        try:
            record = first_record(*self._data)
            self._function = function_of(self.model, record, self._metrics)
            self._function(*record, tf.ones([1], tf.float64))
        except (ValueError, TypeError, tf.errors.OpError) as error:
            raise ValueError(
                f"PrivateEvaluation fails at its first record: {error}\nGive it x and y "
                f"as the model takes them, and metrics that fit. Nothing was trained."
            ) from error

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Adds the metrics to the logs."""
        if (epoch + 1) % self._every:
            return
        found = evaluate_privately(
            self.model,
            *self._data,
            self._metrics,
            **self._options,
            function=self._function,
        )
        self.noise = {f"private_{name}": value for name, value in found.noise.items()}
        if logs is not None:
            logs.update({f"private_{name}": value for name, value in found.items()})
            # Error bars: what an `EarlyStopping` takes as its min_delta.
            logs.update({f"{name}_noise": value for name, value in self.noise.items()})
