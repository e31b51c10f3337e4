"""Writes docs/benchmarks.md and its picture from the benchmarks' result files.

    python docs/make_benchmarks.py

For each row, the page shows the test accuracy of the setting (learning rate, readout)
with the best validation accuracy. A row without validation has one setting.
"""

from __future__ import annotations

import collections
import csv
import pathlib
import statistics
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "utility" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"
PICTURE = ROOT / "docs" / "figures" / "accuracy.png"
# Published results of Tramèr and Boneh (arXiv:2011.11660) for DP-SGD at epsilon = 3.
PUBLISHED = {"fashion-mnist": 0.897, "cifar-10": 0.67, "fashion-mnist-cnn": 0.86}
# Published result for each row, from arXiv:2505.12128, Table 2, at epsilon = 9.
PUBLISHED_ROWS = {
    "cifar-10-cnn": {
        "DP-SGD, no sampling": 0.390,
        "BISR, no sampling": 0.562,
        "BandInvMF, no sampling": 0.579,
        "BSR, no sampling": 0.452,
        "BandMF, no sampling": 0.458,
        "DP-SGD, balls in bins": 0.446,
        "BISR, balls in bins": 0.618,
        "BandInvMF, balls in bins": 0.574,
        "BSR, balls in bins": 0.498,
        "BandMF, balls in bins": 0.500,
    }
}
TITLES = {
    "fashion-mnist": "Fashion-MNIST, scattering, linear",
    "cifar-10": "CIFAR-10 (as JPEG), scattering, linear",
    "fashion-mnist-cnn": "Fashion-MNIST, network from pixels",
    "cifar-10-cnn": "CIFAR-10 (as JPEG), network from pixels, ε = 9",
    "cifar-10-cnn-epsilon-1": "CIFAR-10 (as JPEG), network from pixels, ε = 1",
    "cifar-10-cnn-epsilon-0.5": "CIFAR-10 (as JPEG), network from pixels, ε = 0.5",
}
# The names of samplings at the end of row names.
SAMPLINGS = ("no sampling", "balls in bins", "Poisson")
HEAD = """\
# Accuracy at a budget

<!-- Written by docs/make_benchmarks.py from benchmarks/utility/results: do not edit. -->

The tables give the test accuracy, mean ± standard error over 3 seeds, measured on a 2-core x86
virtual machine without an accelerator. In the tuned rows, all learning rates were tuned in the same
way. Settings and findings are in `benchmarks/utility/README.md`. Times of noise, planning and
training steps, compared with other libraries, are in `benchmarks/README.md`.

| mechanism | batches | guarantee | Fashion-MNIST, ε = 3, linear | CIFAR-10, ε = 3, linear | CIFAR-10, ε = 9, network |
|---|---|---|---|---|---|
| DP-SGD, published (Tramèr and Boneh, 2021) | accounted for as Poisson | | 89.7 % | 67.0 %, original images | |
| BISR, published (arXiv:2505.12128, its best) | balls in bins | | | | 61.8 % ± 0.3 %, original images |
| DP-SGD, published settings | secret Poisson samples | exact | 89.86 % ± 0.06 % | 64.92 % ± 0.20 % | |
| DP-SGD | secret Poisson samples | exact | 90.12 % ± 0.11 % | 66.95 % ± 0.06 % | 59.9 % ± 0.6 % |
| BISR | secret, balls in bins | estimate | 90.15 % ± 0.06 % | 66.94 % ± 0.05 % | 70.1 % ± 0.2 % |
| DP-SGD | any fixed order | exact | 88.69 % ± 0.12 % | 63.87 % ± 0.13 % | 51.1 % ± 0.2 % |
| **BISR** | any fixed order | exact | **89.99 % ± 0.03 %** | **66.61 % ± 0.02 %** | **68.5 % ± 0.2 %** |
| **BISR, 32 bands, as advised** | any fixed order | exact | | | **69.6 % ± 0.1 %** |

The Fashion-MNIST column is for a linear model on scattering features, 40 epochs of batches of 8192
(`python benchmarks/utility/run.py --data DIR --cache CACHE`, half an hour). "CIFAR-10, linear" is
for 60 epochs of batches of 8334, with scattering features of luma and chroma (in the published
settings, of red, green and blue). "CIFAR-10, network" is for a small convolutional network on pixels,
10 epochs of batches of 512 (`benchmarks/utility/cnn.py --task cifar-10-cnn`). Our CIFAR-10 results
are for images re-encoded as JPEG.

- **In a fixed order**, for which batches need not be secret, correlated noise gains 1.3, 2.7 and 17.4
  points over DP-SGD in the three columns of the table (and 4.5 with a network on Fashion-MNIST). This
  is nearly as much as DP-SGD gains from secret samples, or more.
- **With sampled batches**, correlated noise gains nothing if a batch is a large fraction of the data,
  as in the first two columns, and 10.2 points if a batch is 1 % of the data, as in the third ([the
  regions](mechanisms.md#where-correlated-noise-does-not-win)).
- **For a language model with adapters**, see the table of
  [perplexities](models.md#a-language-model-that-learned).

[`tf-bandmf compare` and `tf-bandmf plan`](api/command-line.md) show before training which mechanism
is best in your case.

![Test accuracy of each row with its standard error, beside the published
one](figures/accuracy.png)

*Test accuracy of the rows of the tables below, ± standard error over seeds. Dashed line: published
for DP-SGD; diamonds: published for the row's mechanism; blue: correlated noise.*

The tables below have all rows. In each row, the setting with the best validation accuracy was chosen;
"validation" is the mean validation accuracy of this setting.
"""  # noqa: E501


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")
    picture(results())
    for path in (PAGE, PICTURE):
        print(path.relative_to(ROOT))


