"""The one rule of who may take part, for devices, servers and tables alike."""

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
      last_rounds: of each, from 0; `NEVER` before the first time. A number, an array or
        a tensor, as the others.
      participations: of each, before this round.
      round_number: from 0.
      min_separation: b.
      max_participations: k; None for no limit but the separation's.

    Returns:
      bool, of the shape of `last_rounds`. A last round at or after this one: no.
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
