"""Checks that the data of `fit` are the plan's batches.

Under `MinSep`, the caller makes the batches and guarantees their min separation. Little
can be checked then: only the caller knows which example is in which batch, and a
`tf.data.Dataset` may silently change its order from one pass to the next. But the
number of steps in a pass is often known. On average, an example participates once per
pass, so `check_passes` compares the length of a pass with the plan's min separation.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import keras
import tensorflow as tf

from tf_bandmf.keras.compat.keras_objects import is_distributed
from tf_bandmf.keras.run import admission
from tf_bandmf.participation import MinSep, Participation
from tf_bandmf.planning.plan import Plan
from tf_bandmf.sampling.batches import BatchSchedule

# Arguments of `fit` that would change the batches of a plan.
_CHANGING = ("y", "sample_weight", "validation_split", "batch_size")


def checked_data(plan: Plan, x: Any, y: Any, kwargs: dict[str, Any]) -> Any:
    """Checks the data of `fit`, and returns them with class weights.

    Args:
      plan: plan of the optimizer.
      x: the argument of `fit`.
      y: the argument of `fit`.
      kwargs: other arguments of `fit`. `class_weight` is removed if the returned data
        contain it.

    Raises:
      TypeError: if the data are not the plan's batches; for a plan whose caller makes
        the batches, if the data are not a stream of batches.
      ValueError: if an argument would change the content of the plan's batches.
    """
    if isinstance(x, BatchSchedule):
        # Keras' default, validation_split=0.0, changes nothing.
        split = kwargs.get("validation_split") or None
        arguments = {**kwargs, "y": y, "validation_split": split}
        given = [name for name in _CHANGING if arguments.get(name) is not None]
        if given:
            raise ValueError(
                f"fit does not accept {', '.join(given)}, because plan.batches already "
                f"supplies the training data. Give targets and sample weights to "
                f"plan.batches(x, y, sample_weight), the batch size to tf_bandmf.plan, "
                f"and validation data to fit as validation_data."
            )
        class_weight = kwargs.pop("class_weight", None)
        return x if class_weight is None else x.with_class_weight(class_weight)
    if plan.participation.has_schedule:
        kind = f"data of type {type(x).__name__}"
        raise TypeError(admission.NOT_ITS_BATCHES.format(kind=kind))
    if y is not None or not (isinstance(x, tf.data.Dataset) or hasattr(x, "__next__")):
        raise TypeError(
            "For a plan with MinSep participation, call fit(x) without y, and pass a "
            "tf.data.Dataset or generator as x: Keras would shuffle arrays in every epoch."
        )
    return x


def refuse_stream(batches: Any) -> None:
    """Raises TypeError if the batches are not from `plan.batches`.

    A run on other batches cannot be resumed.
    """
    if not isinstance(batches, BatchSchedule):
        raise TypeError(
            f"private_state and begin_run(...) need batches from plan.batches(...), "
            f"not a {type(batches).__name__}: a run on batches that you make yourself "
            f"cannot be resumed. For such a run, call fit(...) without private_state, "
            f"or train_on_batch(...) without begin_run(...)."
        )


def check_validation(model: Any, fit_arguments: dict[str, Any]) -> None:
    """Evaluates a model on the first batch of validation data, before any step.

    Keras itself looks at validation data only after the first epoch, when that epoch's
    budget is already spent. Data that can be read only once are not checked.

    Raises:
      Exception: what Keras raises if these data cannot be evaluated.
    """
    data = fit_arguments.get("validation_data")
    if model.built and hasattr(data, "__len__") and not model.optimizer.steps_taken:
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        size = fit_arguments.get("validation_batch_size") or 32
        model.evaluate(x, y, batch_size=size, verbose=0, sample_weight=weights, steps=1)


def check_inputs(model: keras.Model, x: Any) -> None:
    """Raises ValueError if the model has one input, and `x` does not fit its shape."""
    leaves, inputs = tf.nest.flatten(x), getattr(model, "inputs", None) or []
    if len(leaves) == len(inputs) == 1:
        shape, expected = getattr(leaves[0], "shape", ()), tuple(inputs[0].shape)
        pairs = [pair for pair in zip(shape[1:], expected[1:]) if None not in pair]
        if len(shape) == len(expected) and any(a != b for a, b in pairs):
            raise ValueError(
                f"The model needs x of shape {expected}, not {shape}. Nothing was trained."
            )


def check_passes(
    data: Any, participation: Participation, fit_arguments: dict[str, Any]
) -> None:
    """Checks that passes over a dataset are not too short or too many for the plan.

    Args:
      data: the data of `fit`. Only a `tf.data.Dataset` of known finite length is
        checked; other data are accepted.
      participation: participation of the plan.
      fit_arguments: arguments of `fit`: `epochs`, `initial_epoch`, `steps_per_epoch`.

    Raises:
      ValueError: if there would be several passes over the dataset, and either a pass
        has fewer steps than the plan's min separation, or the number of passes exceeds
        the plan's maximum number of participations.
    """
    if not (isinstance(data, tf.data.Dataset) and isinstance(participation, MinSep)):
        return
    length = int(data.cardinality())
    if length < 1:
        # The length is infinite, unknown or zero.
        return
    epochs = fit_arguments.get("epochs", 1) - fit_arguments.get("initial_epoch", 0)
    steps = (fit_arguments.get("steps_per_epoch") or length) * epochs
    passes = -(-steps // length)
    most = participation.max_participations or passes
    if passes > 1 and (length < participation.min_separation or passes > most):
        raise ValueError(
            f"fit would read the dataset of {length} batches {passes} times, so examples "
            f"would participate more often or at shorter intervals than the plan's "
            f"{participation} allows. Train for fewer epochs, or make a plan with "
            f"MinSep({length}, max_participations={passes})."
        )


def data_for_keras(model: Any, batches: Any, kwargs: Any, is_resumed: bool) -> Any:
    """Returns the data that Keras reads, starting at the run's current step.

    Args:
      model: private, compiled and built.
      batches: the batches of the run; or the caller's stream, which is returned as it
        is.
      kwargs: other arguments of `fit`. This function sets `steps_per_epoch` and, for a
        resumed run, `initial_epoch`. It lowers the model's `steps_per_execution` to a
        divisor of the steps per epoch.
      is_resumed: True if the run was resumed.

    Raises:
      ValueError: if `fit` asks for more steps than the plan has left, or `check_passes`
        refuses the stream.
    """
    plan, taken = model.optimizer.plan, model.optimizer.steps_taken
    if not isinstance(batches, BatchSchedule):
        check_passes(batches, plan.participation, kwargs)
        return batches
    left = plan.num_steps - taken
    per_epoch = kwargs.get("steps_per_epoch") or batches.steps_per_epoch
    if is_resumed:
        done = taken // per_epoch
        kwargs["initial_epoch"] = max(done, kwargs.get("initial_epoch", 0))
    asked = (kwargs.get("epochs", 1) - kwargs.get("initial_epoch", 0)) * per_epoch
    # A run that was interrupted within an epoch may have a shorter last epoch.
    if asked > left and not (taken % per_epoch and asked - left < per_epoch):
        raise ValueError(
            f"fit asks for {asked} steps, but only {left} of the plan's "
            f"{plan.num_steps} steps are left. Train for fewer epochs, set initial_epoch "
            f"to the number of epochs already done, or make a plan for more steps."
        )
    if "epochs" not in kwargs and asked < left:
        warnings.warn(
            f"epochs was not given, so fit takes {asked} of the {left} remaining steps "
            f"of the plan. Give epochs={-(-left // per_epoch)} to take all of them.",
            stacklevel=3,
        )
    # The data set contains the batches of all epochs, and does not mark where an epoch
    # ends. If `steps_per_execution` did not divide the steps per epoch, an epoch's last
    # execution would also take steps of the next epoch.
    together = math.gcd(model.steps_per_execution, per_epoch)
    if together != model.steps_per_execution:
        model.steps_per_execution = together
        # Keras traced its functions for the old `steps_per_execution`.
        model.train_function = model.test_function = model.predict_function = None
    kwargs["steps_per_epoch"] = per_epoch
    if is_distributed(model):
        return _distributed(model, batches, taken)
    return batches.dataset(taken)


def _distributed(model: Any, schedule: BatchSchedule, first_step: int) -> Any:
    """Distributes a schedule's data set: each replica gets its share of each batch."""
    replicas = model.distribute_strategy.num_replicas_in_sync

    def parts(context: tf.distribute.InputContext) -> tf.data.Dataset:
        here = replicas // context.num_input_pipelines
        first = context.input_pipeline_id * here
        return schedule.dataset(first_step, range(first, first + here), replicas)

    return model.distribute_strategy.distribute_datasets_from_function(parts)
