"""`tf-bandmf budget`: data sets, what was spent of their budgets, and by whom."""

from __future__ import annotations

import csv
import dataclasses
import functools
import io
import math
from typing import TYPE_CHECKING, Any

import click

from tf_bandmf.cli.signatures import command as command_of

if TYPE_CHECKING:
    from tf_bandmf.ledger.balances import Balance
    from tf_bandmf.ledger.chain import Entry

VARIABLE = "TF_BANDMF_LEDGER"
_SAID = ("mechanism", "about", "epsilon", "delta", "steps", "reason", "fingerprint")
# Programs take what begins so for a formula.
_FORMULAS = ("=", "+", "-", "@", "\t", "\r")


@click.group("budget", short_help="what was spent of the budgets of data sets")
@click.option("--ledger", envvar=VARIABLE, help=f"by default what {VARIABLE} says")
@click.pass_context
def command(context: click.Context, ledger: str | None) -> None:
    """What was spent of the budgets of data sets, by which runs, and what would fit.

    LEDGER is a file such as privacy.db, or postgresql://user@host/database.
    """
    context.obj = ledger


def _call(method: str, *positional: Any, **given: Any) -> Any:
    url = click.get_current_context().obj
    if not url:
        raise ValueError(f"--ledger is missing, and {VARIABLE} is not set.")
    from tf_bandmf.ledger.book import Ledger

    url = url if "://" in url else f"sqlite:///{url}"
    return getattr(Ledger(url, create=method == "add_dataset"), method)(
        *positional, **given
    )


def _record(balance: Balance) -> dict[str, Any]:
    """Plain finite values."""
    names = ("spent", "method", "runs", "risk")
    found = {name: getattr(balance, name) for name in names}
    found |= {"dataset": vars(balance.dataset), "budget": vars(balance.budget)}
    return {**found, "spent": balance.spent if math.isfinite(balance.spent) else None}


def _table(balances: list[Balance]) -> str:
    from tf_bandmf.planning.comparison import plain_table

    rows = [["data set", "budget", "spent", "part", "runs", "by"]]
    for one in balances:
        part = f"{one.part:.1%}" + (" (overspent)" if one.is_over else "")
        spent = [f"{one.spent:.4g}", part, str(one.runs), one.method]
        rows.append([one.dataset.name, str(one.budget), *spent])
    return plain_table("Spent or reserved:", rows[0], rows[1:])


def _lines(entries: list[Entry]) -> str:
    return "\n".join(
        f"{e.dataset} {e.name} {e.at} {e.who} {e.kind} {(e.run or '')[:12]} "
        + " ".join(f"{k}={e.body[k]}" for k in _SAID[:-1] if k in e.body)
        for e in entries
    )


def _verified(known: tuple[str, ...] = ()) -> str:
    problems = _call("verify", *known)
    if problems:
        raise RuntimeError(f"The ledger was changed or damaged: {' '.join(problems)}")
    return "Each entry is as it was written."


def _export(file: Any, **given: Any) -> None:
    """One line for each entry, with a line of headings; UTF-8, RFC 4180."""
    entries, stream = _call("history", **given), io.StringIO()
    names = ("dataset", "number", "at", "who", "kind", "run", "previous", "digest")
    rows: list[list[Any]] = [[*names, *_SAID]]
    for e in entries:
        rows.append([*(getattr(e, name) for name in names), *map(e.body.get, _SAID)])
    writer = csv.writer(stream)
    for row in rows:
        writer.writerow(f"'{v}" if str(v).startswith(_FORMULAS) else v for v in row)
    file.write(stream.getvalue())


_OF = "ledger.book:Ledger."
_FILE = (click.Argument(["file"], type=click.File("w", encoding="utf-8")),)
for _name, _method, _show, _plain in (
    ("add", "add_dataset", lambda one: _table([one]), _record),
    ("set", "set_budget", lambda one: _table([one]), _record),
    ("show", "balances", _table, lambda found: [*map(_record, found)]),
    (
        "fits",
        "fits",
        "A run without amplification fits up to epsilon = {:g}.".format,
        float,
    ),
    ("history", "history", _lines, lambda found: [*map(dataclasses.asdict, found)]),
):
    _function = functools.partial(_call, _method)
    command.add_command(
        command_of(_name, _function, _OF + _method, show=_show, record=_plain)
    )
command.add_command(command_of("verify", _verified, f"{_OF}verify"))
command.add_command(
    command_of("export", _export, f"{_OF}history", more=_FILE, show=lambda none: none)
)
