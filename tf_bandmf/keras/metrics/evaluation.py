"""Private evaluations: noisy sums over records, which a run releases between steps.

Each evaluation is one Gaussian mechanism; the plan fixes their number and their noise.
The noise of an evaluation is bound to the step that it follows, to its index among the
evaluations after that step, to the weights and the records, and to the sum itself (see
`docs/noise-reuse.md`). If a run is resumed from an earlier step, and an evaluation is
repeated without any change, it releases the same numbers again, which reveals nothing
new. After any change, the evaluation gets independent noise, and counts as a new one.
An evaluation is recorded as spent before its result is released. If a run is resumed
with another model in the same process, both models have the same key, and share the
list of spent evaluations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tf_bandmf.keras.metrics.metric_sums import sums_of
from tf_bandmf.keras.metrics.private_metrics import checked
from tf_bandmf.planning.statement import ONE_EXAMPLE

if TYPE_CHECKING:
    from tf_bandmf.keras.run.run import Run

# The name in `Run.notes` under which all evaluations are recorded.
SPENT = "evaluations"


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
    """Returns noisy metrics of private data; each call is one evaluation of the plan.

        plan = tf_bandmf.plan(...).reserve(metrics=0.1, evaluations=10)
        ...
        model.evaluate_privately(x_held_out, y_held_out)

    The metrics are part of the run's release and covered by its statement: you may
    show them, or use them to stop training or to choose a checkpoint. The data may be
    held out or trained on. WARNING: without `users`, each row is one privacy unit; a
    duplicated record counts twice.

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
      batch_size: number of records that are evaluated at once, if the data are arrays.

    Returns:
      The metrics by name, with `noise`: the standard deviations of their noise.

    Raises:
      ValueError: if the plan has reserved no evaluations, none is left, the run has
        not taken a step, or the data do not fit.
      UnsupportedModelError: if the model cannot be run on each record by itself.
      InvalidArgumentError: if the weights were changed after the last private step.
      RuntimeError: if it is called while a graph is traced.
    """
    run = model._optimizer_for_data("evaluate_privately").run
    model._before_use()
    plan, asked = run.plan, checked(metrics)
    evaluations_left(run)
    if plan.unit != ONE_EXAMPLE and users is None:
        raise ValueError(
            f"Pass users=... (the user of each record): the plan's privacy unit is "
            f"{plan.unit!r}, so all records of a user must count as one."
        )
    sums, count, records = sums_of(model, x, y, asked, users, batch_size)
    described = [metric.describe() for metric in asked]
    noisy = released(run, sums, [str(count), records, *described])
    # With q metrics, each metric's vectors have a norm of at most 1 / sqrt(q). So the
    # concatenated vector of a record has a norm of at most 1.
    unit = math.sqrt(len(asked))
    noise = unit * plan.measurements.noise_multiplier
    values, spreads, start = {}, {}, 0
    for metric in asked:
        part = unit * noisy[start : start + metric.size]
        values[metric.name], spreads[metric.name] = metric.result(part, count, noise)
        start += metric.size
    return NoisyMetrics(values, spreads)


def evaluations_left(run: Run) -> int:
    """Returns the number of private evaluations that a run has not spent yet.

    Raises:
      ValueError: if the plan has reserved no evaluations.
    """
    reserved = run.plan.measurements.evaluations
    if not reserved:
        raise ValueError(
            "The plan has no private evaluations. Reserve them before the run begins: "
            "plan = tf_bandmf.plan(...).reserve(metrics=0.1, evaluations=10)."
        )
    return max(reserved - len(run.notes[SPENT]), 0)


def released(run: Run, sums: np.ndarray, about: Sequence[str]) -> np.ndarray:
    """Returns sums with noise added; each call is one evaluation of the plan.

    Args:
      run: a run of a plan with evaluations.
      sums: float64, shape [M], to which each unit adds a vector of norm <= 1.
      about: descriptions of the summed quantity and the records; the noise's key depends
        on them.

    Returns:
      The noisy sums, float64, shape [M].

    Raises:
      InvalidArgumentError: if the optimizer was restored without its private state, a
        step was interrupted, or the weights were changed after the last private step.
      LedgerError: if the run has ended.
      ValueError: if the run has taken no step, or no evaluation is left.
    """
    measured = run.plan.measurements
    assert measured.noise_multiplier is not None
    with run.turn:
        run.check()
        if not run.step:
            raise ValueError(
                "The run has taken no step yet, so the model cannot be evaluated "
                "privately. Train for at least one step first."
            )
        place = run.num_evaluations.get(run.step, 0)
        inputs = [run.plan.fingerprint, run.step, place, len(sums), *about]
        message = "\n".join(map(str, [*inputs, run.weights_digest()])).encode()
        message += b"\0" + sums.tobytes()
        name = run.key.derived(message, 16, b"tf-bandmf spent").hex()
        if name not in run.notes[SPENT]:
            if not evaluations_left(run):
                raise ValueError(
                    f"All {measured.evaluations} private evaluations of the plan have "
                    f"been used, so this one returned nothing. Reserve more "
                    f"evaluations in the plan of the next run."
                )
            run.note(SPENT, name)
        run.num_evaluations[run.step] = place + 1
    normals = run.key.bound_normals(message, len(sums))
    return np.asarray(sums + measured.noise_multiplier * normals)
