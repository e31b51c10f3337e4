"""Which rounds were begun in this process, so that none has two results by mistake.

Noise is bound to what it is added to, or drawn anew whenever a round is prepared: reuse
does no harm to it. But two results of one round spend more than the plan. A program that
goes on with the state of an earlier one has a ledger for this (`rounds`).
"""

from __future__ import annotations

import threading

_NONE = -1  # no round was begun


class NoiseUses:
    """The rounds of this process, by the number of their run; safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: dict[int, int] = {}
        self._ready: set[tuple[int, int]] = set()

    def begin(self, run: int, round_number: int, replay: bool) -> None:
        """A round begins, and may have one result.

        Raises:
          ValueError: without `replay`, if it, or a later one, was begun before.
        """
        with self._lock:
            if not replay and round_number <= self._last.get(run, _NONE):
                raise ValueError(
                    f"Round {round_number} was begun already. Two results of one round "
                    f"spend more than the plan: skip the round, or say replay=True if "
                    f"the first result was neither released nor kept."
                )
            self._last[run] = max(round_number, self._last.get(run, _NONE))
            self._ready.add((run, round_number))

    def pass_over(self, run: int, round_number: int) -> None:
        """A round has no result, and is not begun any more but for a replay."""
        with self._lock:
            self._last[run] = max(round_number, self._last.get(run, _NONE))
            self._ready.discard((run, round_number))

    def take(self, run: int, round_number: int, begins: bool = False) -> None:
        """The round has its result now.

        Args:
          run: its number.
          round_number: of the round.
          begins: whether a round that is later than all before is begun by this.

        Raises:
          ValueError: if it was not begun in this process, or has a result.
        """
        with self._lock:
            if begins and round_number > self._last.get(run, _NONE):
                self._last[run] = round_number
                self._ready.add((run, round_number))
            if (run, round_number) not in self._ready:
                raise ValueError(
                    f"Round {round_number} was used already, or prepared by another "
                    f"process: a second result spends more than the plan. A prepared "
                    f"state is for one call of next; go on with the state that it "
                    f"returned. To repeat the round call prepare(state, replay=True)."
                )
            self._ready.remove((run, round_number))

    def give_back(self, run: int, round_number: int) -> None:
        """The round failed and has no result."""
        with self._lock:
            self._ready.add((run, round_number))
