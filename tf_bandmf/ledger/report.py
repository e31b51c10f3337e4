"""A page for those who do not use a terminal: budgets, spending over time, runs."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tf_bandmf._version import __version__
from tf_bandmf.ledger.views import Moment, spending, uses

if TYPE_CHECKING:
    from tf_bandmf.ledger.book import Ledger
    from tf_bandmf.ledger.budgets import Budget
    from tf_bandmf.ledger.states import AccountState

_MOST_RUNS = 200
_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 "
    "1rem;color:#1a1a1a}h1,h2{line-height:1.2}table{border-collapse:collapse;width:100%;"
    "margin:1rem 0}th,td{text-align:left;padding:.3rem .6rem;border-bottom:1px solid #ddd}"
    "td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}svg{max-width:100%;height"
    ":auto}.bad{color:#b00020;font-weight:600}code{font-size:.9em}"
    ".scroll{overflow-x:auto}"
)
Picture = Callable[[Sequence[Moment], "Budget"], str]


def to_html(ledger: Ledger, picture: Picture | None = None) -> str:
    """The report, one file without anything from elsewhere.

    Args:
      ledger: to report on.
      picture: makes an SVG element of spending over time; None: without pictures.
    """
    found = ledger.verify()
    status = str(found)
    mark = "" if found.is_intact else ' class="bad"'
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        f"<title>Privacy budgets</title><style>{_STYLE}</style></head><body>",
        "<h1>Privacy budgets</h1>",
        f"<p{mark}>{_text(status)}</p>",
    ]
    for dataset in ledger.datasets():
        parts.append(f"<h2>{_text(dataset.name)}</h2>")
        version = f" Version: {dataset.version}." if dataset.version else ""
        parts.append(
            f"<p>Unit of privacy: {_text(dataset.unit)}. Adjacency: "
            f"{_text(dataset.adjacency)}.{_text(version)}</p>"
        )
        parts.append(_budgets(ledger.spent(dataset.name)))
        entries = ledger.history(dataset.name)
        for budget in dataset.budgets:
            moments = spending(entries, dataset.name, budget)
            if picture is not None and moments:
                title = f"Spending of the budget {budget.period}, over time"
                parts.append(
                    f'<figure role="img" aria-label="{_text(title)}">'
                    f"{picture(moments, budget)}</figure>"
                )
        rows = [
            [
                use.at[:10],
                use.entry.name,
                use.what,
                ", ".join(use.partitions) or "all",
                f"{use.epsilon:.4g}",
                f"{use.delta:.2g}",
                "" if use.steps is None else str(use.steps),
                use.state,
            ]
            for use in uses(entries)
        ]
        left_out = len(rows) - _MOST_RUNS
        if left_out > 0:
            parts.append(f"<p>The {left_out} oldest runs are not shown.</p>")
        headings = "since,entry,what,data,ε,δ,steps,state".split(",")
        parts.append(_table(headings, rows[-_MOST_RUNS:], numbers={4, 5, 6}))
    parts.append(
        f"<p>ε and δ of a run are its own; the budgets count their composition. "
        f"tf-bandmf {__version__}, ledger <code>{ledger.id}</code>.</p></body></html>"
    )
    return "\n".join(parts) + "\n"


def _budgets(states: Sequence[AccountState]) -> str:
    rows = [
        [
            state.budget.describe(),
            state.partition or "all",
            f"{state.spent.value:.4g}",
            f"{state.spent.part:.0%}",
            str(state.runs),
            state.spent.method,
        ]
        for state in states
    ]
    headings = ["budget", "data", "spent", "of it", "runs", "by"]
    return _table(headings, rows, numbers={2, 3, 4})


def _table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], numbers: set[int]
) -> str:
    def cells(tag: str, row: Sequence[str]) -> str:
        return "".join(
            f"<{tag}{' class=n' if i in numbers else ''}>{_text(cell)}</{tag}>"
            for i, cell in enumerate(row)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    head = f"<tr>{cells('th', headings)}</tr>"
    return (
        f'<div class="scroll"><table><thead>{head}</thead><tbody>{body}</tbody>'
        f"</table></div>"
    )


def _text(value: str) -> str:
    return html.escape(value, quote=True)
