"""The rule by which devices and servers decide whether a device may take part."""

from __future__ import annotations

from typing import Any

# This number stands for the last round of a device that has not taken part yet.
NEVER = -1


def may_take_part(
    last_rounds: Any,
    participations: Any,
    round_number: Any,
    min_separation: int,
    max_participations: int | None,
) -> Any:
    """Returns True for devices that may take part (arXiv:2306.08153, section 3).

    The first three arguments may be numbers, arrays or tensors.

    Args:
      last_rounds: the last round, from 0, in which each device took part; `NEVER` if it
        has not taken part yet.
      participations: number of participations of each device before this round.
      round_number: the round, from 0.
      min_separation: minimum of j - i for any rounds i < j of a device.
      max_participations: maximum number of participations of a device; None if only the
        separation limits the participations.

    Returns:
      bool, with the shape of `last_rounds`; False also for a device whose last round is
      this round or a later one.
    """
    since = round_number - last_rounds
    free = (last_rounds <= NEVER) | (since >= min_separation)
    if max_participations is None:
        return free
    return free & (participations < max_participations)


def contradicts_itself(last_round: Any, participations: Any) -> Any:
    """Returns True if a record is impossible, such as one with a negative count."""
    # Do not use `==`: in TFF's graphs, it would compare the identities of tensors.
    is_unknown = (last_round < NEVER) | (participations < 0)
    return is_unknown | ((last_round > NEVER) ^ (participations > 0))
