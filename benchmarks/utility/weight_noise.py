"""The noise that weights hold at each learning rate of cnn.py, and what came of it.

    python benchmarks/utility/weight_noise.py --cache CACHE

Reads the held-out accuracies in `results/`; trains nothing. Plans are calibrated where
`CACHE` has none, which takes minutes. Writes `results/advised/weight_noise.csv`: noise in
units of 1 / sqrt(fan-in), fan-in as `tf_bandmf.advise` has it. It is where the rule for
learning rates and the averaged weights of `advise` were measured.
"""

from __future__ import annotations

import argparse
import math
import pathlib

import cnn
import numpy as np
from advised import OUT, write
from cnn_tasks import READOUTS, TASKS, Row, Task
from results import HERE, VALIDATION, Results

import tf_bandmf
from tf_bandmf import workloads
from tf_bandmf.analysis import error

NUM_TRAIN = {"fashion-mnist": 60_000, "cifar-10": 50_000}


def noise_per_rate(task: Task, plan: tf_bandmf.Plan) -> float:
    """Of a weight, in units of 1 / sqrt(fan-in), for a learning rate of 1."""
    kernels = [w.shape for w in task.build_model().trainable_weights if w.ndim >= 2]
    fan_in = sum(math.prod(shape[:-1]) for shape in kernels)
    workload = workloads.momentum_sgd(plan.num_steps, task.momentum, task.decay)
    per_step = plan.strategy.per_step_squared_error(workload)
    rmse = error.root_mean_squared_error(per_step) * plan.noise_stddev
    return rmse / plan.l2_norm_clip / plan.expected_batch_size * math.sqrt(fan_in)


def of_row(task: Task, row: Row, cache: pathlib.Path) -> list[dict[str, object]]:
    """One dictionary for each learning rate, in their order."""
    results = Results(HERE / "results" / f"{task.name}.csv")
    num_train = NUM_TRAIN[task.dataset]
    plan = cnn.plan_for(task, row, num_train - VALIDATION, num_train, cache)
    unit = noise_per_rate(task, plan)
    found: dict[float, dict[str, float]] = {}
    for one in results.of(row=row.name, phase="validation"):
        rate = float(one["learning_rate"])
        found.setdefault(rate, {})[one["readout"]] = float(one["accuracy"])
    best = max(found, key=lambda rate: max(found[rate].values()), default=None)
    return [
        {
            "task": task.name,
            "row": row.name,
            "learning_rate": rate,
            "weight_noise": f"{rate * unit:.2f}",
            **{name: f"{found[rate][name]:.4f}" for name in READOUTS},
            "best": rate == best,
        }
        for rate in sorted(found)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=pathlib.Path, required=True)
    cache = parser.parse_args().cache
    rows = [
        one
        for task in TASKS.values()
        for row in task.rows
        if row.clipping == "automatic"
        for one in of_row(task, row, cache)
    ]
    write(OUT / "weight_noise.csv", rows)
    best = [one for one in rows if one["best"]]
    noise = np.array([float(one["weight_noise"]) for one in best])
    rates = np.array([one["learning_rate"] for one in best])
    gain = np.array([float(one["moving average"]) - float(one["last"]) for one in best])
    print(
        f"Best rates of {len(best)} rows, {rates.min():g} to {rates.max():g}: noise "
        f"{noise.min():.1f} to {noise.max():.1f}, geometric mean "
        f"{np.exp(np.log(noise).mean()):.2f}. Moving average instead of last weights: "
        f"{100 * gain.min():+.1f} to {100 * gain.max():+.1f} points, mean "
        f"{100 * gain.mean():+.1f}."
    )


if __name__ == "__main__":
    main()
