"""Tables and texts that fit the terminal, and JSON."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tf_bandmf.planning.comparison import plain_table
from tf_bandmf.strategies import registry

if TYPE_CHECKING:
    import rich.table

    from tf_bandmf.planning.comparison import Comparison
    from tf_bandmf.planning.plan import Plan
    from tf_bandmf.planning.statement import Statement

# Longer lines are hard to read.
_WIDEST_TEXT = 100
# Columns of a table of mechanisms that narrow terminals leave out first.
_LESS_IMPORTANT = (
    "seconds",
    "optimal among",
    "optimality gap",
    "regenerations per step",
    "max SE",
    "sensitivity",
    "bands",
    "noise stddev",
    "memory vectors",
)


def terminal_width() -> int | None:
    """Columns of the terminal, or of the environment's COLUMNS; None for a file or pipe.

    What goes to a file or a pipe is complete, and one line a row.
    """
    if not sys.stdout.isatty() and not os.environ.get("COLUMNS", "").isdigit():
        return None
    return shutil.get_terminal_size().columns


def print_json(value: Any) -> None:
    """Prints plain finite values."""
    print(json.dumps(value, indent=2, allow_nan=False))


@dataclasses.dataclass(frozen=True)
class Table:
    """Texts in columns.

    Attributes:
      title: of one or more sentences.
      headings: of the columns; the first one names the rows and always stays.
      body: the cells of each row.
      less_important: headings in the order in which a narrow terminal leaves them out.
    """

    title: str
    headings: Sequence[str]
    body: Sequence[Sequence[str]]
    less_important: Sequence[str] = ()

    @classmethod
    def of_comparison(cls, table: Comparison) -> Table:
        """The table of some mechanisms."""
        return cls(table.title, *table.cells(), _LESS_IMPORTANT)

    def print(self, wide: bool = False) -> None:
        """Prints it, with a line on the columns that did not fit.

        Args:
          wide: all columns, however wide the terminal is.
        """
        width = terminal_width()
        if width is None:
            print(plain_table(self.title, self.headings, self.body))
            return
        import rich.console

        # A console of its own width neither cuts nor folds cells.
        console = rich.console.Console(width=10_000)
        kept, left_out = list(self.headings), []
        rendered = self._rendered(kept)
        for heading in () if wide else self._order():
            if console.measure(rendered).maximum <= width:
                break
            kept.remove(heading)
            left_out.append(heading)
            rendered = self._rendered(kept)
        say(self.title)
        needed = console.measure(rendered).maximum
        rich.console.Console(width=max(width, needed)).print(rendered)
        if left_out:
            names = ", ".join(h for h in self.headings if h in left_out)
            say(f"Left out at {width} columns: {names}. --wide shows all.")

    def _order(self) -> list[str]:
        """What may be left out: empty columns first."""
        empty = [
            heading
            for i, heading in enumerate(self.headings)
            if i > 0 and not any(row[i] for row in self.body)
        ]
        return list(dict.fromkeys([*empty, *self._known_less_important()]))

    def _known_less_important(self) -> list[str]:
        return [heading for heading in self.less_important if heading in self.headings]

    def _rendered(self, kept: Sequence[str]) -> rich.table.Table:
        import rich.box
        import rich.table

        made = rich.table.Table(
            box=rich.box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1)
        )
        places = [i for i, heading in enumerate(self.headings) if heading in kept]
        for i in places:
            widest = max((len(row[i]) for row in self.body), default=0)
            made.add_column(
                _fitting(self.headings[i], widest),
                justify="left" if i == 0 else "right",
                no_wrap=True,
            )
        for row in self.body:
            made.add_row(*(row[i] for i in places))
        return made


def _fitting(heading: str, width: int) -> str:
    """In two lines if it is wider than the cells, broken where it is narrowest then."""
    if len(heading) <= width:
        return heading
    places = [i for i, letter in enumerate(heading) if letter == " "]
    if not places:
        return heading
    middle = min(places, key=lambda i: max(i, len(heading) - i - 1))
    return f"{heading[:middle]}\n{heading[middle + 1 :]}"


def say(text: str) -> None:
    """Prints a text, wrapped on a terminal."""
    print(_wrapped(text))


def print_statement(statement: Statement) -> None:
    """Prints a statement, its points wrapped and indented on a terminal."""
    title, *points = str(statement).split("\n")
    print(title)
    for point in points:
        number = point.split(" ", 1)[0]
        print(_wrapped(point, indent=len(number) + 1))


def _wrapped(text: str, indent: int = 0) -> str:
    width = terminal_width()
    if width is None:
        return text
    return textwrap.fill(
        text,
        min(width, _WIDEST_TEXT),
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def print_choice(plan: Plan, wide: bool = False) -> None:
    """What the plan's mechanism was chosen from, and why; nothing if it was given."""
    choice = plan.choice
    if choice is None:
        return
    Table.of_comparison(choice.table).print(wide)
    for name, reason in choice.excluded.items():
        say(f"Not compared: {name}: {reason}")
    say(choice.reason)
    for line in choice.advice:
        # The library speaks of its arguments.
        line = re.sub(r'sampling="([a-z-]+)"', r"--sampling \1", line)
        say(line)
    print()


def plan_record(plan: Plan) -> dict[str, Any]:
    """A plan for machines, plain finite values."""
    choice = plan.choice
    return {
        "mechanism": registry.specification(plan.strategy),
        "family": plan.strategy.family,
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
        "measurements": plan.measurements.to_config(),
        "memory_vectors": plan.strategy.memory_vectors,
        "regenerations_per_step": plan.strategy.regenerations_per_step,
        "fingerprint": plan.fingerprint,
        "statement": dict(plan.statement().points()),
        "choice": None if choice is None else choice.to_record(),
    }
