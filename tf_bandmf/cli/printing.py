"""Tables, progress and JSON on the terminal."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Callable, TextIO

from tf_bandmf.planning.comparison import plain_table

if TYPE_CHECKING:
    from tf_bandmf.planning.plan import Plan


_QUIET_SECONDS = 2.0


def print_json(value: Any) -> None:
    """Prints plain finite values."""
    print(json.dumps(value, indent=2, allow_nan=False))


def print_table(
    title: str, headings: Sequence[str], body: Sequence[Sequence[str]]
) -> None:
    """By rich where it is installed, else as plain text."""
    try:
        import rich.console
        import rich.table
    except ImportError:
        print(plain_table(title, headings, body))
        return
    rendered = rich.table.Table(title=title, title_justify="left")
    for i, heading in enumerate(headings):
        rendered.add_column(
            heading, justify="left" if i == 0 else "right", no_wrap=True
        )
    for line in body:
        rendered.add_row(*line)
    console = rich.console.Console()
    # A file or a pipe has no width: nothing is cut off there.
    if not console.is_terminal:
        console = rich.console.Console(width=160)
    console.print(rendered)


def progress(stream: TextIO | None = None) -> Callable[[str], None]:
    """Names what is being computed, where it takes time or a person may be waiting.

    On a terminal from the beginning, elsewhere (a log, a pipe) from two seconds on.
    """
    stream = sys.stderr if stream is None else stream
    began = time.monotonic()

    def tell(name: str) -> None:
        waited = time.monotonic() - began
        if stream.isatty() or waited > _QUIET_SECONDS:
            print(f"{waited:5.1f} s  {name} ...", file=stream, flush=True)

    return tell


def print_choice(plan: Plan) -> None:
    """What the plan's mechanism was chosen from, and why; nothing if it was given."""
    choice = plan.choice
    if choice is None:
        return
    print_table(choice.table.title, *choice.table.cells())
    for name, reason in choice.excluded.items():
        print(f"Not compared: {name}: {reason}")
    print(choice.reason)
    for line in choice.advice:
        print(line)
    print()


def plan_record(plan: Plan) -> dict[str, Any]:
    """A plan for machines, plain finite values."""
    choice = plan.choice
    return {
        "mechanism": plan.strategy.family,
        "parameters": dict(plan.strategy.parameters),
        "num_steps": plan.num_steps,
        "participation": plan.participation.to_config(),
        "epsilon": plan.epsilon,
        "delta": plan.delta,
        "kind": plan.kind,
        "confidence": plan.confidence,
        "accountant": plan.accountant,
        "adjacency": plan.adjacency,
        "noise_multiplier": plan.noise_multiplier,
        "noise_stddev": plan.noise_stddev,
        "l2_norm_clip": plan.l2_norm_clip,
        "rmse": plan.rmse(),
        "memory_vectors": plan.strategy.memory_vectors,
        "regenerations_per_step": plan.strategy.regenerations_per_step,
        "fingerprint": plan.fingerprint,
        "statement": dict(plan.statement().points()),
        "choice": None if choice is None else choice.to_record(),
    }
