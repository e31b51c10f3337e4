"""Trains a linear model on scattering features with several mechanisms.

    python benchmarks/utility/run.py --data DIR --cache CACHE

For each row, the program chooses the learning rate and the readout (the last weights,
or the mean weights of the final steps) that are best on 10,000 held-out training
images, and then measures the test accuracy with several seeds. Results are appended to
`results/`; finished runs are not repeated.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import time
from collections.abc import Iterator
from typing import Any

import features
import linear
import numpy as np
from results import VALIDATION, Results, Run, measure, parser_of, record

import tf_bandmf

# The part of the budget that is spent on the private mean of the features. Training
# gets the rest, by basic composition.
MEAN_EPSILON, MEAN_DELTA = 0.1, 1e-6


@dataclasses.dataclass(frozen=True)
class Task:
    """A data set, with the published number of epochs and the published batch size."""

    name: str = "fashion-mnist"
    batch_size: int = 8192
    epochs: int = 40
    epsilon: float = 3.0
    delta: float = 1e-5
    momentum: float = 0.9
    # Number of principal components of the features, for faster tuning.
    tuning_dimensions: int = 400
    # Seeds of the noise in the tuning runs.
    tuning_seeds: tuple[int, ...] = (100, 101)


@dataclasses.dataclass(frozen=True)
class Row:
    """A mechanism and its settings.

    The learning rates are for gradients that are divided by the clip norm.

    Attributes:
      centred: True if the private mean is subtracted from the features.
    """

    name: str
    mechanism: str
    sampling: str
    centred: bool = True
    l2_norm_clip: float = 4.0
    learning_rates: tuple[float, ...] = (0.5, 1.0, 2.0)
    readouts: tuple[str, ...] = tuple(linear.READOUTS)


# The published settings are a clip norm of 0.1 and a learning rate of 16.
PUBLISHED = {"centred": False, "l2_norm_clip": 0.1, "readouts": ("last",)}
# DP-SGD without amplification by sampling has the most noise, so it needs smaller
# learning rates.
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
    """A task, its data, and the training runs on them."""

    def __init__(self, data: pathlib.Path, cache: pathlib.Path) -> None:
        self.task, self.cache = Task(), cache
        self.x, self.y, self.num_train = features.load(self.task.name, data, cache)

    def plan(self, row: Row, num_examples: int) -> tf_bandmf.Plan:
        """Makes a plan whose batch size is proportional to the number of examples."""
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
        """Measures held-out accuracy for each learning rate and readout."""
        dimensions, end = self.task.tuning_dimensions, self.num_train - VALIDATION
        path = self.cache / f"{self.task.name}-{dimensions}.npy"
        x = features.leading_components(self.x, VALIDATION, dimensions, path)
        x, centre = x[: self.num_train], x[:end].mean(axis=0) * row.centred
        run = {"phase": "validation", "seed": seed}
        runs = [{**run, "learning_rate": rate} for rate in row.learning_rates]
        return self._train(row, runs, x, centre, end)

    def test(self, row: Row, rate: float, seeds: list[int]) -> list[dict[str, object]]:
        """Measures test accuracy after training on all training images."""
        x, end = self.x, self.num_train
        centre = np.zeros(x.shape[1])
        if row.centred:
            centre = features.private_mean(x[:end], MEAN_EPSILON, MEAN_DELTA, seeds[0])
        run = {"phase": "test", "learning_rate": rate}
        return self._train(row, [{**run, "seed": s} for s in seeds], x, centre, end)

    def _train(
        self,
        row: Row,
        runs: list[dict[str, Any]],
        x: np.ndarray,
        centre: np.ndarray,
        end: int,
    ) -> list[dict[str, object]]:
        """Trains models in parallel on the examples before `end`; tests on the rest."""
        start = time.process_time()
        task, y, plan = self.task, self.y[: len(x)], self.plan(row, end)
        rates = np.array([run["learning_rate"] for run in runs], float)
        models = linear.LinearModels(
            rates, row.l2_norm_clip, task.momentum, x.shape[1], int(self.y.max()) + 1
        )
        trained, others = (linear.Features(p, centre) for p in (x[:end], x[end:]))
        linear.train(plan, models, trained, y[:end], runs[0]["seed"])
        accuracy = models.accuracy(others, y[end:])
        return [
            record(task, row, plan, accuracy[name][i], start, readout=name, **run)
            for i, run in enumerate(runs)
            for name in row.readouts
        ]

    def tuning(self, row: Row) -> Iterator[Run]:
        for seed in self.task.tuning_seeds:
            done = {"phase": "validation", "seed": seed}
            yield done, functools.partial(self.tune, row, seed)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--cache", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    experiment = Experiment(arguments.data, arguments.cache)
    seeds = list(range(arguments.seeds))

    def tests(row: Row, rate: float) -> list[Run]:
        done = {"phase": "test", "learning_rate": rate}
        return [(done, functools.partial(experiment.test, row, rate, seeds))]

    results = Results(arguments.out / f"{experiment.task.name}.csv")
    rows = [row for row in ROWS if row.name in (arguments.rows or [row.name])]
    measure(rows, results, experiment.tuning, tests)


if __name__ == "__main__":
    main()
