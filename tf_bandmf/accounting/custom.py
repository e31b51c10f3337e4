"""Accountants of dp-accounting's own, or of anybody's, for the events of a run.

The library's accountant is the one that `plan` uses and states; this is a second opinion.
"""

from __future__ import annotations

import math

import dp_accounting

from tf_bandmf.accounting.checks import check_delta


def epsilon_by(
    accountant: dp_accounting.PrivacyAccountant,
    event: dp_accounting.DpEvent,
    delta: float,
) -> float:
    """Epsilon of one event at delta, by a fresh accountant.

    Args:
      accountant: one that has composed nothing yet, for example
        `dp_accounting.rdp.RdpAccountant()`. Sampling without replacement is accounted
        for under `NeighboringRelation.REPLACE_ONE` only.
      event: of a run, such as `Plan.dp_event()`.
      delta: in (0, 1).

    Raises:
      ValueError: if the accountant has composed something, cannot handle the event, or
        finds no finite epsilon.
    """
    check_delta(delta)
    if not isinstance(accountant.ledger, dp_accounting.NoOpDpEvent):
        raise ValueError(
            "The accountant has composed something already: give a fresh one."
        )
    try:
        accountant.compose(event)
    except dp_accounting.UnsupportedEventError as error:
        raise ValueError(
            f"{type(accountant).__name__} cannot handle {event}: {error} Use another "
            f"accountant or neighboring relation."
        ) from error
    epsilon = float(accountant.get_epsilon(delta))
    if not (math.isfinite(epsilon) and epsilon >= 0.0):
        raise ValueError(
            f"{type(accountant).__name__} found epsilon = {epsilon} at delta = {delta}."
        )
    return epsilon
