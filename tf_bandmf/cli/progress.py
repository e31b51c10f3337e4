"""Says on standard error what is being computed, if it takes more than two seconds."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, TextIO

from tf_bandmf.cli.parsing import refusals
from tf_bandmf.optimize.options import unasked_bars

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

QUIET_SECONDS = 2.0


class Progress:
    """Takes names of what begins now; shows them while the block runs.

    On a terminal one line with a spinner and the time, which vanishes at the end;
    elsewhere (a log, a pipe) one line a name.

    Args:
      first: what is done until the first name comes.
      stream: by default standard error.
      quiet_seconds: before anything is shown.
    """

    def __init__(
        self,
        first: str,
        stream: TextIO | None = None,
        quiet_seconds: float = QUIET_SECONDS,
    ) -> None:
        self._name = first
        self._stream = sys.stderr if stream is None else stream
        self._lock = threading.Lock()
        self._timer = threading.Timer(quiet_seconds, self._begin)
        self._timer.daemon = True
        self._began = time.monotonic()
        self._is_shown = False
        self._bar: Bar | None = None

    def __enter__(self) -> Progress:
        self._timer.start()
        # Two displays would write over each other.
        self._token = unasked_bars.set(False)
        return self

    def __exit__(self, *_: object) -> None:
        unasked_bars.reset(self._token)
        self._timer.cancel()
        with self._lock:
            self._is_shown = False
            if self._bar is not None:
                self._bar.stop()

    def __call__(self, name: str) -> None:
        """Says that the computation of `name` begins."""
        with self._lock:
            self._name = name
            if self._is_shown:
                self._show()

    def _begin(self) -> None:
        with self._lock:
            if self._timer.finished.is_set():
                return  # the block has ended
            self._is_shown = True
            if self._stream.isatty():
                import rich.console
                from rich import progress

                self._bar = progress.Progress(
                    progress.SpinnerColumn(),
                    progress.TextColumn("{task.description}"),
                    progress.TimeElapsedColumn(),
                    console=rich.console.Console(file=self._stream),
                    transient=True,
                )
                self._bar.add_task(self._name)
                self._bar.start()
            else:
                self._show()

    def _show(self) -> None:
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], description=self._name)
            return
        waited = time.monotonic() - self._began
        print(f"{waited:5.1f} s  {self._name} ...", file=self._stream, flush=True)


@contextlib.contextmanager
def calculation(command: str, first: str) -> Iterator[Progress]:
    """Progress of a calculation with a budget.

    The library's refusals become `BadArguments`; its warnings that delta is too large
    become lines on standard error when all is done, and no others are shown.

    Args:
      command: whose warnings they are.
      first: see `Progress`.
    """
    with (
        refusals(),
        warnings.catch_warnings(record=True) as caught,
        Progress(first) as progress,
    ):
        warnings.simplefilter("ignore")
        warnings.filterwarnings("always", "delta = ", UserWarning)
        yield progress
    for warning in caught:
        print(f"tf-bandmf {command}: warning: {warning.message}", file=sys.stderr)
