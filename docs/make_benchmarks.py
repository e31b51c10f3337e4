"""Writes docs/benchmarks.md from what the benchmarks put into their `results` folders.

    python docs/make_benchmarks.py

A setting (learning rate, readout) is chosen by the validation accuracy of its row, and
the test accuracy is that setting's; a row without validation has one setting.
"""

from __future__ import annotations

import collections
import csv
import pathlib
import statistics

ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "utility" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"
HEAD = """\
# Benchmarks

<!-- Written by docs/make_benchmarks.py from benchmarks/utility/results: do not edit. -->

Accuracy at a budget. Mean ± standard error over seeds; validation is the mean at the
setting that it chose. What was run, and how, stands in `benchmarks/utility/README.md`;
times of noise, planning and training steps, beside other libraries, in
`benchmarks/README.md`, each with its script and machine.
"""


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE.relative_to(ROOT))


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for path in sorted(RESULTS.glob("*.csv")):
        with open(path, newline="", encoding="utf-8") as file:
            parts.append(section(path.stem, list(csv.DictReader(file))))
    return "\n".join(parts)


def section(task: str, runs: list[dict[str, str]]) -> str:
    """One table for a task."""
    epsilons = sorted({run["epsilon"] for run in runs}, key=float)
    lines = [
        f"## {task}",
        "",
        f"ε = {', '.join(epsilons)} in all, "
        f"{runs[0]['epochs']} epochs, batches of {runs[0]['batch_size']}.",
        "",
        "| row | mechanism | sampling | guarantee | validation | test | seeds |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(run["row"] for run in runs):
        mine = [run for run in runs if run["row"] == name]
        validation, test = by_setting(mine, "validation"), by_setting(mine, "test")
        chosen = max(
            validation or test, key=lambda s: statistics.mean((validation or test)[s])
        )
        tested = test.get(chosen, [])
        one = mine[0]
        cells = [
            name,
            f"`{one['mechanism']}`",
            one["sampling"],
            one["kind"],
            text(validation.get(chosen, []), False),
            text(tested, True),
            str(len(tested)) if tested else "",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def by_setting(
    runs: list[dict[str, str]], phase: str
) -> dict[tuple[str, str], list[float]]:
    """Accuracies of the seeds, by learning rate and readout."""
    found = collections.defaultdict(list)
    for run in runs:
        if run["phase"] == phase:
            setting = (run["learning_rate"], run["readout"])
            found[setting].append(float(run["accuracy"]))
    return dict(found)


def text(values: list[float], with_error: bool) -> str:
    """A percentage."""
    if not values:
        return "not run"
    mean = f"{statistics.mean(values):.2%}"
    if not with_error or len(values) < 2:
        return mean
    return f"{mean} ± {statistics.stdev(values) / len(values) ** 0.5:.2%}"


if __name__ == "__main__":
    main()
