"""Draws the pictures for the README and the documentation; run by `make figures`.

    python docs/figures/make.py

This takes seconds, and trains nothing: strategies have closed forms, or come from
earlier searches (`benchmarks/results`).
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib

matplotlib.use("Agg")
import numpy as np
from matplotlib import pyplot as plt

import tf_bandmf
from tf_bandmf import plots, strategies, workloads
from tf_bandmf.accounting import gaussian
from tf_bandmf.participation import FixedEpochOrder

HERE = pathlib.Path(__file__).resolve().parent
RESULTS = HERE.parents[1] / "benchmarks" / "results"
REGIONS = RESULTS / "regions.json"
SETTING = {
    "epsilon": 4,
    "delta": 1e-5,
    "num_examples": 60_000,
    "batch_size": 512,
    "epochs": 10,
}


def noise() -> None:
    """Draws the picture of the README: noise in one weight, and error after each step."""
    plans = {
        "DP-SGD": tf_bandmf.plan("identity", **SETTING),
        "BISR, 32 bands": tf_bandmf.plan("bisr:32", **SETTING),
    }
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    plots.accumulated_noise(plans, axes=left)
    plots.per_step_error(plans, axes=right)
    figure.savefig(HERE / "noise.png", dpi=120)


def noising_matrices() -> None:
    """Draws C^-1 of four mechanisms, for docs/mechanisms.md."""
    titles = {
        "identity": "DP-SGD",
        "lambda_cgd:0.9": "DP-λCGD",
        "bisr:8": "BISR, 8 bands",
        "bsr:8": "BSR, 8 bands",
    }
    figure, panels = plt.subplots(2, 2, figsize=(8.5, 7.5), layout="constrained")
    for axes, (mechanism, title) in zip(panels.flat, titles.items()):
        strategy = tf_bandmf.plan(mechanism, **SETTING).strategy
        plots.noising_matrix(strategy, rows=24, axes=axes)
        axes.set_title(title)
    figure.savefig(HERE / "noising_matrices.png", dpi=120)


def regions() -> None:
    """Draws the ratio of the error of correlated noise to the error of DP-SGD."""
    results = json.loads(REGIONS.read_text(encoding="utf-8"))
    cells, n = results["cells"], results["steps"]
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(10, 4.2), layout="constrained", width_ratios=[1.5, 1]
    )

    def ratio(cell: dict[str, float]) -> float:
        return cell["band_mf"] / cell["dp_sgd"]

    def text(cell: dict[str, float]) -> str:
        return "DP-SGD" if cell["bands"] == 1 else f"{ratio(cell):.2f}"

    image = over_epsilon_and_epochs(cells, ratio, text, left, least=0.4, dark=0.7)
    left.set_aspect("auto")
    left.set_title("secret random batches: best BandMF / DP-SGD", fontsize="medium")
    figure.colorbar(image, ax=left, extend="min", label="ratio of RMSE")
    # One epsilon suffices, because the ratio without amplification does not depend on
    # epsilon.
    last = max(cell["epsilon"] for cell in cells)
    noise = gaussian.calibrate_noise_stddev(last, results["delta"])
    independent = strategies.identity(n)
    fixed = []
    for cell in (cell for cell in cells if cell["epsilon"] == last):
        order = FixedEpochOrder(n // cell["epochs"], 1, cell["epochs"])
        error = independent.rmse(workloads.prefix_sum(n), order)
        fixed.append((cell["epochs"], cell["multi_epoch_mf"] / (noise * error)))
    right.plot(*zip(*sorted(fixed), strict=True), marker="o")
    right.set_xscale("log", base=2)
    epochs = sorted(epochs for epochs, _ in fixed)
    right.set_xticks(epochs, [f"{value:g}" for value in epochs])
    right.set_ylim(0.0, 1.05)
    right.axhline(1.0, color="black", linestyle="--", linewidth=1)
    right.grid(alpha=0.3)
    right.set_xlabel("epochs")
    right.set_ylabel("ratio of RMSE")
    right.set_title("fixed order, any ε: best / DP-SGD", fontsize="medium")
    figure.savefig(HERE / "regions.png", dpi=120)
    plt.close(figure)


def over_epsilon_and_epochs(
    cells: Sequence[Mapping[str, Any]],
    ratio: Callable[[Mapping[str, Any]], float],
    text: Callable[[Mapping[str, Any]], str],
    axes: Any,
    least: float,
    dark: float,
) -> Any:
    """Draws a heat map of error ratios over epsilon and epochs, with text in each cell.

    Args:
      cells: a dictionary for each pair of values of "epsilon" and "epochs".
      ratio: function that returns the ratio of a cell, about 1 or less.
      text: function that returns the text of a cell.
      axes: matplotlib axes to draw on.
      least: minimum of the color scale; this ratio gets the darkest color.
      dark: below this ratio, the text is white.

    Returns:
      The image, for a color bar.

    Raises:
      ValueError: if a pair is missing.
    """
    epsilons = sorted({cell["epsilon"] for cell in cells})
    epochs = sorted({cell["epochs"] for cell in cells})
    if len(cells) != len(epsilons) * len(epochs):
        raise ValueError(
            f"cells must have each pair of {len(epsilons)} epsilons and {len(epochs)} "
            f"numbers of epochs once, found {len(cells)} cells."
        )
    ratios = np.ones((len(epochs), len(epsilons)))
    for cell in cells:
        row, column = epochs.index(cell["epochs"]), epsilons.index(cell["epsilon"])
        ratios[row, column] = ratio(cell)
        axes.text(
            column,
            row,
            text(cell),
            ha="center",
            va="center",
            fontsize="small",
            color="white" if ratios[row, column] < dark else "black",
        )
    image = axes.imshow(ratios, cmap="cividis", vmin=least, vmax=1.0, origin="lower")
    axes.set_xticks(range(len(epsilons)), [f"{value:g}" for value in epsilons])
    axes.set_yticks(range(len(epochs)), [f"{value:g}" for value in epochs])
    axes.set_xlabel("ε")
    axes.set_ylabel("epochs")
    return image


if __name__ == "__main__":
    noise()
    noising_matrices()
    regions()
