"""The one rule of who may take part, for devices, servers and tables alike."""

from __future__ import annotations

import numpy as np

NEVER = -1  # last round of a device that did not take part yet


def may_take_part(
    last_rounds: np.ndarray | int,
    participations: np.ndarray | int,
    round_number: int,
    min_separation: int,
    max_participations: int | None,
) -> np.ndarray:
    """Whether devices may contribute in a round (arXiv:2306.08153, section 3).

    Two participations i < j of one device have j - i >= b, and there are at most k.

    Args:
      last_rounds: of each, from 0; `NEVER` before the first time.
      participations: of each, before this round.
      round_number: from 0.
      min_separation: b.
      max_participations: k, or None for no limit but the separation's.

    Returns:
      bool, of the shape of `last_rounds`. A last round at or after this one: no.
    """
    last_rounds, participations = np.asarray(last_rounds), np.asarray(participations)
    free = (last_rounds == NEVER) | (round_number - last_rounds >= min_separation)
    if max_participations is None:
        return free
    return free & (participations < max_participations)
