"""Compares advised, hand-tuned and non-private training on real tasks.

    python benchmarks/advice/run.py --data DIR  # trains all missing runs
    python benchmarks/advice/run.py --data DIR --tasks diamonds --ways advised
    python benchmarks/advice/run.py --table  # prints the table of README.md

Every run is a row of `results/runs.csv`; finished runs are not repeated. There are four
methods of training: `plain` (Adam, three learning rates, no privacy), `advised` (all
settings from `tf_bandmf.advise`), and two methods that are tuned by hand, with weight
averaging: `momentum` (the advised plan, with learning rates around the advised one) and
`adam` (DP-SGD, Poisson batches of about n / 32, two learning rates). The share of a
task is the gain of the advised run over the trivial score, as a fraction of the gain of
the best private run.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
import os
import pathlib
import statistics
import time
from collections.abc import Iterator

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import tasks as tasks_lib

import tf_bandmf
import tf_bandmf.keras
from tf_bandmf.planning import learning_rates

RUNS = pathlib.Path(__file__).parent / "results" / "runs.csv"
COLUMNS = ("task", "epsilon", "way", "factor", "seed", "parameters", "steps")
COLUMNS += ("noise", "rate", "score", "seconds")
# The learning rates that are tried are these factors times a base rate. The base rate
# is the advised rate for `momentum`, 0.01 for `adam`, and 0.003 for `plain`.
FACTORS = {"momentum": (0.25, 0.5, 2.0, 4.0), "adam": (1.0, 3.0), "plain": (0.33, 1, 3)}
EPSILONS = (1.0, 8.0)


def compiled(
    task: tasks_lib.Task, optimizer: keras.optimizers.Optimizer
) -> keras.Model:
    model = task.build()
    if isinstance(optimizer, tf_bandmf.keras.PrivateOptimizer):
        tf_bandmf.keras.make_private(model)
    model.compile(optimizer, task.loss)
    return model


def run(
    task: tasks_lib.Task, epsilon: float, way: str, factor: float
) -> dict[str, object]:
    """Trains a model once; returns the run's row for the results file.

    Args:
      task: the data, the model, its loss and its metric.
      epsilon: the epsilon of a private run.
      way: the method of training: "plain", "advised", "momentum" or "adam".
      factor: the factor by which the base learning rate is multiplied.
    """
    if way == "plain":
        model = compiled(task, keras.optimizers.Adam(0.003 * factor))
        model.fit(task.x, task.y, batch_size=64, epochs=task.epochs, verbose=0)
        return {"score": task.score(model), "rate": 0.003 * factor}
    size = task.build().count_params()
    budget = {
        "epsilon": epsilon,
        "delta": 0.1 / len(task.y),
        "num_examples": len(task.y),
    }
    if way == "adam":
        clip, _ = learning_rates.clip_norm(task.loss)
        batch_size = 2 ** round(math.log2(len(task.y) / 32))
        plan = tf_bandmf.plan(
            "identity", sampling="poisson", batch_size=batch_size, epochs=task.epochs,
            l2_norm_clip=clip, **budget,
        )  # fmt: skip
        rate = 0.01 * factor
        arguments = plan.optimizer_arguments(size, "adam")
        inner = keras.optimizers.Adam(**{**arguments, "learning_rate": rate})
    else:
        advice = tf_bandmf.advise(
            num_parameters=size, epochs=task.epochs, loss=task.loss, **budget
        )
        plan, rate = advice.plan, advice.optimizer_arguments["learning_rate"] * factor
        inner = keras.optimizers.SGD(
            **{**advice.optimizer_arguments, "learning_rate": rate}
        )
    optimizer = tf_bandmf.keras.PrivateOptimizer(inner, plan, additional_run=True)
    model = compiled(task, optimizer)
    model.fit(plan.batches(task.x, task.y), epochs=task.epochs, verbose=0)
    momentum = plan.workload.momentum or 0.0
    noise = learning_rates.noise_in_models(
        plan.rmse(), plan.expected_batch_size or 1.0, momentum
    )
    return {
        "parameters": size,
        "steps": plan.num_steps,
        "noise": f"{noise:.4g}",
        "rate": f"{rate:.4g}",
        "score": task.score(model),
    }


def wanted(
    arguments: argparse.Namespace,
) -> Iterator[tuple[str, float, str, float, int]]:
    for name, way in itertools.product(arguments.tasks, arguments.ways):
        epsilons = [0.0] if way == "plain" else arguments.epsilons
        seeds = arguments.seeds if way == "advised" else arguments.hand_seeds
        factors = FACTORS.get(way, (1.0,))
        yield from itertools.product([name], epsilons, [way], factors, seeds)


def rows() -> list[dict[str, str]]:
    with RUNS.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def key(row: dict[str, str]) -> tuple[str, float, str, float, int]:
    return (
        row["task"], float(row["epsilon"]), row["way"], float(row["factor"]),
        int(row["seed"]),
    )  # fmt: skip


def train(arguments: argparse.Namespace) -> None:
    done = {key(row) for row in rows()}
    loaded: dict[str, tasks_lib.Task] = {}
    for one in wanted(arguments):
        if one in done:
            continue
        name, epsilon, way, factor, seed = one
        task = loaded.setdefault(name, tasks_lib.load(name, arguments.data))
        keras.utils.set_random_seed(seed)
        began = time.monotonic()
        row = {**dict(zip(COLUMNS, one)), **run(task, epsilon, way, factor)}
        row["score"] = f"{row['score']:.4f}"
        row["seconds"] = f"{time.monotonic() - began:.0f}"
        with RUNS.open("a", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writerow(row)
        print(row, flush=True)


def table() -> None:
    """Prints a table of the plain, best and advised scores of each task."""
    scores: dict[tuple[str, float, str], dict[float, list[float]]] = {}
    facts: dict[tuple[str, float], tuple[float, int, int]] = {}
    for row in rows():
        name, epsilon, way, factor, _ = key(row)
        of_way = scores.setdefault((name, epsilon, way), {})
        of_way.setdefault(factor, []).append(float(row["score"]))
        if way == "advised" and epsilon in EPSILONS:
            noise, size, steps = (row[one] for one in ("noise", "parameters", "steps"))
            facts[name, epsilon] = float(noise), int(size), int(steps)
    print(
        "| task | weights | ε | plain | best | advised | share | of plain | expected |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    shares, errors = [], []
    for (name, epsilon), (noise, size, steps) in facts.items():
        _, loss, _, trivial, *_ = tasks_lib._FACTS[name]
        clip, _ = learning_rates.clip_norm(loss)
        advised = scores[name, epsilon, "advised"][1.0]
        mean = statistics.mean(advised)
        spread = statistics.stdev(advised) if len(advised) > 1 else 0.0
        hand = {"advised": mean}
        for way in ("momentum", "adam"):
            for factor, several in scores.get((name, epsilon, way), {}).items():
                hand[f"{way} x {factor:g}"] = statistics.mean(several)
        best = max(hand, key=lambda one: hand[one])
        plain = max(
            v[0] for v in scores.get((name, 0.0, "plain"), {0: [math.nan]}).values()
        )
        share = (mean - trivial) / (hand[best] - trivial)
        of_plain = (mean - trivial) / (plain - trivial)
        expected = learning_rates.expected_share(noise, size, steps, clip)
        shares.append(share)
        errors.append(of_plain - expected)
        print(
            f"| {name} | {size:,} | {epsilon:g} | {plain:.3f} | {hand[best]:.3f} ({best}) "
            f"| {mean:.3f} ± {spread:.3f} | {share:.2f} | {of_plain:.2f} "
            f"| {expected:.2f} |"
        )
    print(
        f"\nMean share {statistics.mean(shares):.3f}, worst {min(shares):.3f}; share of "
        f"plain minus expected {min(errors):+.2f} to {max(errors):+.2f}."
    )


def budgets() -> None:
    """Prints each task's mean advised scores, in order of increasing epsilon.

    The column "deviation" is the standard deviation of the scores over seeds, at the
    epsilon where it is largest.
    """
    scores: dict[str, dict[float, list[float]]] = {}
    for row in rows():
        name, epsilon, way, _, _ = key(row)
        if way == "advised":
            of_task = scores.setdefault(name, {})
            of_task.setdefault(epsilon, []).append(float(row["score"]))
    print("| task | scores | deviation |")
    print("|---|---|---|")
    for name, of_task in scores.items():
        means = [f"{statistics.mean(of_task[one]):.3f}" for one in sorted(of_task)]
        several = [values for values in of_task.values() if len(values) > 1]
        spread = max(map(statistics.stdev, several))
        print(f"| {name} | {', '.join(means)} | {spread:.3f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--data", type=pathlib.Path, default=pathlib.Path("."))
    parser.add_argument("--tasks", nargs="+", default=tasks_lib.NAMES)
    ways = ("advised", "plain", "momentum", "adam")
    parser.add_argument("--ways", nargs="+", default=ways, choices=ways)
    parser.add_argument("--epsilons", nargs="+", type=float, default=EPSILONS)
    parser.add_argument("--seeds", nargs="+", type=int, default=(0, 1, 2))
    # The best score of many runs with one seed is partly due to chance, so repeat the
    # best setting with other seeds.
    parser.add_argument("--hand-seeds", nargs="+", type=int, default=(0,))
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    if arguments.table:
        table()
        budgets()
    else:
        train(arguments)


if __name__ == "__main__":
    main()
