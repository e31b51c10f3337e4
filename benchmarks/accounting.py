"""Times and checks the accounting of balls in bins; prints one table row per line.

    python benchmarks/accounting.py
    python benchmarks/accounting.py --runs estimate,bound --bins 391 --epochs 10
    python benchmarks/accounting.py --delta 1e-8 --runs estimate,calibrate
    python benchmarks/accounting.py --runs b-min-sep --epsilons 0.5,2,8 --steps 512
    python benchmarks/accounting.py --runs b-min-sep-bound --epsilons 2 --bands 4

The defaults are the setting of arXiv:2601.22334: n = 3910 steps, 391 bins, 10 epochs,
lambda = 0.9, delta = 1e-5. `estimate` is one epsilon of a noise level, with its relative
standard error; `bound` the same at a confidence, and by how much it exceeds the estimate;
`calibrate` and `calibrate-bound` find the noise for epsilon. Without `--noise` the noise
that an estimate finds for epsilon is used. `b-min-sep` is a table: noise on the raw banded
Toeplitz strategy, and its RMSE, under b-min-sep sampling and under cyclic Poisson sampling
at the same expected batch, 8 epochs. `b-min-sep-bound` is a plan of
the same strategy and sampling by an estimate and at the confidence 1 - `--beta`. `peak_gb`
is the largest memory so far.
"""

from __future__ import annotations

import argparse
import resource
import time
from typing import Any, Callable

import numpy as np

import tf_bandmf
from tf_bandmf import strategies, workloads
from tf_bandmf.accounting.balls_in_bins import BallsInBinsAccountant
from tf_bandmf.participation import NAMED, MinSep

RUNS = ("estimate", "bound", "calibrate", "calibrate-bound")
TABLES = ("b-min-sep", "b-min-sep-bound")


def timed(function: Callable[[], Any]) -> tuple[Any, float]:
    began = time.perf_counter()
    return function(), time.perf_counter() - began


def processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def show(**fields: Any) -> None:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    fields["peak_gb"] = peak
    parts = [
        f"{name}={value:.6g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in fields.items()
    ]
    print("  ".join(parts), flush=True)


def b_min_sep_table(options: argparse.Namespace, epsilons: list[float]) -> None:
    n, epochs = options.steps, 8
    workload, once = workloads.prefix_sum(n), MinSep(n, 1)
    for bands in (int(text) for text in options.bands.split(",")):
        strategy = strategies.optimized_toeplitz(workload, once, bands)
        per_step = strategy.per_step_squared_error(workload)
        error = float(np.sqrt(per_step.mean()))
        for epsilon in epsilons:
            rows = {}
            for name in ("cyclic-poisson", "b-min-sep"):
                participation = NAMED[name].of_rates(n, bands, epochs, bands)
                accountant = participation.accountant(strategy.matrix)
                found, seconds = timed(
                    lambda a=accountant, e=epsilon: a.calibrate(e, options.delta)
                )
                rows[name] = found.noise_stddev, seconds
            cyclic, rested = rows["cyclic-poisson"], rows["b-min-sep"]
            show(
                run="b-min-sep",
                bands=bands,
                epsilon=epsilon,
                cyclic_noise=cyclic[0],
                noise=rested[0],
                less=1.0 - rested[0] / cyclic[0],
                cyclic_rmse=cyclic[0] * error,
                rmse=rested[0] * error,
                seconds=rested[1],
            )


def b_min_sep_bound(options: argparse.Namespace, epsilons: list[float]) -> None:
    n, epochs = options.steps, 8
    workload, once = workloads.prefix_sum(n), MinSep(n, 1)
    for bands in (int(text) for text in options.bands.split(",")):
        strategy = strategies.optimized_toeplitz(workload, once, bands)
        participation = NAMED["b-min-sep"].of_rates(n, bands, epochs, bands)
        for epsilon in epsilons:
            for confidence in (None, 1.0 - options.beta):
                before = processor_seconds()
                plan, seconds = timed(
                    lambda e=epsilon, c=confidence, s=strategy, p=participation: (
                        tf_bandmf.plan(
                            s,
                            epsilon=e,
                            delta=options.delta,
                            workload=workload,
                            participation=p,
                            num_steps=n,
                            confidence=c,
                        )
                    )
                )
                show(
                    run="b-min-sep-bound",
                    bands=bands,
                    epsilon=epsilon,
                    kind=plan.kind,
                    noise=plan.noise_stddev,
                    processor_seconds=processor_seconds() - before,
                    seconds=seconds,
                )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", default=",".join(RUNS))
    parser.add_argument("--bins", type=int, default=391)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lambda", dest="lambda_", type=float, default=0.9)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--noise", type=float, help="on the raw strategy")
    parser.add_argument("--beta", type=float, default=1e-6, help="1 - confidence")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epsilons", default="1,2,4,8", help="of the tables")
    parser.add_argument("--steps", type=int, default=512, help="of both b-min-sep")
    parser.add_argument("--bands", default="4,16", help="of both b-min-sep")
    options = parser.parse_args()
    wanted = options.runs.split(",")
    unknown = sorted(set(wanted) - {*RUNS, *TABLES})
    if unknown:
        parser.error(
            f"--runs must be of {', '.join((*RUNS, *TABLES))}, found {unknown[0]!r}."
        )

    epsilons = [float(text) for text in options.epsilons.split(",")]
    if "b-min-sep" in wanted:
        b_min_sep_table(options, epsilons)
    if "b-min-sep-bound" in wanted:
        b_min_sep_bound(options, epsilons)
    if not set(wanted) & set(RUNS):
        return
    matrix = strategies.lambda_cgd(
        options.bins * options.epochs, options.lambda_
    ).matrix

    def accountant(confidence: float | None) -> BallsInBinsAccountant:
        return BallsInBinsAccountant.of_strategy(
            matrix, options.bins, confidence=confidence, seed=options.seed
        )

    noise, epsilon, delta = options.noise, options.epsilon, options.delta
    if noise is None:
        noise = accountant(None).calibrate(epsilon, delta).noise_stddev
    estimate, seconds = timed(lambda: accountant(None).epsilon(delta, noise))
    if "estimate" in wanted:
        show(
            run="estimate",
            noise=noise,
            epsilon=estimate.value,
            relative_error=estimate.standard_error / estimate.value,
            seconds=seconds,
        )
    if "bound" in wanted:
        bound, seconds = timed(
            lambda: accountant(1.0 - options.beta).epsilon(delta, noise)
        )
        show(
            run="bound",
            noise=noise,
            epsilon=bound.value,
            excess=bound.value / estimate.value - 1.0,
            draws=bound.num_draws,
            seconds=seconds,
        )
    for run, confidence in (
        ("calibrate", None),
        ("calibrate-bound", 1.0 - options.beta),
    ):
        if run in wanted:
            found, seconds = timed(
                lambda c=confidence: accountant(c).calibrate(epsilon, delta)
            )
            show(
                run=run,
                epsilon=epsilon,
                noise=found.noise_stddev,
                seconds=seconds,
            )


if __name__ == "__main__":
    main()
