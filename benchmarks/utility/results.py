"""The CSV files of results, and the setting that tuning chooses."""

from __future__ import annotations

import csv
import pathlib
from collections.abc import Sequence

import numpy as np

HERE = pathlib.Path(__file__).parent
# Of the training examples, the last ones: they choose the settings.
VALIDATION = 10_000

COLUMNS = (
    "task row mechanism sampling phase seed batch_size epochs steps epsilon delta kind "
    "noise_stddev l2_norm_clip learning_rate readout accuracy seconds"
).split()


class Results:
    """A CSV file of runs that grows and says what is done."""

    def __init__(
        self, path: pathlib.Path, columns: Sequence[str] = tuple(COLUMNS)
    ) -> None:
        self.path, self.columns = path, columns
        self.rows: list[dict[str, str]] = []
        if path.exists():
            with path.open(encoding="utf-8") as file:
                self.rows = list(csv.DictReader(file))

    def of(self, **wanted: object) -> list[dict[str, str]]:
        """The rows with these values."""
        return [
            row
            for row in self.rows
            if all(row[name] == str(value) for name, value in wanted.items())
        ]

    def append(self, rows: list[dict[str, object]]) -> None:
        is_new = not self.path.exists()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, self.columns, lineterminator="\n")
            if is_new:
                writer.writeheader()
            writer.writerows(rows)
        self.rows += [{k: str(v) for k, v in row.items()} for row in rows]


def best(tuning: list[dict[str, str]]) -> tuple[float, str]:
    """Learning rate and readout with the best mean accuracy over the tuning seeds."""
    settings = sorted({(row["learning_rate"], row["readout"]) for row in tuning})

    def mean(setting: tuple[str, str]) -> float:
        found = [
            float(row["accuracy"])
            for row in tuning
            if (row["learning_rate"], row["readout"]) == setting
        ]
        return float(np.mean(found))

    rate, readout = max(settings, key=mean)
    return float(rate), readout


def test_accuracy(results: Results, name: str) -> np.ndarray:
    """Of each seed, with the learning rate and the readout that tuning chose."""
    tuning = results.of(row=name, phase="validation")
    chosen = {}
    if tuning:
        chosen["learning_rate"], chosen["readout"] = best(tuning)
    found = results.of(row=name, phase="test", **chosen)
    return np.array([float(result["accuracy"]) for result in found])


def report(results: Results, name: str, rate: float, readout: str) -> None:
    """Prints a row's test accuracy."""
    accuracy = test_accuracy(results, name)
    line = f"{name}: learning rate {rate:g}, {readout}: {accuracy.mean():.2%}"
    if len(accuracy) > 1:
        line += f" ± {accuracy.std(ddof=1) / len(accuracy) ** 0.5:.2%}"
    print(line, flush=True)
