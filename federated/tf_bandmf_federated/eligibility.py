"""The rule for which devices may take part, the same on devices and on servers."""

from __future__ import annotations

from typing import Any

NEVER = -1  # last round of a device that did not take part yet


def may_take_part(
    last_rounds: Any,
    participations: Any,
    round_number: Any,
    min_separation: int,
    max_participations: int | None,
) -> Any:
    """Returns whether devices may contribute in a round (arXiv:2306.08153, section 3).

    Two participations i < j of one device have j - i >= b, and there are at most k.

    Args:
      last_rounds: each device's last round, from 0; `NEVER` if it did not take part yet.
        A number, an array or a tensor, like the other arguments.
      participations: number of each device's participations before this round.
      round_number: the round, from 0.
      min_separation: b.
      max_participations: k; None for no limit but the separation's.

    Returns:
      bool, of the shape of `last_rounds`; False if the last round is this one or later.
    """
    since = round_number - last_rounds
    free = (last_rounds <= NEVER) | (since >= min_separation)
    if max_participations is None:
        return free
    return free & (participations < max_participations)


def contradicts_itself(last_round: Any, participations: Any) -> Any:
    """Returns whether a record is impossible: a last round without participations, say."""
    # Not `==`, which compares identities of tensors in TFF's graphs.
    is_unknown = (last_round < NEVER) | (participations < 0)
    return is_unknown | ((last_round > NEVER) ^ (participations > 0))
