"""Draws the pictures of README and site; `make figures`.

    python docs/figures/make.py

Plans with closed forms, and what searches found once (`benchmarks/results`): no training,
seconds.
"""

from __future__ import annotations

import json
import math
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
REGIONS, AMPLIFIED = RESULTS / "regions.json", RESULTS / "amplified.json"
SETTING = {
    "epsilon": 4,
    "delta": 1e-5,
    "num_examples": 60_000,
    "batch_size": 512,
    "epochs": 10,
}


def noise() -> None:
    """What README shows: one coordinate of the model, and the error of each step."""
    plans = {
        "DP-SGD": tf_bandmf.plan("identity", **SETTING),
        "BISR, 32 bands": tf_bandmf.plan("bisr:32", **SETTING),
    }
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    plots.accumulated_noise(plans, axes=left)
    plots.per_step_error(plans, axes=right)
    figure.savefig(HERE / "noise.png", dpi=120)


def noising_matrices() -> None:
    """C^-1 of four mechanisms, as the guide to mechanisms shows."""
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
    """Where correlated noise has less error than DP-SGD, and where it has not."""
    found = json.loads(REGIONS.read_text(encoding="utf-8"))
    cells, n = found["cells"], found["steps"]
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
    # Of the last epsilon: without amplification the ratio is the same for every one.
    last = max(cell["epsilon"] for cell in cells)
    noise = gaussian.calibrate_noise_stddev(last, found["delta"])
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
    """A ratio of errors for every pair of epsilon and epochs, with a text in each.

    Args:
      cells: with "epsilon" and "epochs"; one for each pair.
      ratio: of a cell, about 1 and less.
      text: of a cell.
      axes: where to draw.
      least: the ratio of the darkest color.
      dark: below this ratio text is white.

    Returns:
      The image, for a color bar.

    Raises:
      ValueError: if a pair is missing.
    """
    epsilons = sorted({cell["epsilon"] for cell in cells})
    epochs = sorted({cell["epochs"] for cell in cells})
    if len(cells) != len(epsilons) * len(epochs):
        raise ValueError(
            f"cells must have every pair of {len(epsilons)} epsilons and {len(epochs)} "
            f"epochs, found {len(cells)} cells."
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


def amplified() -> None:
    """What each mechanism costs under balls in bins, by its number of bands."""
    names = {
        "amplified": "amplified",
        "toeplitz": "banded Toeplitz",
        "bifr": r"$\gamma$-BIFR",
        "bisr": "BISR",
        "bandinv": "BandInvMF",
        "bsr": "BSR",
        "lambda_cgd": "DP-λCGD",
    }
    rows = json.loads(AMPLIFIED.read_text(encoding="utf-8"))["rows"]
    found = {
        (row["family"], row["bands"], row["epsilon"]): row["rmse"]
        for row in rows
        if "rmse" in row
    }
    epsilons = sorted({epsilon for _, _, epsilon in found})
    sizes = sorted({bands for _, bands, _ in found if bands is not None})

    def relative(family: str, bands: int) -> list[float]:
        """To the least error of all panels; NaN where there is none."""
        values = []
        for epsilon in epsilons:
            least = min(value for key, value in found.items() if key[2] == epsilon)
            # Mechanisms without a number of bands are in every panel.
            without = found.get((family, None, epsilon), math.nan)
            values.append(found.get((family, bands, epsilon), without) / least)
        return values

    figure, panels = plt.subplots(
        1, len(sizes), figsize=(10, 4.6), sharey=True, layout="constrained"
    )
    for axes, bands in zip(panels, sizes):
        curves = {name: relative(family, bands) for family, name in names.items()}
        plots.error_curves(epsilons, curves, "ε", axes)
        independent = relative("identity", bands)
        (line,) = axes.plot(epsilons, independent, "-", color="0.65", label="DP-SGD")
        line.set(linewidth=3, zorder=1)
        axes.lines[0].set(linewidth=2.5, zorder=3)
        for family, dashes, name in (
            ("amplified_toeplitz", "--", "amplified, banded Toeplitz"),
            ("amplified_blt", ":", "amplified, BLT"),
        ):
            values, color = relative(family, bands), axes.lines[0].get_color()
            axes.plot(epsilons, values, dashes, color=color, linewidth=2, label=name)
        axes.get_legend().remove()
        axes.set_xticks(epsilons, [f"{value:g}" for value in epsilons])
        axes.set_ylim(0.97, 2.0)
        axes.set_ylabel("")
        axes.set_title(f"{bands} bands", fontsize="medium")
    panels[0].set_ylabel("RMSE, relative to the least at this ε")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=4, frameon=False)
    figure.savefig(HERE / "amplified.png", dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    noise()
    noising_matrices()
    regions()
    amplified()
