"""The rule by which devices may take part, the same on devices and on servers."""

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
    """Returns True if devices may contribute in a round (arXiv:2306.08153, section 3).

    Two participations i < j of one device have j - i >= b, and a device has at most k.

    Args:
      last_rounds: each device's last round, from 0; `NEVER` if it has not taken part yet. A
        number, an array or a tensor, like the other arguments.
      participations: number of each device's participations before this round.
      round_number: the round, from 0.
      min_separation: b.
      max_participations: k; None for no limit other than the separation.

    Returns:
      bool, of the shape of `last_rounds`; False if the last round is this one or later.
    """
    since = round_number - last_rounds
    free = (last_rounds <= NEVER) | (since >= min_separation)
    if max_participations is None:
        return free
    return free & (participations < max_participations)


def contradicts_itself(last_round: Any, participations: Any) -> Any:
    """Returns True if a record is impossible, such as one with a negative count."""
    # `==` is not used because it compares identities of tensors in TFF's graphs.
    is_unknown = (last_round < NEVER) | (participations < 0)
    return is_unknown | ((last_round > NEVER) ^ (participations > 0))
