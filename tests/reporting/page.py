"""Makes docs/what-was-attacked.md from the files that `pytest --junitxml=FILE` writes.

    python tests/reporting/page.py docs/what-was-attacked.md FILE...

The text above the line `MARK` of the page is written by hand, and is not changed.
"""

import json
import pathlib
import sys
from xml.etree import ElementTree

from marks import AREAS

MARK = "<!-- Below this line: written by `make audit`. -->"


def cases_of(path):
    """Returns the tests in a junit file that are marked `attack`, sorted by name."""
    cases = []
    for test in ElementTree.parse(path).iter("testcase"):
        said = {
            entry.get("name"): entry.get("value") for entry in test.iter("property")
        }
        if "attack" not in said:
            continue
        ended = {event.tag: event.get("message") for event in test}
        outcome = "BROKEN" if {"failure", "error"} & set(ended) else "held"
        if "skipped" in ended:
            outcome = f"not run: {ended['skipped']}"
        case = {**json.loads(said["attack"]), "name": test.get("name")}
        cases.append({**case, "figure": said.get("figure", ""), "outcome": outcome})
    return sorted(cases, key=lambda case: (case["test"], case["name"]))


def rows(cases):
    """Groups cases by title: each group is one row of a table."""
    groups = {}
    for case in cases:
        groups.setdefault((case["area"], case["title"]), []).append(case)
    return groups


def cell(texts):
    """Returns a table cell that contains each distinct text once, in order."""
    distinct = [text for text in dict.fromkeys(texts) if text]
    return "; ".join(distinct).replace("|", "\\|").replace("\n", " ")


def outcome(cases):
    """Returns "held" if all cases held, and otherwise all distinct outcomes."""
    others = [case["outcome"] for case in cases if case["outcome"] != "held"]
    held = len(cases) - len(others)
    count = f" ({len(cases)} cases)" if len(cases) > 1 else ""
    if not others:
        return f"held{count}"
    return cell([f"held ({held} of {len(cases)} cases)" if held else "", *others])


def page(cases):
    """Returns the tables of attacks as Markdown."""
    grouped = rows(cases)
    total = len(grouped)
    held = sum(all(c["outcome"] == "held" for c in group) for group in grouped.values())
    lines = [f"{held} of {total} attacks were held off, in {len(cases)} cases.", ""]
    for area, heading in AREAS.items():
        titles = sorted(title for of, title in grouped if of == area)
        if not titles:
            continue
        lines += [f"## {heading}", "", "| attack | what it tried | found | outcome |"]
        lines += ["|---|---|---|---|"]
        for title in titles:
            group = grouped[area, title]
            numbers = sorted({n for case in group for n in case["invariants"]})
            shown = f" (invariant {', '.join(map(str, numbers))})" if numbers else ""
            tests = cell(f"`{case['test']}`" for case in group)
            tried = cell(case["tried"] for case in group)
            figures = cell(case["figure"] for case in group)
            lines.append(
                f"| {title}{shown}<br>{tests} | {tried} | {figures} | {outcome(group)} |"
            )
        lines.append("")
    return "\n".join(lines)


def main(target, *sources):
    target = pathlib.Path(target)
    cases = [case for source in sources for case in cases_of(source)]
    before, mark, _ = target.read_text(encoding="utf-8").partition(MARK)
    if not mark:
        raise SystemExit(f"{target} lacks the line {MARK!r}. Add it above the tables.")
    target.write_text(f"{before}{MARK}\n\n{page(cases)}", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
