"""Trains a linear model on scattering features with several mechanisms.

    python benchmarks/utility/run.py --data DIR --cache CACHE [--task fashion-mnist]

For each row of the task: the learning rate and the readout (last weights or a mean of
late ones) that are best on 10,000 held-out training images, then the test accuracy of
several seeds. Results are appended to `results/`; what is there is not done again, and a
run that was stopped goes on (`seconds` are those of the process after that).
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import pathlib
import time
from collections.abc import Sequence

import features
import linear
import normalization
import numpy as np
from results import HERE, VALIDATION, Results, best, report

import tf_bandmf

# Of the budget, for the private mean; training has the rest (basic composition).
MEAN_EPSILON, MEAN_DELTA = 0.1, 1e-6
# Of the noise of a release of means and variances.
RELEASE_SEED = 0


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
    # Runs of tuning that share their batches, by the seeds of their noise.
    tuning_seeds: tuple[tuple[int, ...], ...] = ((100,), (101,))


@dataclasses.dataclass(frozen=True)
class Row:
    """A mechanism and how it is used; `learning_rates` are divided by the clip norm.

    Attributes:
      centred: features less their private mean.
      release: normalize channels by a private release of their means and variances,
        which is accounted for together with training; instead of `centred`.
      colors: in which color images are scattered, one of `datasets.COLORS`.
      mirrored: of the features, what an image shares with its mirror image.
    """

    name: str
    mechanism: str
    sampling: str
    centred: bool = True
    l2_norm_clip: float = 4.0
    learning_rates: tuple[float, ...] = (0.5, 1.0, 2.0)
    readouts: tuple[str, ...] = tuple(linear.READOUTS)
    release: normalization.Release | None = None
    colors: str = "rgb"
    mirrored: bool = False


TASKS = {
    "fashion-mnist": Task(
        "fashion-mnist", batch_size=8192, epochs=40, tuning_dimensions=400
    ),
    # 6 steps an epoch, as published with batches of 8192 and none that is not full.
    "cifar-10": Task(
        "cifar-10",
        batch_size=8334,
        epochs=60,
        tuning_dimensions=1000,
        tuning_seeds=((100, 101, 102),),
    ),
}
# The published settings: a clip norm of 0.1, learning rates of 16 and 4 with it.
PUBLISHED = {"centred": False, "l2_norm_clip": 0.1, "readouts": ("last",)}
# Noise as published; clip norms, there the median norms of the data, are constants.
PUBLISHED_RELEASE = normalization.Release(1.0, 1.5, 8.0)
RELEASE = normalization.Release(13.0, 17.0, 24.0, "logarithm")
LUMA_CHROMA = {
    "centred": False,
    "l2_norm_clip": 10.0,
    "learning_rates": (0.1, 0.2, 0.4),
    "release": RELEASE,
    "mirrored": True,
    "colors": "luma-chroma",
}
# DP-SGD without sampling has the most noise and wants smaller learning rates.
ROWS = {
    "fashion-mnist": (
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
    ),
    "cifar-10": (
        Row(
            "published",
            "identity",
            "poisson",
            learning_rates=(0.4,),
            release=PUBLISHED_RELEASE,
            **PUBLISHED,
        ),
        Row("DP-SGD, luma and chroma", "identity", "poisson", **LUMA_CHROMA),
        Row("BISR, luma and chroma", "bisr:4", "balls-in-bins", **LUMA_CHROMA),
        Row("BISR, luma and chroma, no sampling", "bisr", "fixed-order", **LUMA_CHROMA),
        dataclasses.replace(
            Row(
                "DP-SGD, luma and chroma, no sampling",
                "identity",
                "fixed-order",
                **LUMA_CHROMA,
            ),
            learning_rates=(0.025, 0.05, 0.1, 0.2),
        ),
    ),
}


class Experiment:
    """A task on its data, which are read when they are first wanted."""

    def __init__(self, task: Task, data: pathlib.Path, cache: pathlib.Path) -> None:
        self.task, self.data, self.cache = task, data, cache

    def plan(self, row: Row, num_examples: int) -> tf_bandmf.Plan:
        """Calibrated once and kept; the batch is the same share of the examples."""
        task = self.task
        share = task.batch_size / self.num_train
        setting = {
            "mechanism": row.mechanism,
            "num_examples": num_examples,
            "batch_size": round(share * num_examples),
            "epochs": task.epochs,
            "sampling": row.sampling,
            "test_seed": 0,
        }
        epsilon, delta = task.epsilon, task.delta
        if row.centred:
            epsilon, delta = epsilon - MEAN_EPSILON, delta - MEAN_DELTA
        name = f"{task.name}-{row.mechanism}-{row.sampling}-{num_examples}-{epsilon:g}"
        if row.release is not None:
            name += f"-beside-{row.release.noise_multiplier:g}"
        path = self.cache / f"plan-{name.replace(':', '_')}.json"
        if path.exists():
            return tf_bandmf.Plan.load(str(path))
        if row.release is None:
            plan = tf_bandmf.plan(epsilon=epsilon, delta=delta, **setting)
        else:
            plan = normalization.plan_beside(
                row.release.together, epsilon=epsilon, delta=delta, **setting
            )
        plan.save(str(path))
        return plan

    def read(self, row: Row) -> np.ndarray:
        """The row's features, [examples, features]; labels come with them."""
        if row.release is None:
            read = functools.partial(features.load, self.task.name)
        else:
            read = functools.partial(
                features.load_normalized,
                self.task.name,
                release=row.release,
                seed=RELEASE_SEED,
                colors=row.colors,
                mirrored=row.mirrored,
            )
        found, self.y, self.num_train = read(directory=self.data, cache=self.cache)
        return found

    def tune(self, row: Row, seeds: Sequence[int]) -> list[dict[str, object]]:
        """Accuracy on held-out training images for each learning rate and readout."""
        x, dimensions = self.read(row), self.task.tuning_dimensions
        end = self.num_train - VALIDATION
        if dimensions is not None:
            kind = "" if row.release is None else f"-{row.colors}-{row.release.units}"
            kind += "-mirror" if row.mirrored else ""
            path = self.cache / f"{self.task.name}{kind}-{dimensions}.npy"
            x = features.leading_components(x, VALIDATION, dimensions, path)
        centre = x[:end].mean(axis=0) * row.centred
        held_out = slice(end, self.num_train)
        return self._train(
            row,
            "validation",
            np.tile(row.learning_rates, len(seeds)),
            np.repeat(seeds, len(row.learning_rates)).tolist(),
            linear.Features(x[:end], centre),
            linear.Features(x[held_out], centre),
            slice(0, end),
            held_out,
        )

    def test(self, row: Row, rate: float, seeds: list[int]) -> list[dict[str, object]]:
        """Test accuracy after training on all training images."""
        x = self.read(row)
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
        settings = "-".join(f"{rate:g}" for rate in rates)
        name = f"run-{task.name}-{row.name}-{phase}-{settings}-{seeds}.npz"
        linear.train(plan, models, x, y[train], seeds[0], self.cache / name)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--cache", type=pathlib.Path, required=True)
    parser.add_argument("--task", choices=TASKS, default="fashion-mnist")
    parser.add_argument("--rows", nargs="+", help="by default all")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=pathlib.Path, default=HERE / "results")
    arguments = parser.parse_args()

    task = TASKS[arguments.task]
    results = Results(arguments.out / f"{task.name}.csv")
    experiment = Experiment(task, arguments.data, arguments.cache)
    rows = ROWS[task.name]
    wanted = arguments.rows or [row.name for row in rows]
    for row in (row for row in rows if row.name in wanted):
        rate, readout = row.learning_rates[0], row.readouts[0]
        if len(row.learning_rates) > 1:
            for seeds in task.tuning_seeds:
                tuned = {"row": row.name, "phase": "validation", "seed": seeds[0]}
                missing = tuple(
                    rate
                    for rate in row.learning_rates
                    if not results.of(learning_rate=rate, **tuned)
                )
                if missing:
                    untried = dataclasses.replace(row, learning_rates=missing)
                    results.append(experiment.tune(untried, seeds))
            rate, readout = best(results.of(row=row.name, phase="validation"))
        if not results.of(row=row.name, phase="test", learning_rate=rate):
            results.append(experiment.test(row, rate, list(range(arguments.seeds))))
        report(results, row.name, rate, readout)


if __name__ == "__main__":
    main()
