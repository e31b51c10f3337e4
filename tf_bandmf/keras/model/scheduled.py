"""The batches of a checked schedule, which `fit` trains on."""

from __future__ import annotations

import warnings
from typing import Any

import tensorflow as tf

from tf_bandmf.keras.compat.keras_objects import is_distributed
from tf_bandmf.keras.model import preparation
from tf_bandmf.keras.model.batch_contents import contents
from tf_bandmf.keras.optimizer.private import PrivateOptimizer
from tf_bandmf.sampling import batches as batches_lib
from tf_bandmf.sampling.batches import BatchSchedule


def scheduled(
    model: Any,
    optimizer: PrivateOptimizer,
    schedule: BatchSchedule,
    kwargs: dict[str, Any],
) -> tuple[tf.data.Dataset, dict[str, Any]]:
    """The data set of a schedule from the step that the run is at, and `fit`'s arguments.

    Raises:
      ValueError: if the schedule is not the plan's or the run's, or has fewer steps left
        than asked for.
    """
    plan = optimizer.plan
    optimizer.run.refuse_restored()
    optimizer.run.refuse_trained(model._training.plain_steps)
    if schedule.plan_id != plan.plan_id:
        raise ValueError(
            "The batches belong to another plan than the optimizer. Use the same "
            "plan for both."
        )
    taken = optimizer.steps_taken
    left = plan.num_steps - taken
    per_epoch = kwargs.get("steps_per_epoch") or schedule.steps_per_epoch
    asked = (kwargs.get("epochs", 1) - kwargs.get("initial_epoch", 0)) * per_epoch
    # After an interruption within an epoch the last epoch may be cut short.
    if asked > left and not (taken % per_epoch and asked - left < per_epoch):
        raise ValueError(
            f"fit asks for {asked} steps, but {left} of the plan's "
            f"{plan.num_steps} steps are left. The budget is for no more: fit fewer "
            f"epochs, or make a plan for more."
        )
    if "epochs" not in kwargs and asked < left:
        warnings.warn(
            f"epochs is left out: fit takes {asked} of the {left} steps that are left of "
            f"the plan. Give epochs={-(-left // per_epoch)} for all of them.",
            stacklevel=3,
        )
    _end_executions_with_epochs(model, per_epoch)
    run = optimizer.run
    schedule = run.batches(schedule)
    dataset = schedule.dataset(taken)
    if run.has_begun and run.schedule_id not in (-1, schedule.schedule_id):
        raise ValueError(
            "The run began with other data, or the same data in other places, or in a "
            "custom loop with batches that no run had drawn: the accountant's assumption "
            "would be broken. Use the data, or the schedule object, that began it."
        )
    run.membership.refuse_second(model.weights, schedule.schedule_id)
    if not (model.built or is_distributed(model)):
        _build_before_tracing(model, dataset)
    if is_distributed(model):
        dataset = _distributed(model, schedule, taken)
    return dataset, {**kwargs, "steps_per_epoch": per_epoch, "shuffle": False}


def _end_executions_with_epochs(model: Any, per_epoch: int) -> None:
    """Lowers `steps_per_execution` to a divisor of an epoch's steps, and says so.

    All epochs read one data set, which does not end with an epoch: Keras would go on into
    the next one, as it does not for arrays.
    """
    given = model.steps_per_execution
    most = max(k for k in range(1, min(given, per_epoch) + 1) if per_epoch % k == 0)
    if most == given:
        return
    warnings.warn(
        f"steps_per_execution={given} does not divide the {per_epoch} steps of an epoch, "
        f"so {most} steps are executed at once: an epoch must end where its last step "
        f"does. A divisor of {per_epoch} is taken as it is.",
        stacklevel=4,
    )
    model.steps_per_execution = most
    # They were traced with the old one.
    model.train_function = model.test_function = model.predict_function = None


def _build_before_tracing(model: Any, dataset: tf.data.Dataset) -> None:
    """Makes the weights: a step that makes variables while traced is traced twice."""
    for batch in dataset:
        x, _, _ = contents(batch)
        # Not every layer takes a batch of zero examples.
        if int(tf.shape(tf.nest.flatten(x)[0])[0]):
            preparation.build_model(model, batch)
            break


def _distributed(model: Any, schedule: BatchSchedule, first_step: int) -> Any:
    """Each replica's part of each batch."""
    replicas = preparation.num_replicas(model)

    def parts(context: tf.distribute.InputContext) -> tf.data.Dataset:
        here = replicas // context.num_input_pipelines
        first = context.input_pipeline_id * here
        batches = schedule.dataset(first_step)
        return batches_lib.in_parts(batches, range(first, first + here), replicas)

    return model.distribute_strategy.distribute_datasets_from_function(parts)
