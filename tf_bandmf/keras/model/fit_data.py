"""Checks the data of `fit`: the plan's batches, or an error that says how to make them.

Little can be checked about batches that the caller makes and whose separation the
caller guarantees: only the caller knows which example is in which batch. Whether a
`tf.data.Dataset` has another order in its next pass cannot be seen. The length of a
pass often can, and an example comes back in the next pass, on average after that many
steps.
"""

from __future__ import annotations

import warnings
from typing import Any

import keras
import tensorflow as tf

from tf_bandmf.participation import MinSep, Participation
from tf_bandmf.planning.plan import Plan
from tf_bandmf.sampling.batches import BatchSchedule

_BATCHES = "Train with model.fit(plan.batches(x, y), ...)"
_OWN_ORDER = (
    "model.fit(plan.batches({what})), which reads it in its own order, if that is the same "
    "in each pass and the plan has sampling='fixed-order'"
)
_ON_DISK = (
    "plan.batches(x, y) with arrays of np.lib.format.open_memmap, to which the examples "
    "are written once, or plan.batches(tf_bandmf.sampling.TFRecordExamples(files, parse))"
)
_BY_INDEX = (
    "plan.batches(source), where len(source) examples are source[0], source[1], ..., each "
    "(x, y)"
)


def checked_data(
    plan: Plan, x: Any, y: Any, kwargs: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """The data of `fit`, and its other arguments without those that were used here.

    Args:
      plan: plan of the optimizer.
      x: argument of `fit`.
      y: argument of `fit`.
      kwargs: other arguments of `fit`.

    Raises:
      TypeError: if the data are not the plan's batches, nor a stream where the plan leaves
        batches to the caller.
      ValueError: if an argument would change what the plan's batches hold.
    """
    if isinstance(x, BatchSchedule):
        given = [] if y is None else ["y"]
        for name, default in _UNCHANGED.items():
            value = kwargs.get(name)
            if value is not None and not (default is not None and value == default):
                given.append(name)
        if given:
            raise ValueError(
                f"plan.batches holds the training data: {', '.join(given)} cannot "
                f"change them. Give targets and sample weights to plan.batches(x, y, "
                f"sample_weight), the batch size to tf_bandmf.plan, and validation data "
                f"as validation_data."
            )
        if kwargs.get("shuffle"):
            warnings.warn(
                "shuffle=True has no effect: the plan's sampling decides the order of the "
                "examples, as its accountant assumes. For random batches give "
                "tf_bandmf.plan a sampling, such as 'poisson' or 'balls-in-bins'.",
                stacklevel=3,
            )
        kwargs = dict(kwargs)
        class_weight = kwargs.pop("class_weight", None)
        if class_weight is not None:
            x = x.with_class_weight(class_weight)
        return x, kwargs
    if plan.participation.has_schedule:
        what, way = _ways_of(x)
        raise TypeError(
            f"The plan's accountant assumes the batches of its own sampler, found "
            f"{what}. {way}"
        )
    if y is not None or not (isinstance(x, tf.data.Dataset) or hasattr(x, "__next__")):
        raise TypeError(
            "Keras would shuffle arrays in every epoch and break the separation "
            "that the plan assumes. Give a tf.data.Dataset that respects it."
        )
    return x, kwargs


def check_inputs(model: keras.Model, data: Any, name: str = "validation_data") -> None:
    """Refuses data that do not fit a model's only input.

    Keras looks at validation data when the first epoch is over, and its budget spent.

    Args:
      model: built.
      data: `validation_data` of `fit`: (x, y), with arrays, or a `tf.data.Dataset`.
      name: of the data.

    Raises:
      ValueError: if a dimension differs.
    """
    inputs = getattr(model, "inputs", None) or []
    is_dataset = isinstance(data, tf.data.Dataset)
    data = data.element_spec if is_dataset else data
    if not isinstance(data, (tuple, list)) or not data or len(inputs) != 1:
        return
    leaves = tf.nest.flatten(data[0])
    shape = getattr(leaves[0], "shape", None) if len(leaves) == 1 else None
    if shape is None or len(shape) != len(inputs[0].shape):
        return
    expected = inputs[0].shape[1:]
    if any(None not in (a, b) and a != b for a, b in zip(shape[1:], expected)):
        raise ValueError(
            f"{name} must have the inputs of the model, of shape "
            f"{(None, *expected)}, found {tuple(shape)}. Nothing was trained."
        )


# Arguments that would change the batches, and the values that change nothing.
_UNCHANGED: dict[str, Any] = {
    "sample_weight": None,
    "validation_split": 0.0,
    "batch_size": None,
}


def _ways_of(x: Any) -> tuple[str, str]:
    """What such data are, and how they become the plan's batches."""
    is_dataset = isinstance(x, tf.data.Dataset)
    if is_dataset or isinstance(x, keras.utils.PyDataset):
        what = "tf.data.Dataset" if is_dataset else f"PyDataset ({type(x).__name__})"
        return f"a {what}", (
            f"Use {_OWN_ORDER.format(what='dataset')}. For other samplings, which read by "
            f"index, use {_ON_DISK if is_dataset else _BY_INDEX}. Random augmentation goes "
            f"into plan.batches(..., map=function)."
        )
    if hasattr(x, "__next__"):
        return "a generator", (
            f"A generator can be read once: give the function that makes it. Use "
            f"{_OWN_ORDER.format(what='function')}. For other samplings make it a "
            f"tf.data.Dataset (tf.data.Dataset.from_generator) and use {_ON_DISK}; or use "
            f"{_BY_INDEX}."
        )
    way = f"{_BATCHES}; x and y are arrays of all training examples."
    return f"data of type {type(x).__name__}", way


def check_passes(
    data: Any, participation: Participation, fit_arguments: dict[str, Any]
) -> None:
    """Refuses passes over a dataset that are shorter or more than its plan permits.

    Args:
      data: what `fit` was given. Only a `tf.data.Dataset` of known finite length is
        checked; others pass.
      participation: participation of the plan.
      fit_arguments: arguments of `fit`: `epochs`, `initial_epoch`, `steps_per_epoch`.

    Raises:
      ValueError: if there would be several passes over it, and a pass is shorter than
        the separation, or there are more passes than participations.
    """
    if not (isinstance(data, tf.data.Dataset) and isinstance(participation, MinSep)):
        return
    length = int(data.cardinality())
    if length < 1:  # infinite or unknown
        return
    epochs = fit_arguments.get("epochs", 1) - fit_arguments.get("initial_epoch", 0)
    steps = (fit_arguments.get("steps_per_epoch") or length) * epochs
    passes = -(-steps // length)
    if passes < 2:
        return
    separation = participation.min_separation
    most = participation.max_participations
    if length < separation:
        raise ValueError(
            f"The plan assumes at least {separation} steps between two participations of "
            f"an example, but a pass over the dataset has {length} batches, and fit would "
            f"take {passes} passes. Take one pass, or make a plan with MinSep({length})."
        )
    if most is not None and passes > most:
        raise ValueError(
            f"The plan assumes that an example takes part at most {most} times, but fit "
            f"would take {passes} passes over the dataset. Fit fewer epochs, or make a "
            f"plan with more participations."
        )
