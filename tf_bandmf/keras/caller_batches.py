"""What can be seen of batches that the caller makes, and whose separation he asserts.

Little: which example is in which batch is the caller's knowledge alone. Whether a
`tf.data.Dataset` has another order in its next pass cannot be seen. How long a pass is
often can, and an example comes back in the next pass, on average after that many steps.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tf_bandmf.participation import MinSep, Participation


def check_passes(
    data: Any, participation: Participation, fit_arguments: dict[str, Any]
) -> None:
    """Refuses passes over a dataset that are shorter or more than its plan permits.

    Args:
      data: what `fit` was given. Only a `tf.data.Dataset` of known finite length is
        looked at; the others pass.
      participation: of the plan.
      fit_arguments: of `fit`: `epochs`, `initial_epoch`, `steps_per_epoch`.

    Raises:
      ValueError: if it would be passed over several times, and a pass is shorter than
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