def results() -> dict[str, list[dict[str, str]]]:
    """Reads the results of all runs, by task."""
    tasks = {}
    for path in sorted(RESULTS.glob("*.csv")):
        with open(path, newline="", encoding="utf-8") as file:
            tasks[path.stem] = list(csv.DictReader(file))
    return tasks


def page() -> str:
    """Returns the text of the page."""
    sections = [section(task, runs) for task, runs in results().items()]
    return "\n".join([HEAD, *sections])


def picture(tasks: dict[str, list[dict[str, str]]]) -> None:
    """Draws the picture of the page: a panel for each task, with all tested rows."""
    tested = {}
    for task in TITLES:
        rows = collections.defaultdict(list)
        for run in tasks.get(task, []):
            rows[run["row"]].append(run)
        accuracies = {name: results_of(mine)[1] for name, mine in rows.items()}
        if any(accuracies.values()):
            tested[task] = {
                name: values for name, values in accuracies.items() if values
            }
    counts = [len(rows) for rows in tested.values()]
    figure, panels = plt.subplots(
        len(tested),
        1,
        figsize=(7.5, 0.28 * sum(counts) + 0.9 * len(counts)),
        gridspec_kw={"height_ratios": counts},
        layout="constrained",
        squeeze=False,
    )
    for axes, (task, rows) in zip(panels.flat, tested.items(), strict=True):
        draw(axes, task, tasks[task], rows)
    panels[0, 0].legend(loc="upper left", fontsize="small")
    panels[-1, 0].set_xlabel("test accuracy, %")
    figure.savefig(PICTURE, dpi=120)
    plt.close(figure)


def without_sampling(name: str) -> str:
    """Returns a row's name without the sampling at its end, if there is one."""
    rest, _, last = name.rpartition(", ")
    return rest if last in SAMPLINGS else name


