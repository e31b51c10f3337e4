"""`tf-bandmf budget`: data sets, what was spent of their budgets, and by whom."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from tf_bandmf.cli import options, printing
from tf_bandmf.cli.help import Context
from tf_bandmf.cli.parsing import BadArguments, refusals
from tf_bandmf.cli.progress import Progress

if TYPE_CHECKING:
    from tf_bandmf.ledger.book import Ledger
    from tf_bandmf.ledger.states import AccountState

VARIABLE = "TF_BANDMF_LEDGER"
_EPILOG = (
    "LEDGER is a file such as privacy.db, sqlite:///privacy.db, or "
    f"postgresql://user@host/database; without --ledger it is what {VARIABLE} says."
)


@click.group(
    "budget", short_help="what was spent of the budgets of data sets", epilog=_EPILOG
)
@click.option("--ledger", metavar="LEDGER", envvar=VARIABLE, help="see below")
@click.option(
    "--trust",
    is_flag=True,
    help="read a database that lacks what this machine has seen of it before",
)
@click.pass_context
def command(context: click.Context, ledger: str | None, trust: bool) -> None:
    """What was spent of the budgets of data sets, by which runs, and what would fit."""
    context.obj = (ledger, trust)


command.context_class = Context


@contextlib.contextmanager
def _opened(
    context: click.Context, doing: str, create: bool = False
) -> Iterator[Ledger]:
    url, trust = context.obj
    if not url:
        raise BadArguments(f"--ledger is missing, and {VARIABLE} is not set.")
    if "://" not in url:
        url = f"sqlite:///{url}"
    with Progress(doing), refusals():
        from tf_bandmf.ledger.book import Ledger
        from tf_bandmf.ledger.errors import DamagedLedgerError, LedgerError

        try:
            yield Ledger(url, create=create, trust=trust)
        except DamagedLedgerError:
            raise
        except LedgerError as error:
            raise BadArguments(str(error)) from error


def _wide_and_json(command: Any) -> Any:
    return options.output("print JSON", plot=False)(command)


@command.command("add", short_help="add a data set, or give it a budget")
@click.argument("dataset")
@click.option("--epsilon", type=float, help="of the budget")
@click.option("--delta", type=float, help="of the budget")
@click.option("--rho", type=float, help="of zCDP, instead of epsilon and delta")
@click.option("--unit", default=None, help="whose presence it hides, in one line")
@click.option(
    "--adjacency",
    type=click.Choice(["zero-out", "replace-one"]),
    default="zero-out",
    show_default=True,
    help="which data sets count as neighbors",
)
@click.option("--data-version", default=None, help="of the data, or a digest")
@click.option("--period", default="always", show_default=True, help="its name")
@click.option("--begins", default=None, metavar="DATE", help="of the period, UTC")
@click.option("--ends", default=None, metavar="DATE", help="not part of the period")
@click.pass_context
def add(
    context: click.Context,
    dataset: str,
    unit: str | None,
    adjacency: str,
    data_version: str | None,
    **budget: Any,
) -> None:
    """Adds a data set, or gives one that is there another budget.

    Makes the ledger if there is none.
    """
    with _opened(context, "adding", create=True) as ledger:
        known = {each.name: each for each in ledger.datasets()}
        if dataset in known:
            same = known[dataset]
            if unit not in (None, same.unit):
                raise BadArguments(f"{dataset} has the unit {same.unit!r}.")
            ledger.set_budget(dataset, **budget)
        else:
            from tf_bandmf.planning.statement import ONE_EXAMPLE

            ledger.add_dataset(
                dataset,
                unit=unit or ONE_EXAMPLE,
                adjacency=adjacency,
                version=data_version,
                **budget,
            )
        _print_states(ledger.spent(dataset), wide=False)


@command.command("show", short_help="what was spent of each budget")
@click.argument("dataset", required=False)
@_wide_and_json
@click.pass_context
def show(
    context: click.Context, dataset: str | None, wide: bool, as_json: bool
) -> None:
    """What was spent of each budget, or of those of one data set."""
    with _opened(context, "reading the ledger") as ledger:
        names = [each.name for each in ledger.datasets()]
        chosen = names if dataset is None else [dataset]
        states = [state for name in chosen for state in ledger.spent(name)]
        over = ledger.overspent()
    if as_json:
        from tf_bandmf.ledger.exports import state_record

        printing.print_json([state_record(state) for state in states])
        return
    if not states:
        printing.say("The ledger has no budget yet: tf-bandmf budget add.")
        return
    _print_states(states, wide)
    for problem in over:
        printing.say(problem)


def _print_states(states: list[AccountState], wide: bool) -> None:
    body = []
    for state in states:
        budget = state.budget
        whole = budget.epsilon if budget.rho is None else budget.rho
        body.append(
            [
                state.dataset,
                state.period,
                state.partition or "all",
                f"{whole:g}",
                f"{budget.delta:g}" if budget.rho is None else "rho",
                f"{state.spent.value:.4g}",
                f"{state.spent.part:.1%}",
                str(state.runs),
                state.spent.method,
            ]
        )
    headings = [
        "data set",
        "period",
        "data",
        "budget",
        "delta",
        "spent",
        "part",
        "runs",
    ]
    table = printing.Table(
        "Spent or reserved.",
        [*headings, "by"],
        body,
        ("by", "delta", "data", "period", "runs"),
    )
    table.print(wide)


@command.command("history", short_help="who ran and released what, and when")
@click.argument("dataset", required=False)
@click.option("--run", default=None, help="a run's digest, or its first digits")
@click.option("--last", type=click.IntRange(1), default=None, help="so many entries")
@_wide_and_json
@click.pass_context
def history(
    context: click.Context,
    dataset: str | None,
    run: str | None,
    last: int | None,
    wide: bool,
    as_json: bool,
) -> None:
    """Entries of the ledger, oldest first."""
    with _opened(context, "reading the ledger") as ledger:
        entries = ledger.history(dataset)
    if run is not None:
        entries = [entry for entry in entries if (entry.run or "").startswith(run)]
    entries = entries[-last:] if last else entries
    if as_json:
        import dataclasses

        printing.print_json([dataclasses.asdict(entry) for entry in entries])
        return
    body = []
    for entry in entries:
        said = entry.body
        about = said.get("mechanism") or said.get("about") or said.get("to") or ""
        if entry.kind == "steps":
            about = f"{said['steps']} steps"
        elif entry.kind == "ended" and said.get("reason"):
            about = f"{said['steps']} steps: {said['reason']}"
        epsilon = said.get("epsilon")
        body.append(
            [
                str(entry.number),
                entry.at[:16].replace("T", " "),
                entry.kind,
                entry.dataset or "",
                (entry.run or "")[:8],
                "" if epsilon is None else f"{epsilon:.4g}",
                about if len(about) <= 28 else f"{about[:25]}...",
                entry.who,
            ]
        )
    headings = ["entry", "when", "what", "data set", "run", "epsilon", "about", "who"]
    table = printing.Table(
        "Entries, times in UTC.", headings, body, ("who", "run", "data set", "about")
    )
    table.print(wide)


@command.command("fits", short_help="the largest run that would still fit")
@click.argument("dataset")
@click.option("--delta", type=float, help="of the run; by default the budget's")
@click.option("--partition", multiple=True, help="whose data it uses; may be repeated")
@click.option("--json", "as_json", is_flag=True, help="print JSON")
@click.pass_context
def fits(
    context: click.Context,
    dataset: str,
    delta: float | None,
    partition: tuple[str, ...],
    as_json: bool,
) -> None:
    """The largest epsilon of a run without amplification that would fit now."""
    with _opened(context, "composing") as ledger:
        epsilon = ledger.fits(dataset, delta=delta, partitions=partition)
    if as_json:
        printing.print_json({"dataset": dataset, "epsilon": epsilon})
    elif epsilon > 0.0:
        printing.say(
            f"A run on {dataset} fits with --epsilon {epsilon:g} or less; amplified ones "
            f"may state more."
        )
    else:
        printing.say(f"Nothing fits on {dataset} any more.")


@command.command("verify", short_help="whether anything was changed")
@click.argument("entries", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="print JSON")
@click.pass_context
def verify(context: click.Context, entries: tuple[str, ...], as_json: bool) -> None:
    """Checks the chain, its sums, and what this machine has seen; exit code 1 if not.

    ENTRIES are names of entries, NUMBER-DIGEST, as statements and earlier verifications
    have them.
    """
    url, _ = context.obj
    # What is to be found is no reason not to look.
    context.obj = (url, True)
    with _opened(context, "verifying") as ledger:
        found = ledger.verify(*entries)
    if as_json:
        printing.print_json(
            {
                "is_intact": found.is_intact,
                "entries": found.entries,
                "head": found.head,
                "problems": list(found.problems),
                "witnessed": found.witnessed,
            }
        )
    else:
        for line in str(found).split("\n"):
            printing.say(line)
    if not found.is_intact:
        raise RuntimeError("The ledger was changed or damaged.")


@command.command("export", short_help="all entries for an auditor, CSV or JSON")
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True))
@click.option(
    "--format",
    "form",
    type=click.Choice(["csv", "json"]),
    help="by default that of the file's name, else csv",
)
@click.pass_context
def export(context: click.Context, file: str, form: str | None) -> None:
    """Writes all entries to FILE, "-" for the standard output.

    A table has one line for each entry; JSON has all that is in the ledger, with what its
    digests are computed from.
    """
    if form is None:
        form = "json" if file.lower().endswith(".json") else "csv"
    with _opened(context, "exporting") as ledger:
        from tf_bandmf.ledger import exports

        entries = ledger.history()
        is_csv = form == "csv"
        text = exports.to_csv(entries) if is_csv else exports.to_json(ledger, entries)
    _write(file, text, f"{len(entries)} entries")


@command.command("report", short_help="a page with pictures of the spending")
@click.argument("file", type=options.PATH)
@click.pass_context
def report(context: click.Context, file: str) -> None:
    """Writes a report to FILE (.html): budgets, spending over time, runs.

    Pictures need tf-bandmf[plot].
    """
    if os.path.splitext(file)[1].lower() not in (".html", ".htm"):
        raise BadArguments(f"FILE must end with .html, found {file!r}.")
    with _opened(context, "reporting") as ledger:
        from tf_bandmf.ledger.report import to_html

        text = to_html(ledger, _picture())
    _write(file, text, "the report")


def _picture() -> Any:
    """What draws spending over time as an SVG element; None without matplotlib."""
    import importlib.util

    if importlib.util.find_spec("matplotlib") is None:
        print('No pictures: pip install "tf-bandmf[plot]".', file=sys.stderr)
        return None
    import matplotlib
    from matplotlib import figure

    from tf_bandmf.plots.spending import budget_spending

    def draw(moments: Any, budget: Any) -> str:
        made = figure.Figure(figsize=(8.0, 3.2), layout="constrained")
        budget_spending(moments, budget, made.subplots())
        stream = io.StringIO()
        with matplotlib.rc_context(
            {"svg.fonttype": "none", "svg.hashsalt": "tf-bandmf"}
        ):
            made.savefig(stream, format="svg", metadata={"Date": None})
        text = stream.getvalue()
        return text[text.index("<svg") :]

    return draw


def _write(file: str, text: str, what: str) -> None:
    if file == "-":
        sys.stdout.write(text)
        return
    from tf_bandmf.files import whole

    with whole.replaced(file) as path, open(path, "w", encoding="utf-8") as out:
        out.write(text)
    print(f"Wrote {what} to {file}.")


for _each in command.commands.values():
    _each.context_class = Context
