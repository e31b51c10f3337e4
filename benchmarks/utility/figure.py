"""Draws the test accuracies of `results/fashion-mnist.csv`.

python benchmarks/utility/figure.py [--task fashion-mnist]
"""

from __future__ import annotations

import argparse
import pathlib

import matplotlib
import numpy as np
import run

matplotlib.use("Agg")
from matplotlib import pyplot as plt

# Tramèr and Boneh (2021), Table 1, epsilon = 3: scattering features, linear model.
PUBLISHED = {"fashion-mnist": 0.897, "cifar10": 0.670}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", choices=run.TASKS, default="fashion-mnist")
    parser.add_argument("--results", type=pathlib.Path, default=run.HERE / "results")
    arguments = parser.parse_args()
    results = run.Results(arguments.results / f"{arguments.task}.csv")
    names = [row.name for row in run.ROWS if results.of(row=row.name, phase="test")]
    figure, axes = plt.subplots(
        figsize=(8, 0.6 * len(names) + 1.4), layout="constrained"
    )
    for position, name in enumerate(reversed(names)):
        accuracy = run.test_accuracy(results, name)
        error = accuracy.std(ddof=1) / len(accuracy) ** 0.5
        first = results.of(row=name, phase="test")[0]
        axes.errorbar(
            accuracy.mean(), position, xerr=error, fmt="o", capsize=4, color="C0"
        )
        axes.plot(accuracy, np.full(len(accuracy), position), "|", color="0.6")
        label = f"{accuracy.mean():.2%}   {first['sampling']}"
        axes.annotate(
            label,
            (accuracy.mean(), position),
            (0, 8),
            textcoords="offset points",
            ha="center",
            fontsize=8,
        )
    published = PUBLISHED[arguments.task]
    axes.axvline(
        published, color="C3", linestyle="--", label=f"published, {published:.1%}"
    )
    axes.set_yticks(range(len(names)), list(reversed(names)))
    axes.set_ylim(-0.6, len(names) - 0.2)
    axes.xaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1.0, decimals=1))
    axes.set_xlabel("test accuracy at ε = 3, δ = 10⁻⁵, mean ± standard error")
    axes.legend(loc="lower left")
    axes.grid(alpha=0.3, axis="x")
    figure.savefig(arguments.results / f"{arguments.task}.png", dpi=120)


if __name__ == "__main__":
    main()