def draw(
    axes: Any, task: str, runs: list[dict[str, str]], tested: dict[str, list[float]]
) -> None:
    """Draws the accuracies of one task, with the best row at the top."""
    samplings = {run["row"]: run["sampling"] for run in runs}
    mechanisms = {run["row"]: run["mechanism"] for run in runs}
    names = sorted(tested, key=lambda name: statistics.mean(tested[name]))
    for place, name in enumerate(names):
        values = [100 * value for value in tested[name]]
        error = statistics.stdev(values) / len(values) ** 0.5 if values[1:] else None
        correlated = mechanisms[name] != "identity"
        axes.errorbar(
            statistics.mean(values),
            place,
            xerr=error,
            fmt="o" if correlated else "s",
            color="tab:blue" if correlated else "tab:gray",
            capsize=3,
        )
    labels = {name: "DP-SGD" if name == "published" else name for name in names}
    notes = {
        name: samplings[name].replace("-", " ").replace("poisson", "Poisson")
        for name in names
    }
    notes["published"] = "published settings, Poisson"
    axes.set_yticks(
        range(len(names)),
        [f"{without_sampling(labels[name])}, {notes[name]}" for name in names],
    )
    axes.set_ylim(-0.6, len(names) - 0.4)
    if task in PUBLISHED:
        axes.axvline(
            100 * PUBLISHED[task],
            color="black",
            linestyle="--",
            linewidth=1,
            label="published, DP-SGD",
        )
    published = PUBLISHED_ROWS.get(task, {})
    if missing := set(published) - set(names):
        raise ValueError(
            f"{task} has no rows for the published results {sorted(missing)}."
        )
    beside = [(100 * published[n], names.index(n)) for n in names if n in published]
    if beside:
        axes.plot(
            *zip(*beside),
            "D",
            color="black",
            fillstyle="none",
            linestyle="none",
            label="published",
        )
        axes.legend(loc="upper left", fontsize="small")
    axes.grid(axis="x", alpha=0.3)
    axes.set_title(TITLES[task], fontsize="medium")


def section(task: str, runs: list[dict[str, str]]) -> str:
    """Returns the page's section about a task, with the table of its rows."""
    epsilons = sorted({run["epsilon"] for run in runs}, key=float)
    lines = [
        f"## {TITLES[task]}",
        "",
        f"The total budget is ε = {', '.join(epsilons)}, for "
        f"{runs[0]['epochs']} epochs with batches of {runs[0]['batch_size']}.",
        "",
        "| row | mechanism | sampling | guarantee | validation | test | seeds |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(run["row"] for run in runs):
        mine = [run for run in runs if run["row"] == name]
        validated, tested = results_of(mine)
        one = mine[0]
        cells = [
            name,
            f"`{one['mechanism']}`",
            one["sampling"],
            one["kind"],
            text(validated, False),
            text(tested, True),
            str(len(tested)) if tested else "",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def results_of(runs: list[dict[str, str]]) -> tuple[list[float], list[float]]:
    """Returns the validation and the test accuracies of a row's chosen setting."""
    validation, test = by_setting(runs, "validation"), by_setting(runs, "test")
    tried = validation or test
    chosen = max(tried, key=lambda setting: statistics.mean(tried[setting]))
    return validation.get(chosen, []), test.get(chosen, [])


def by_setting(
    runs: list[dict[str, str]], phase: str
) -> dict[tuple[str, str], list[float]]:
    """Groups the accuracies of the seeds by learning rate and readout."""
    accuracies = collections.defaultdict(list)
    for run in runs:
        if run["phase"] == phase:
            setting = (run["learning_rate"], run["readout"])
            accuracies[setting].append(float(run["accuracy"]))
    return dict(accuracies)


def text(values: list[float], with_error: bool) -> str:
    """Formats the mean of fractions as a percentage, with or without its standard error."""
    if not values:
        return "not run"
    mean = f"{statistics.mean(values):.2%}"
    if not with_error or len(values) < 2:
        return mean
    return f"{mean} ± {statistics.stdev(values) / len(values) ** 0.5:.2%}"


if __name__ == "__main__":
    main()
