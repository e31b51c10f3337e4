"""Trains a linear model on scattering features with several mechanisms.

    python benchmarks/utility/run.py --data DIR --cache CACHE [--task fashion-mnist]

For each row of the task: the learning rate and the readout (last weights or a mean of
late ones) that are best on 10,000 held-out training images, then the test accuracy of
several seeds. Results are appended to `results/`; what is there is not done again.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import pathlib
import time

import features
import linear
import numpy as np

import tf_bandmf

HERE = pathlib.Path(__file__).parent
VALIDATION = 10_000
# Of the budget, for the private mean; training has the rest (basic composition).
MEAN_EPSILON, MEAN_DELTA = 0.1, 1e-6
TUNING_SEEDS = (100, 101)


@dataclasses.dataclass(frozen=True)
class Task:
    """A data set and how long it is trained on, as published."""

    name: str
    batch_size: int
    epochs: int
    epsilon: float = 3.0
    delta: float = 1e-5
    momentum: float = 0.9
    # Of the features, for tuning in less time; None for all.
    tuning_dimensions: int | None = None
    # Of all rows' learning rates.
    rate_scale: float = 1.0


@dataclasses.dataclass(frozen=True)
class Row:
    """A mechanism and how it is used; `learning_rates` are divided by the clip norm.

    Without `centred` the model is the published one.

    Attributes:
      tasks: names of the tasks that have it.
    """

    name: str
    mechanism: str
    sampling: str
    centred: bool = True
    l2_norm_clip: float = 4.0
    learning_rates: tuple[float, ...] = (0.5, 1.0, 2.0)
    readouts: tuple[str, ...] = tuple(linear.READOUTS)
    tasks: tuple[str, ...] = ("fashion-mnist", "cifar-10")


TASKS = {
    "fashion-mnist": Task(
        "fashion-mnist", batch_size=8192, epochs=40, tuning_dimensions=400
    ),
    "cifar-10": Task("cifar-10", batch_size=8192, epochs=60, rate_scale=0.25),
}
# The published settings: a clip norm of 0.1, a learning rate of 16 / 10 per unit of it.
PUBLISHED = {
    "centred": False,
    "l2_norm_clip": 0.1,
    "readouts": ("last",),
    "tasks": ("fashion-mnist",),
}
ROWS = (
    Row("published", "identity", "poisson", learning_rates=(1.6,), **PUBLISHED),
    Row("DP-SGD", "identity", "poisson"),
    Row("BISR", "bisr:4", "balls-in-bins"),
    Row("DP-λCGD", "lambda_cgd", "balls-in-bins"),
    Row("BISR, no sampling", "bisr", "fixed-order"),
    Row("DP-SGD, no sampling", "identity", "fixed-order"),
    Row("BandMF", "banded:2", "cyclic-poisson"),
)

COLUMNS = (
    "task row mechanism sampling phase seed batch_size epochs steps epsilon delta kind "
    "noise_stddev l2_norm_clip learning_rate readout accuracy seconds"
).split()


class Results:
    """A CSV file of runs that grows and says what is done."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
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
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            if is_new:
                writer.writeheader()
            writer.writerows(rows)
        self.rows += [{k: str(v) for k, v in row.items()} for row in rows]


