"""Times and checks the accounting of balls in bins; prints one table row per line.

    python benchmarks/accounting.py
    python benchmarks/accounting.py --runs estimate,bound --bins 391 --epochs 10
    python benchmarks/accounting.py --delta 1e-8 --runs estimate,calibrate

The defaults are the setting of arXiv:2601.22334: n = 3910 steps, 391 bins, 10 epochs,
lambda = 0.9, delta = 1e-5. `estimate` is one epsilon of a noise level, with its relative
standard error; `bound` the same at a confidence, and by how much it exceeds the estimate;
`calibrate` and `calibrate-bound` find the noise for epsilon. Without `--noise` the noise
that an estimate finds for epsilon is used. `peak_gb` is the largest memory so far.
"""

from __future__ import annotations

import argparse
import resource
import time
from typing import Any, Callable

from tf_bandmf import strategies
from tf_bandmf.accounting.balls_in_bins import BallsInBinsAccountant

RUNS = ("estimate", "bound", "calibrate", "calibrate-bound")


def timed(function: Callable[[], Any]) -> tuple[Any, float]:
    began = time.perf_counter()
    return function(), time.perf_counter() - began


def show(**fields: Any) -> None:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    fields["peak_gb"] = peak
    parts = [
        f"{name}={value:.6g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in fields.items()
    ]
    print("  ".join(parts), flush=True)


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
    options = parser.parse_args()
    wanted = options.runs.split(",")
    unknown = sorted(set(wanted) - set(RUNS))
    if unknown:
        parser.error(f"--runs must be of {', '.join(RUNS)}, found {unknown[0]!r}.")

    matrix = strategies.lambda_cgd(
        options.bins * options.epochs, options.lambda_
    ).matrix

    def accountant(confidence: float | None) -> BallsInBinsAccountant:
        return BallsInBinsAccountant.of_strategy(
            matrix, options.bins, confidence=confidence, seed=options.seed
        )

    noise, epsilon, delta = options.noise, options.epsilon, options.delta
    if noise is None:
        noise = accountant(None).calibrate_noise_stddev(epsilon, delta).noise_stddev
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
                lambda c=confidence: accountant(c).calibrate_noise_stddev(
                    epsilon, delta
                )
            )
            show(
                run=run,
                epsilon=epsilon,
                noise=found.noise_stddev,
                delta=found.delta.value,
                seconds=seconds,
            )


if __name__ == "__main__":
    main()
