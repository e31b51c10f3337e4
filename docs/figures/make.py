"""Draws the pictures of README and site; `make figures`.

    python docs/figures/make.py

Plans with closed forms, and what `benchmarks/regions.py` found: no training, seconds.
"""

from __future__ import annotations

import json
import pathlib

import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot as plt

import tf_bandmf
from tf_bandmf import plots, strategies, workloads
from tf_bandmf.accounting import gaussian
from tf_bandmf.participation import FixedEpochOrder

HERE = pathlib.Path(__file__).resolve().parent
REGIONS = HERE.parents[1] / "benchmarks" / "results" / "regions.json"
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
    epsilons = sorted({cell["epsilon"] for cell in cells})
    epochs = sorted({cell["epochs"] for cell in cells})
    ratio = np.ones((len(epochs), len(epsilons)))
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(10, 4.2), layout="constrained", width_ratios=[1.5, 1]
    )
    for cell in cells:
        row, column = epochs.index(cell["epochs"]), epsilons.index(cell["epsilon"])
        ratio[row, column] = cell["band_mf"] / cell["dp_sgd"]
        left.text(
            column,
            row,
            "DP-SGD" if cell["bands"] == 1 else f"{ratio[row, column]:.2f}",
            ha="center",
            va="center",
            color="white" if ratio[row, column] < 0.7 else "black",
        )
    image = left.imshow(
        ratio, cmap="cividis", vmin=0.4, vmax=1.0, origin="lower", aspect="auto"
    )
    left.set_xticks(range(len(epsilons)), [f"{value:g}" for value in epsilons])
    left.set_yticks(range(len(epochs)), [f"{value:g}" for value in epochs])
    left.set_xlabel("ε")
    left.set_ylabel("epochs")
    left.set_title("secret random batches: best BandMF / DP-SGD", fontsize="medium")
    figure.colorbar(image, ax=left, extend="min", label="ratio of RMSE")
    # Of the last epsilon: without amplification the ratio is the same for every one.
    noise = gaussian.calibrate_noise_stddev(epsilons[-1], found["delta"])
    independent = strategies.identity(n)
    fixed = []
    for cell in (cell for cell in cells if cell["epsilon"] == epsilons[-1]):
        order = FixedEpochOrder(n // cell["epochs"], 1, cell["epochs"])
        error = independent.rmse(workloads.prefix_sum(n), order)
        fixed.append((cell["epochs"], cell["multi_epoch_mf"] / (noise * error)))
    right.plot(*zip(*sorted(fixed), strict=True), marker="o")
    right.set_xscale("log", base=2)
    right.set_xticks(epochs, [f"{value:g}" for value in epochs])
    right.set_ylim(0.0, 1.05)
    right.axhline(1.0, color="black", linestyle="--", linewidth=1)
    right.grid(alpha=0.3)
    right.set_xlabel("epochs")
    right.set_ylabel("ratio of RMSE")
    right.set_title("fixed order, any ε: best / DP-SGD", fontsize="medium")
    figure.savefig(HERE / "regions.png", dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    noise()
    noising_matrices()
    regions()