class Experiment:
    """A task on its data, which are read when they are first wanted."""

    def __init__(self, task: Task, data: pathlib.Path, cache: pathlib.Path) -> None:
        self.task, self.cache = task, cache
        self.x, self.y, self.num_train = features.load(task.name, data, cache)

    def plan(self, row: Row, num_examples: int) -> tf_bandmf.Plan:
        """Calibrated once and kept; the batch is the same share of the examples."""
        task = self.task
        share = task.batch_size / self.num_train
        epsilon, delta = task.epsilon, task.delta
        if row.centred:
            epsilon, delta = epsilon - MEAN_EPSILON, delta - MEAN_DELTA
        name = f"{task.name}-{row.mechanism}-{row.sampling}-{num_examples}-{epsilon:g}"
        path = self.cache / f"plan-{name.replace(':', '_')}.json"
        if path.exists():
            return tf_bandmf.Plan.load(str(path))
        plan = tf_bandmf.plan(
            row.mechanism,
            epsilon=epsilon,
            delta=delta,
            num_examples=num_examples,
            batch_size=round(share * num_examples),
            epochs=task.epochs,
            sampling=row.sampling,
            test_seed=0,
        )
        plan.save(str(path))
        return plan

    def tune(self, row: Row, seed: int) -> list[dict[str, object]]:
        """Accuracy on held-out training images for each learning rate and readout."""
        end = self.num_train - VALIDATION
        x, dimensions = self.x, self.task.tuning_dimensions
        if dimensions is not None:
            path = self.cache / f"{self.task.name}-{dimensions}.npy"
            x = features.leading_components(x, VALIDATION, dimensions, path)
        centre = x[:end].mean(axis=0) * row.centred
        held_out = slice(end, self.num_train)
        return self._train(
            row,
            "validation",
            self.task.rate_scale * np.asarray(row.learning_rates),
            [seed] * len(row.learning_rates),
            linear.Features(x[:end], centre),
            linear.Features(x[held_out], centre),
            slice(0, end),
            held_out,
        )

    def test(self, row: Row, rate: float, seeds: list[int]) -> list[dict[str, object]]:
        """Test accuracy after training on all training images."""
        train, test = slice(0, self.num_train), slice(self.num_train, None)
        centre = np.zeros(self.x.shape[1])
        if row.centred:
            centre = features.private_mean(
                self.x[train], MEAN_EPSILON, MEAN_DELTA, seeds[0]
            )
        return self._train(
            row,
            "test",
            np.full(len(seeds), rate),
            seeds,
            linear.Features(self.x[train], centre),
            linear.Features(self.x[test], centre),
            train,
            test,
        )

    def _train(
        self,
        row: Row,
        phase: str,
        rates: np.ndarray,
        seeds: list[int],
        x: linear.Features,
        x_held_out: linear.Features,
        train: slice,
        held_out: slice,
    ) -> list[dict[str, object]]:
        start = time.process_time()
        y, task = self.y, self.task
        plan = self.plan(row, len(x.values))
        models = linear.LinearModels(
            rates, row.l2_norm_clip, task.momentum, x.values.shape[1], int(y.max()) + 1
        )
        linear.train(plan, models, x, y[train], seeds[0])
        accuracy = models.accuracy(x_held_out, y[held_out])
        return [
            {
                "task": task.name,
                "row": row.name,
                "mechanism": row.mechanism,
                "sampling": row.sampling,
                "phase": phase,
                "seed": seed,
                "batch_size": task.batch_size,
                "epochs": task.epochs,
                "steps": plan.num_steps,
                "epsilon": task.epsilon,
                "delta": task.delta,
                "kind": plan.kind,
                "noise_stddev": f"{plan.noise_stddev:.4f}",
                "l2_norm_clip": row.l2_norm_clip,
                "learning_rate": float(rate),
                "readout": readout,
                "accuracy": f"{accuracy[readout][model]:.4f}",
                "seconds": f"{time.process_time() - start:.0f}",
            }
            for model, (rate, seed) in enumerate(zip(rates, seeds))
            for readout in row.readouts
        ]


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
    """Of each seed, with the readout that tuning chose."""
    tuning = results.of(row=name, phase="validation")
    chosen = {"readout": best(tuning)[1]} if tuning else {}
    found = results.of(row=name, phase="test", **chosen)
    return np.array([float(result["accuracy"]) for result in found])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--cache", type=pathlib.Path, required=True)
    parser.add_argument("--task", choices=TASKS, default="fashion-mnist")
    parser.add_argument("--rows", nargs="+", default=[row.name for row in ROWS])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=pathlib.Path, default=HERE / "results")
    arguments = parser.parse_args()

    task = TASKS[arguments.task]
    results = Results(arguments.out / f"{task.name}.csv")
    experiment = Experiment(task, arguments.data, arguments.cache)
    wanted = [row for row in ROWS if row.name in arguments.rows]
    for row in (row for row in wanted if task.name in row.tasks):
        rate = task.rate_scale * row.learning_rates[0]
        readout = row.readouts[0]
        if len(row.learning_rates) > 1:
            for seed in TUNING_SEEDS:
                if not results.of(row=row.name, phase="validation", seed=seed):
                    results.append(experiment.tune(row, seed))
            rate, readout = best(results.of(row=row.name, phase="validation"))
        if not results.of(row=row.name, phase="test"):
            results.append(experiment.test(row, rate, list(range(arguments.seeds))))
        accuracy = test_accuracy(results, row.name)
        print(
            f"{row.name}: learning rate {rate:g}, {readout}: {accuracy.mean():.2%} ± "
            f"{accuracy.std(ddof=1) / len(accuracy) ** 0.5:.2%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
