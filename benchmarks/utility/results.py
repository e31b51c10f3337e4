"""Stores results in CSV files, and chooses the best settings of tuning runs."""

from __future__ import annotations

import argparse
import csv
import pathlib
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

import tf_bandmf

HERE = pathlib.Path(__file__).parent
# The number of examples at the end of the training set that are held out to choose
# settings.
VALIDATION = 10_000

COLUMNS = (
    "task row mechanism sampling phase seed batch_size epochs steps epsilon delta kind "
    "noise_stddev l2_norm_clip learning_rate readout accuracy seconds"
).split()


def record(
    task: Any, row: Any, plan: tf_bandmf.Plan, accuracy: float, start: float, **run: Any
) -> dict[str, object]:
    """Returns a run's row for the CSV file, including the CPU time since `start`.

    Args:
      task: the trained task.
      row: the row (mechanism and settings) of the task.
      plan: the run's plan.
      accuracy: accuracy of the run's weights.
      start: `time.process_time()` at the beginning of the run.
      run: `phase`, `seed`, `learning_rate` and `readout` of the run.
    """
    actual = {name: getattr(row, name) for name in ("mechanism", "sampling")}
    for name in ("batch_size", "epochs", "epsilon", "delta"):
        actual[name] = getattr(task, name)
    return {
        **{"task": task.name, "row": row.name, **actual, **run},
        "steps": plan.num_steps,
        "kind": plan.kind,
        "noise_stddev": f"{plan.noise_stddev / plan.l2_norm_clip:.4f}",
        "l2_norm_clip": row.l2_norm_clip,
        "accuracy": f"{accuracy:.4f}",
        "seconds": f"{time.process_time() - start:.0f}",
    }


class Results:
    """A CSV file of finished runs, to which new runs are appended."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self.rows: list[dict[str, str]] = []
        if path.exists():
            with path.open(encoding="utf-8") as file:
                self.rows = list(csv.DictReader(file))

    def of(self, **wanted: object) -> list[dict[str, str]]:
        """Returns all runs that have the given values in the given columns."""
        return [
            row
            for row in self.rows
            if all(row[name] == str(value) for name, value in wanted.items())
        ]

    def append(self, rows: list[dict[str, object]]) -> None:
        is_new = not self.path.exists()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            if is_new:
                writer.writeheader()
            writer.writerows(rows)
        self.rows += [{k: str(v) for k, v in row.items()} for row in rows]


def best(tuning: list[dict[str, str]]) -> tuple[float, str]:
    """Returns the learning rate and readout with the best mean accuracy over seeds."""
    settings = sorted({(row["learning_rate"], row["readout"]) for row in tuning})

    def mean(setting: tuple[str, str]) -> float:
        actual = [
            float(row["accuracy"])
            for row in tuning
            if (row["learning_rate"], row["readout"]) == setting
        ]
        return float(np.mean(actual))

    rate, readout = max(settings, key=mean)
    return float(rate), readout


def report(results: Results, name: str, rate: float, readout: str) -> None:
    """Prints a row's mean test accuracy for a learning rate and a readout."""
    tested = {"row": name, "phase": "test", "learning_rate": rate, "readout": readout}
    accuracy = np.array([float(run["accuracy"]) for run in results.of(**tested)])
    line = f"{name}: learning rate {rate:g}, {readout}: {accuracy.mean():.2%}"
    if len(accuracy) > 1:
        line += f" ± {accuracy.std(ddof=1) / len(accuracy) ** 0.5:.2%}"
    print(line, flush=True)


# The columns that identify a run in the file, and the function that trains the run.
Run = tuple[dict[str, Any], Callable[[], list[dict[str, object]]]]


def measure(
    rows: Iterable[Any],
    results: Results,
    tuning: Callable[[Any], Iterable[Run]],
    tests: Callable[[Any, float], Iterable[Run]],
) -> None:
    """Trains all runs of the rows that have no results yet, and reports each row.

    Args:
      rows: rows of the task.
      results: results of finished runs, to which new results are added.
      tuning: function that returns the tuning runs of a row with several learning
        rates.
      tests: function that returns the test runs of a row at a given learning rate.
    """

    def complete(row: Any, runs: Iterable[Run]) -> None:
        for done, run in runs:
            if not results.of(row=row.name, **done):
                results.append(run())

    for row in rows:
        rate, readout = row.learning_rates[0], row.readouts[0]
        if len(row.learning_rates) > 1:
            complete(row, tuning(row))
            rate, readout = best(results.of(row=row.name, phase="validation"))
        complete(row, tests(row, rate))
        report(results, row.name, rate, readout)


def parser_of(text: str) -> argparse.ArgumentParser:
    """Returns the argument parser that `run.py` and `cnn.py` share."""
    parser = argparse.ArgumentParser(description=text)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--rows", nargs="+", help="by default all")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=pathlib.Path, default=HERE / "results")
    return parser
