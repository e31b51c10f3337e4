"""Trains a linear model on scattering features with several mechanisms.

    python benchmarks/utility/run.py --data DIR --cache CACHE

For each row: the learning rate and the readout (last weights or a mean of
late ones) that are best on 10,000 held-out training images, then the test accuracy of
several seeds. Results are appended to `results/`; what is there is not done again.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import time

import features
import linear
import numpy as np
from results import HERE, VALIDATION, Results, best, record, report

import tf_bandmf

# Of the budget, for the private mean; training has the rest (basic composition).
MEAN_EPSILON, MEAN_DELTA = 0.1, 1e-6


@dataclasses.dataclass(frozen=True)
class Task:
    """The data set, and how long it is trained on, as published."""

    name: str = "fashion-mnist"
    batch_size: int = 8192
    epochs: int = 40
    epsilon: float = 3.0
    delta: float = 1e-5
    momentum: float = 0.9
    # Of the features, for tuning in less time.
    tuning_dimensions: int = 400
    # Of the noise of each run of tuning.
    tuning_seeds: tuple[int, ...] = (100, 101)


@dataclasses.dataclass(frozen=True)
class Row:
    """A mechanism and how it is used; `learning_rates` are divided by the clip norm.

    Attributes:
      centred: features less their private mean.
    """

    name: str
    mechanism: str
    sampling: str
    centred: bool = True
    l2_norm_clip: float = 4.0
    learning_rates: tuple[float, ...] = (0.5, 1.0, 2.0)
    readouts: tuple[str, ...] = tuple(linear.READOUTS)


# The published settings: a clip norm of 0.1, and a learning rate of 16 with it.
PUBLISHED = {"centred": False, "l2_norm_clip": 0.1, "readouts": ("last",)}
# DP-SGD without sampling has the most noise and wants smaller learning rates.
ROWS = (
    Row("published", "identity", "poisson", learning_rates=(1.6,), **PUBLISHED),
    Row("DP-SGD", "identity", "poisson"),
    Row("BISR", "bisr:4", "balls-in-bins"),
    Row("BISR, no sampling", "bisr", "fixed-order"),
    Row(
        "DP-SGD, no sampling",
        "identity",
        "fixed-order",
        learning_rates=(0.125, 0.25, 0.5, 1.0, 2.0),
    ),
)


class Experiment:
    """The task on its data."""

    def __init__(self, data: pathlib.Path, cache: pathlib.Path) -> None:
        self.task, self.cache = Task(), cache
        self.x, self.y, self.num_train = features.load(self.task.name, data, cache)

    def plan(self, row: Row, num_examples: int) -> tf_bandmf.Plan:
        """The batch is the same share of the examples."""
        task = self.task
        epsilon, delta = task.epsilon, task.delta
        if row.centred:
            epsilon, delta = epsilon - MEAN_EPSILON, delta - MEAN_DELTA
        return tf_bandmf.plan(
            row.mechanism,
            epsilon=epsilon,
            delta=delta,
            num_examples=num_examples,
            batch_size=round(task.batch_size * num_examples / self.num_train),
            epochs=task.epochs,
            sampling=row.sampling,
        )

    def tune(self, row: Row, seed: int) -> list[dict[str, object]]:
        """Accuracy on held-out training images for each learning rate and readout."""
        dimensions, end = self.task.tuning_dimensions, self.num_train - VALIDATION
        path = self.cache / f"{self.task.name}-{dimensions}.npy"
        x = features.leading_components(self.x, VALIDATION, dimensions, path)
        centre = x[:end].mean(axis=0) * row.centred
        held_out = slice(end, self.num_train)
        return self._train(
            row,
            "validation",
            np.array(row.learning_rates),
            [seed] * len(row.learning_rates),
            linear.Features(x[:end], centre),
            linear.Features(x[held_out], centre),
            slice(0, end),
            held_out,
        )

    def test(self, row: Row, rate: float, seeds: list[int]) -> list[dict[str, object]]:
        """Test accuracy after training on all training images."""
        x = self.x
        train, test = slice(0, self.num_train), slice(self.num_train, None)
        centre = np.zeros(x.shape[1])
        if row.centred:
            centre = features.private_mean(x[train], MEAN_EPSILON, MEAN_DELTA, seeds[0])
        return self._train(
            row,
            "test",
            np.full(len(seeds), rate),
            seeds,
            linear.Features(x[train], centre),
            linear.Features(x[test], centre),
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
            record(
                task,
                row,
                plan,
                accuracy[readout][model],
                start,
                phase=phase,
                seed=seed,
                learning_rate=float(rate),
                readout=readout,
            )
            for model, (rate, seed) in enumerate(zip(rates, seeds))
            for readout in row.readouts
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--cache", type=pathlib.Path, required=True)
    parser.add_argument("--rows", nargs="+", help="by default all")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=pathlib.Path, default=HERE / "results")
    arguments = parser.parse_args()

    experiment = Experiment(arguments.data, arguments.cache)
    results = Results(arguments.out / f"{experiment.task.name}.csv")
    wanted = arguments.rows or [row.name for row in ROWS]
    for row in (row for row in ROWS if row.name in wanted):
        rate, readout = row.learning_rates[0], row.readouts[0]
        if len(row.learning_rates) > 1:
            for seed in experiment.task.tuning_seeds:
                tuned = {"row": row.name, "phase": "validation", "seed": seed}
                if not results.of(**tuned):
                    results.append(experiment.tune(row, seed))
            rate, readout = best(results.of(row=row.name, phase="validation"))
        if not results.of(row=row.name, phase="test", learning_rate=rate):
            results.append(experiment.test(row, rate, list(range(arguments.seeds))))
        report(results, row.name, rate, readout)


if __name__ == "__main__":
    main()
