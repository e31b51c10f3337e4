"""Fits the constants of the learning-rate rule, with leave-one-task-out validation.

    python benchmarks/advice/fit.py

The program reads grids of learning rates and scores: `results/runs.csv` in this folder
(the rows "advised" and "momentum"), and
`benchmarks/utility/results/advised/weight_noise.csv` (networks trained from pixels; its
column "weight_noise" is rate * RMSE / B * sqrt(fan-in) for a workload with momentum
0.9). The regret of a learning rate is how far its score, interpolated on a logarithmic
scale of rates, is below the best score of the grid. It is a fraction of the gain of this
best score over the trivial score.
"""

from __future__ import annotations

import csv
import itertools
import math
import pathlib
from collections import defaultdict

import numpy as np

from tf_bandmf.planning import learning_rates

HERE = pathlib.Path(__file__).parent
NETWORKS = HERE.parent / "utility" / "results" / "advised" / "weight_noise.csv"
# For each network: the sum of all weights' fan-ins, and the number of weights.
SIZES = {"fashion-mnist-cnn": (864, 26_010), "cifar-10-cnn": (2939, 113_738)}
RATES = 0.08 * 2.0 ** np.arange(-2, 2.25, 0.25)
LIMITS = (3.0, 6.0, 9.0, 12.0, 18.0, 24.0, 48.0, math.inf)
TRIVIAL = {"accuracy": 0.1}


class Grid:
    """Scores of training runs that differ only in their learning rates and seeds."""

    def __init__(self, task: str, noise: float, size: float, trivial: float) -> None:
        self.task, self.noise, self.size, self.trivial = task, noise, size, trivial
        self.scores: dict[float, list[float]] = defaultdict(list)

    def regret(self, rate: float) -> float:
        rates = sorted(self.scores)
        scores = [float(np.mean(self.scores[one])) for one in rates]
        at = np.interp(math.log(rate), np.log(rates), scores)
        # Beyond either end of the grid, scores are extrapolated.
        for end, inner in ((0, 1), (-1, -2)):
            if (rate - rates[end]) * (rates[end] - rates[inner]) > 0:
                slope = (scores[end] - scores[inner]) / math.log(
                    rates[end] / rates[inner]
                )
                at = min(at, scores[end] + slope * math.log(rate / rates[end]))
        best = max(scores)
        return float(min(1.0, (best - at) / (best - self.trivial)))


def grids() -> list[Grid]:
    import tasks

    several: dict[object, Grid] = {}
    with NETWORKS.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            task = row["task"].partition("-epsilon")[0]
            fan_in, size = SIZES[task]
            rate = float(row["learning_rate"])
            noise = 0.1 * float(row["weight_noise"]) / rate / math.sqrt(fan_in)
            key = row["task"], row["row"]
            grid = several.setdefault(key, Grid(task, noise, size, 0.1))
            grid.scores[rate].append(float(row["moving average"]))
    path = HERE / "results" / "runs.csv"
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["way"] in ("advised", "momentum"):
                key = row["task"], row["epsilon"]
                noise, size = float(row["noise"]), float(row["parameters"])
                _, loss, *facts = tasks._FACTS[row["task"]]
                clip, _ = learning_rates.clip_norm(loss)
                size *= learning_rates._excess(clip) ** 2
                grid = several.setdefault(key, Grid(row["task"], noise, size, facts[1]))
                grid.scores[clip * float(row["rate"])].append(float(row["score"]))
    return [grid for grid in several.values() if len(grid.scores) > 1]


def rate_of(grid: Grid, constant: float, limit: float) -> float:
    return constant / math.sqrt(grid.noise) / (
        1.0 + grid.noise * math.sqrt(grid.size) / limit
    )  # fmt: skip


def regrets(several: list[Grid], constant: float, limit: float) -> np.ndarray:
    return np.array([one.regret(rate_of(one, constant, limit)) for one in several])


def fitted(
    several: list[Grid], limits: tuple[float, ...] = LIMITS
) -> tuple[float, float]:
    """Returns the constants of the rule that minimize the mean squared regret."""
    return min(
        itertools.product(RATES, limits),
        key=lambda two: float(np.mean(regrets(several, *two) ** 2)),
    )


def main() -> None:
    several = grids()
    names = sorted({one.task for one in several})
    print(f"{len(several)} grids of {len(names)} tasks")
    for title, limits in (
        ("c / sqrt(s)", (math.inf,)),
        ("with a limit by noise", LIMITS),
    ):
        best = fitted(several, limits)
        left = []
        for name in names:
            rest = [one for one in several if one.task != name]
            out = [one for one in several if one.task == name]
            left.append(regrets(out, *fitted(rest, limits)))
        out = np.concatenate(left)
        print(
            f"{title}: rate {best[0]:.3g}, limit {best[1]:.3g}; left out, mean regret "
            f"{out.mean():.3f}, worst {out.max():.3f}"
        )
    chosen = regrets(several, 0.08, 12.0)
    print(f"as advised: mean regret {chosen.mean():.3f}, worst {chosen.max():.3f}")


if __name__ == "__main__":
    main()
