"""Times and checks the optimization of strategies; prints one table row per line.

    python benchmarks/strategies.py gradient --steps 1024,4096,16384 --bands 16
    python benchmarks/strategies.py toeplitz --steps 4096,65536,1048576 --bands 16
    python benchmarks/strategies.py scaling --steps 65536,262144,1048576 --bands 16
    python benchmarks/strategies.py optimize --steps 1048576 --bands 16
    python benchmarks/strategies.py optimize --steps 1024 --objective max
    python benchmarks/strategies.py cold --steps 1000 --bands 16

`gradient` and `toeplitz` measure loss and gradient beside jax_privacy and, for banded
strategies up to `--quadratic-limit` steps, beside the published O(n^2 bands) algorithm
written in TensorFlow. jax_privacy is optional: give `--peer-python` the Python of an
environment that has it. `optimize` optimizes general columns from the best Toeplitz
strategy and prints the certified optimality gap at the end, and on the way on stderr.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import resource
import subprocess
import sys
import time
from typing import Any, Callable

import numpy as np

PEER = pathlib.Path(__file__).with_name("strategies_peer.py")
INSTALL = (
    "jax_privacy is missing: measured without it. To compare, make an environment for "
    "it (python -m venv peer; peer/bin/pip install jax_privacy==2.0.0 equinox) and pass "
    "--peer-python peer/bin/python."
)


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


def peer(
    arguments: argparse.Namespace, family: str, n: int, scan: str = "plain"
) -> dict[str, Any] | None:
    """The peer's measurement, or None if it is not there or fails (says why)."""
    python = arguments.peer_python or sys.executable
    command = [python, str(PEER), "--family", family, "--scan", scan]
    command += ["--steps", str(n), "--bands", str(arguments.bands)]
    command += ["--repetitions", str(arguments.repetitions)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1])
    if "No module named" in done.stderr:
        print(INSTALL, file=sys.stderr)
    else:
        reason = (done.stderr.strip().splitlines() or ["killed"])[-1]
        print(f"jax_privacy failed at n = {n}: {reason}", file=sys.stderr)
    return None


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


def quadratic_problem(n: int, bands: int) -> tuple[Callable, np.ndarray]:
    """arXiv:2405.15913, Algorithm 2: rows of A C^-1 one after the other."""
    import tensorflow as tf

    from tf_bandmf.optimize import banded, banded_matrices
    from tf_bandmf.workloads import prefix_sum

    _, position = banded_problem(n, bands)
    problem = banded.Problem(prefix_sum(n), bands, None)

    def log_loss(position: Any) -> Any:
        columns = problem.columns(position)
        rows = banded_matrices.rows_from_columns(columns)

        def step(state: Any, operands: Any) -> Any:
            recent, total, _ = state
            index, row = operands
            unit = tf.one_hot(index, n, dtype=tf.float64)
            y = (unit - tf.linalg.matvec(recent, row[1:], transpose_a=True)) / row[0]
            total += y
            recent = tf.concat([y[None, :], recent[:-1]], axis=0)
            return recent, total, tf.reduce_sum(total**2)

        zero = tf.zeros([n], tf.float64)
        first = (tf.zeros([bands - 1, n], tf.float64), zero, zero[0])
        _, _, errors = tf.scan(step, (tf.range(n), rows), first)
        return tf.math.log(tf.reduce_mean(errors))

    return log_loss, position


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
        if family == "banded" and n <= arguments.quadratic_limit:
            slow = compiled(*quadratic_problem(n, arguments.bands))
            value = float(np.exp(slow()[0]))
            other = shortest(slow, 2)
            ratio = other / seconds
            show(code="O(n^2 b) in TF", n=n, seconds=other, ratio=ratio, value=value)
        long = family == "banded" and n > arguments.plain_scan_limit
        scan = "equinox" if long else "plain"
        other = peer(arguments, family, n, scan)
        if other is not None:
            show(
                code=f"jax_privacy {other['version']} ({scan} scan)",
                n=n,
                seconds=other["seconds"],
                ratio=other["seconds"] / seconds,
                value=other["value"],
            )


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
    parser.add_argument("--peer-python", help="Python of an environment of jax_privacy")
    parser.add_argument("--quadratic-limit", type=int, default=2048)
    parser.add_argument(
        "--plain-scan-limit",
        type=int,
        default=8192,
        help="above this many steps jax_privacy needs its checkpointed scan",
    )
    arguments = parser.parse_args()
    runs[arguments.run](arguments)


if __name__ == "__main__":
    main()
