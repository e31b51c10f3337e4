"""Draws the pictures of README and site; `make figures`.

    python docs/figures/make.py

Plans with closed forms: no training, seconds.
"""

from __future__ import annotations

import pathlib

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

import tf_bandmf
from tf_bandmf import plots

HERE = pathlib.Path(__file__).resolve().parent
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


if __name__ == "__main__":
    noise()
    noising_matrices()
