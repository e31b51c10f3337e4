"""The rule that decides whether a device may take part, for devices and servers."""

from __future__ import annotations

from typing import Any

NEVER = -1  # last round of a device that has not taken part yet


def may_take_part(
    last_rounds: Any,
    participations: Any,
    round_number: Any,
    min_separation: int,
    max_participations: int | None,
) -> Any:
    """Returns True for devices that may join a round (arXiv:2306.08153, section 3).

    Any two participations i < j of one device must have j - i >= b, and a device may
    take part at most k times.

    Args:
      last_rounds: the last round of each device, from 0; `NEVER` if the device has not
        taken part yet. All arguments may be numbers, arrays or tensors.
      participations: number of participations of each device before this round.
      round_number: the round, from 0.
      min_separation: b.
      max_participations: k; None for no limit other than the separation.

    Returns:
      bool, with the shape of `last_rounds`; False if the last round is this round or
      later.
    """
    since = round_number - last_rounds
    free = (last_rounds <= NEVER) | (since >= min_separation)
    if max_participations is None:
        return free
    return free & (participations < max_participations)


def contradicts_itself(last_round: Any, participations: Any) -> Any:
    """Returns True if a record is impossible, for example because of a negative count."""
    # In TFF's graphs, `==` on tensors would compare object identities.
    is_unknown = (last_round < NEVER) | (participations < 0)
    return is_unknown | ((last_round > NEVER) ^ (participations > 0))
