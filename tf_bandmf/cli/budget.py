"""The command `tf-bandmf budget`, which shows and changes the budgets of data sets."""

from __future__ import annotations

import csv
import dataclasses
import functools
import math
from typing import Any

import click

from tf_bandmf.cli.signatures import command as command_of

VARIABLE = "TF_BANDMF_LEDGER"
_SAID = ("mechanism", "about", "epsilon", "delta", "steps", "reason", "fingerprint")
_ENTRY = ("dataset", "number", "at", "who", "kind", "run", "previous", "digest")
_FORMULAS = [*"=+-@\t\r"]


@click.group("budget", short_help="show and change the budgets of data sets")
@click.option("--ledger", envvar=VARIABLE, help=f"by default the value of {VARIABLE}")
@click.pass_context
def command(context: click.Context, ledger: str | None) -> None:
    """Shows and changes the budgets of data sets, and shows who spent how much.

    LEDGER is a file such as privacy.db, or postgresql://user@host/database.
    """
    context.obj = ledger


def _call(method: str, cited: tuple[str, ...] = (), **given: Any) -> Any:
    url = click.get_current_context().obj
    if not url:
        raise ValueError(f"Pass --ledger, or set the environment variable {VARIABLE}.")
    from tf_bandmf.ledger.book import Ledger

    url = url if "://" in url else f"sqlite:///{url}"
    ledger = Ledger(url, create=method == "add_dataset")
    return getattr(ledger, method)(*cited, **given)


def _record(balance: Any) -> dict[str, Any]:
    """Converts a balance to a dictionary for JSON; an infinite `spent` becomes None."""
    names = ("spent", "method", "runs", "risk")
    record = {name: getattr(balance, name) for name in names}
    record |= {"dataset": vars(balance.dataset), "budget": vars(balance.budget)}
    return {**record, "spent": balance.spent if math.isfinite(balance.spent) else None}


def _table(balances: list[Any]) -> str:
    from tf_bandmf.accounting.guarantee import fill

    rows = [["data set", "budget", "spent", "part", "runs", "by"]]
    for one in balances:
        part = f"{one.part:.1%}" + (" (overspent)" if one.is_over else "")
        spent = [fill("{:.4g up}", one.spent), part, str(one.runs), one.method]
        rows.append([one.dataset.name, str(one.budget), *spent])
    return _printed("Spent or reserved:", rows)


def _rows(entries: list[Any], *names: str) -> list[list[str]]:
    """Returns the rows of a table: the headings, then one row for each ledger entry."""
    said = [[getattr(e, n, e.body.get(n)) for n in names] for e in entries]
    return [[*names], *(["" if v is None else str(v) for v in row] for row in said)]


def _printed(title: str, rows: list[list[str]]) -> str:
    from tf_bandmf.planning.compare import plain_table

    return plain_table(title, rows)


def _lines(entries: list[Any]) -> str:
    names = ("dataset", "name", "at", "who", "kind", "epsilon", "steps")
    return _printed("Entries:", _rows(entries, *names, "mechanism", "about", "reason"))


def _verified(problems: list[str]) -> str:
    if problems:
        raise RuntimeError(f"The ledger was changed or damaged: {' '.join(problems)}")
    return "All entries are unchanged."


def _export(file: Any, **given: Any) -> None:
    """Writes the ledger's entries to a CSV file (UTF-8, RFC 4180) with a header line."""
    for row in _rows(_call("history", **given), *_ENTRY, *_SAID):
        # Put a quote before values that spreadsheet programs would treat as formulas.
        csv.writer(file).writerow(f"'{v}" if v[:1] in _FORMULAS else v for v in row)


_OF = "ledger.book:Ledger."
_FILE = (click.Argument(["file"], type=click.File("w", encoding="utf-8")),)
for _name, _method, _show, _plain in (
    ("add", "add_dataset", lambda one: _table([one]), _record),
    ("set", "set_budget", lambda one: _table([one]), _record),
    ("show", "balances", _table, lambda all: [*map(_record, all)]),
    ("fits", "fits", "A run fits if its epsilon is at most {:g}.".format, float),
    ("history", "history", _lines, lambda all: [*map(dataclasses.asdict, all)]),
    ("verify", "verify", _verified, None),
):
    _function = functools.partial(_call, _method)
    command.add_command(
        command_of(_name, _function, _OF + _method, show=_show, record=_plain)
    )
command.add_command(
    command_of("export", _export, f"{_OF}history", more=_FILE, show=lambda none: none)
)
