"""Writes accuracy curves to a CSV file, a Markdown table and a plot."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Curve:
    """The test results of one mechanism during training.

    Attributes:
      title: the mechanism's title.
      noise: RMSE of the noise in each model weight.
      rounds: for each test of the model, the number of rounds completed before it.
      accuracy, loss: results of each test: accuracy in [0, 1], loss in nats per
        character.
    """

    title: str
    noise: float
    rounds: list[int]
    accuracy: list[float]
    loss: list[float]


def write_csv(path: str, curves: Sequence[Curve]) -> None:
    """Writes the test results to a CSV file, one row per mechanism and test."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["mechanism", "round", "accuracy", "loss"])
        for curve in curves:
            for row in zip(curve.rounds, curve.accuracy, curve.loss):
                writer.writerow([curve.title, row[0], f"{row[1]:.4f}", f"{row[2]:.4f}"])


def markdown(curves: Sequence[Curve]) -> str:
    """Returns a Markdown table with one row per mechanism.

    A row has the noise, the accuracy at up to four times during training, and the final
    loss.
    """
    rounds = curves[0].rounds
    count = min(4, len(rounds))
    chosen = [(len(rounds) - 1) * (i + 1) // count for i in range(count)]
    heads = [f"after {rounds[i]}" for i in chosen]
    lines = [
        f"| mechanism | RMSE of the noise | {' | '.join(heads)} | loss |",
        f"|---{'|---:' * (count + 2)}|",
    ]
    for curve in curves:
        cells = [f"{curve.accuracy[i]:.1%}" for i in chosen]
        lines.append(
            f"| {curve.title} | {curve.noise:.4f} | {' | '.join(cells)} "
            f"| {curve.loss[-1]:.3f} |"
        )
    return "\n".join(lines) + "\n"


def save_picture(path: str, curves: Sequence[Curve]) -> bool:
    """Plots the curves to a file; returns False if matplotlib is not installed."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for curve in curves:
        axes.plot(curve.rounds, curve.accuracy, label=curve.title)
    axes.set(xlabel="round", ylabel="accuracy of the next character")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return True
