"""Times and checks the optimization of strategies; prints one table row per line.

    python benchmarks/strategies.py gradient --steps 1024,4096,16384 --bands 16
    python benchmarks/strategies.py toeplitz --steps 4096,65536,1048576 --bands 16
    python benchmarks/strategies.py scaling --steps 65536,262144,1048576 --bands 16
    python benchmarks/strategies.py optimize --steps 1048576 --bands 16
    python benchmarks/strategies.py optimize --steps 1024 --objective max
    python benchmarks/strategies.py cold --steps 1000 --bands 16

`gradient` and `toeplitz` measure loss and gradient. `optimize` optimizes general columns
from the best Toeplitz strategy and prints the certified optimality gap at the end, and on
the way on stderr.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from typing import Any, Callable

import numpy as np


def shortest(function: Callable[[], Any], repetitions: int) -> float:
    times = []
    for _ in range(repetitions):
        began = time.perf_counter()
        function()
        times.append(time.perf_counter() - began)
    return min(times)


def peak_gigabytes() -> float:
    """Largest resident set of this process so far (Linux counts kilobytes)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def show(**fields: Any) -> None:
    parts = [
        f"{name}={value:.6g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in fields.items()
    ]
    print("  ".join(parts), flush=True)


def compiled(log_loss: Callable, position: np.ndarray) -> Callable[[], Any]:
    """Value and gradient as the optimizer evaluates them."""
    import tensorflow as tf

    from tf_bandmf.optimize import lbfgs

    function = lbfgs.value_and_gradient(log_loss, position.size)
    start = tf.constant(position)
    return lambda: function(start)


def banded_problem(n: int, bands: int) -> tuple[Callable, np.ndarray]:
    import tensorflow as tf

    from tf_bandmf import strategies, workloads
    from tf_bandmf.matrices import as_rows
    from tf_bandmf.optimize import banded, banded_matrices

    workload = workloads.prefix_sum(n)
    problem = banded.Problem(workload, bands, None)
    start = strategies.bsr(workload, bands, column_normalized=True)
    columns = banded_matrices.columns_from_rows(as_rows(start.matrix))

    def log_loss(position: Any) -> Any:
        errors = problem.errors(problem.columns(position))
        return tf.math.log(tf.reduce_mean(errors))

    return log_loss, problem.position(columns)


def toeplitz_problem(n: int, bands: int) -> tuple[Callable, np.ndarray]:
    from tf_bandmf import strategies, workloads
    from tf_bandmf.optimize import objectives, toeplitz

    workload = workloads.prefix_sum(n)
    log_loss = toeplitz.log_loss(workload, objectives.MEAN.reduction, n, 1)
    start = strategies.bsr(workload, bands).matrix.coefficients
    return log_loss, start[1:] / start[0]


def compare(arguments: argparse.Namespace, family: str) -> None:
    problem = {"banded": banded_problem, "toeplitz": toeplitz_problem}[family]
    for n in arguments.steps:
        function = compiled(*problem(n, arguments.bands))
        began = time.perf_counter()
        value = float(np.exp(function()[0]))
        first = time.perf_counter() - began
        seconds = shortest(function, arguments.repetitions)
        show(code="tf_bandmf", n=n, seconds=seconds, first=first, value=value)


def scaling(arguments: argparse.Namespace) -> None:
    for n in arguments.steps:
        function = compiled(*banded_problem(n, arguments.bands))
        function()
        seconds = shortest(function, arguments.repetitions)
        show(
            n=n,
            seconds=seconds,
            microseconds_per_step=1e6 * seconds / n,
            peak_gb=peak_gigabytes(),
        )


def optimize(arguments: argparse.Namespace) -> None:
    from tf_bandmf import strategies, workloads
    from tf_bandmf.participation import MinSep

    for n in arguments.steps:
        workload, once = workloads.prefix_sum(n), MinSep(n, 1)
        start = strategies.optimized_toeplitz(
            workload, once, arguments.bands, objective=arguments.objective
        )
        normalized = start.normalize_columns()
        before = processor_seconds()
        found = strategies.optimized_banded(
            workload,
            arguments.bands,
            objective=arguments.objective,
            start=None if arguments.objective == "mean" else normalized,
            max_iterations=arguments.max_iterations,
            gap_tolerance=arguments.gap_tolerance,
            decrease_tolerance=arguments.decrease_tolerance,
            progress=True,
        )
        used = processor_seconds() - before
        fields = ("converged", "message", "num_iterations", "optimality_gap", "seconds")
        for strategy in (start, normalized, found):
            show(
                family=strategy.family,
                n=n,
                rmse=strategy.rmse(workload, once),
                max_se=strategy.max_se(workload, once),
                **{name: strategy.diagnostics[name] for name in fields},
            )
        show(processor_seconds=used, peak_gb=peak_gigabytes())


def cold(arguments: argparse.Namespace) -> None:
    """Import, trace, optimize and report in a fresh interpreter."""
    code = (
        "from tf_bandmf import strategies, workloads\n"
        "from tf_bandmf.participation import MinSep\n"
        "w = workloads.prefix_sum({n})\n"
        "s = strategies.optimized_banded(w, {b})\n"
        "print(s.rmse(w, MinSep({n}, 1)), s.diagnostics['converged'])"
    )
    for n in arguments.steps:
        text = code.format(n=n, b=arguments.bands)
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", text], capture_output=True, text=True, check=True
        )
        seconds = time.perf_counter() - began
        show(n=n, seconds=seconds, output=done.stdout.strip())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    runs = {
        "gradient": lambda arguments: compare(arguments, "banded"),
        "toeplitz": lambda arguments: compare(arguments, "toeplitz"),
        "scaling": scaling,
        "optimize": optimize,
        "cold": cold,
    }
    parser.add_argument("run", choices=sorted(runs))
    parser.add_argument(
        "--steps", type=lambda text: [int(x) for x in text.split(",")], default=[4096]
    )
    parser.add_argument("--bands", type=int, default=16)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--max-iterations", type=int, default=500)
    parser.add_argument("--gap-tolerance", type=float, default=1e-5)
    parser.add_argument("--decrease-tolerance", type=float, default=1e-9)
    parser.add_argument("--objective", default="mean", help="mean or max, of optimize")
    arguments = parser.parse_args()
    runs[arguments.run](arguments)


if __name__ == "__main__":
    main()
