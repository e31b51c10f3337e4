"""Times the search for the number of bands and the choice of a mechanism.

    python benchmarks/planning.py bands --steps 4096 --epochs 8
    python benchmarks/planning.py pattern --steps 4096
    python benchmarks/planning.py auto --sampling fixed-order
    python benchmarks/planning.py auto --sampling balls-in-bins
    python benchmarks/planning.py command --samplings fixed-order,balls-in-bins
    python benchmarks/planning.py command --mechanism banded:32
    python benchmarks/planning.py sizes --samplings poisson,balls-in-bins --delta 1e-12
    python benchmarks/planning.py sizes --samplings b-min-sep --mechanism bsr:16

`bands` searches over powers of two under cyclic Poisson sampling; `pattern` prints the
best number of bands for several epochs and epsilons (arXiv:2405.15913, Fig. 3b);
`auto` plans 60,000 examples in batches of 512 for 10 epochs. Times are without imports.
`command` is `tf-bandmf plan` for 50,000 examples, batches of 512, 20 epochs and momentum
0.9, in processes of their own, without a cache and with imports. `sizes` plans DP-SGD
(or `--mechanism`) for data sets of 10^3 to 10^9 examples under each sampling, each in a
process of its own that has `--limit` seconds: what the plan, its statement and the epsilon
of its first half take in time and memory, or why it is refused.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time


def show(**fields: object) -> None:
    parts = [
        f"{name}={value:.6g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in fields.items()
    ]
    print("  ".join(parts), flush=True)


def bands(arguments: argparse.Namespace) -> None:
    from tf_bandmf import workloads
    from tf_bandmf.planning import band_search

    began = time.perf_counter()
    search = band_search.best_bands(
        workloads.prefix_sum(arguments.steps),
        arguments.epochs,
        arguments.epsilon,
        arguments.delta,
        mechanism=arguments.mechanism,
    )
    seconds = time.perf_counter() - began
    for candidate in search.candidates:
        show(bands=candidate.bands, rmse=candidate.rmse)
    show(
        mechanism=search.mechanism,
        n=arguments.steps,
        best=search.best.bands,
        seconds=seconds,
    )


def pattern(arguments: argparse.Namespace) -> None:
    from tf_bandmf import workloads
    from tf_bandmf.planning import band_search

    workload = workloads.prefix_sum(arguments.steps)
    for epsilon in (0.5, 1.0, 2.0, 4.0, 8.0):
        found = {}
        for epochs in (1, 2, 4, 8, 16, 32, 64):
            largest = arguments.steps // epochs
            candidates = [2**i for i in range(largest.bit_length()) if 2**i <= largest]
            search = band_search.best_bands(
                workload,
                epochs,
                epsilon,
                arguments.delta,
                mechanism=arguments.mechanism or "bsr:normalized",
                candidates=candidates,
            )
            found[f"k={epochs}"] = search.best.bands
        show(epsilon=epsilon, **found)


def auto(arguments: argparse.Namespace) -> None:
    import tf_bandmf

    began = time.perf_counter()
    plan = tf_bandmf.plan(
        "auto",
        epsilon=arguments.epsilon,
        delta=arguments.delta,
        num_examples=60_000,
        batch_size=512,
        epochs=10,
        sampling=arguments.sampling,
        max_memory_vectors=arguments.memory_vectors,
    )
    seconds = time.perf_counter() - began
    print(plan.choice)
    show(sampling=arguments.sampling, seconds=seconds)


def command(arguments: argparse.Namespace) -> None:
    line = [sys.executable, "-m", "tf_bandmf.cli", "plan", "--json"]
    line += ["--num-examples", "50000", "--batch-size", "512", "--epochs", "20"]
    line += ["--workload", "sgd:momentum=0.9", "--epsilon", "3", "--delta", "1e-5"]
    line += ["--mechanism", arguments.mechanism or "auto"]
    environment = {**os.environ, "TF_BANDMF_CACHE": "off"}
    for sampling in arguments.samplings.split(","):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        began = time.perf_counter()
        done = subprocess.run(
            [*line, "--sampling", sampling],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        seconds = time.perf_counter() - began
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
        found = json.loads(done.stdout)
        show(
            sampling=sampling,
            mechanism=found["mechanism"],
            rmse=found["rmse"],
            processor_seconds=used,
            seconds=seconds,
        )


# Examples, batch size, epochs.
SIZES = (
    (10**3, 1, 1),
    (10**3, 1, 1000),
    (10**4, 100, 100),
    (10**6, 1000, 10),
    (10**7, 100, 10),
    (10**9, 10**6, 3),
    (10**9, 10**4, 3),
    (10**9, 1, 1),
)
ONE_SIZE = """
import json, resource, sys, time, warnings
warnings.filterwarnings("ignore")
import tf_bandmf
arguments = json.loads(sys.argv[1])
began, used = time.perf_counter(), time.process_time()
try:
    plan = tf_bandmf.plan(**arguments)
    result = f"noise_multiplier={plan.noise_multiplier:.6g} {plan.kind}"
    planned = time.perf_counter() - began
    str(plan.statement())
    plan.epsilon_after(max(1, plan.num_steps // 2))
    result += f" planned_in={planned:.3g}"
except (ValueError, ArithmeticError) as error:
    result = f"refused: {error}"
print(json.dumps({
    "seconds": time.perf_counter() - began,
    "processor_seconds": time.process_time() - used,
    "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
    "result": result,
}))
"""


def sizes(arguments: argparse.Namespace) -> None:
    for sampling in arguments.samplings.split(","):
        for examples, batch, epochs in SIZES:
            request = {
                "mechanism": arguments.mechanism or "identity",
                "sampling": sampling,
                "num_examples": examples,
                "batch_size": batch,
                "epochs": epochs,
                "epsilon": arguments.epsilon,
                "delta": arguments.delta,
            }
            size = f"{sampling}:{examples:.0e}/{batch:.0e}/{epochs}"
            try:
                done = subprocess.run(
                    [sys.executable, "-c", ONE_SIZE, json.dumps(request)],
                    capture_output=True,
                    text=True,
                    check=True,
                    timeout=arguments.limit,
                )
            except subprocess.TimeoutExpired:
                show(size=size, result=f"nothing within {arguments.limit:g} s")
                continue
            except subprocess.CalledProcessError as error:
                show(size=size, result=error.stderr.strip().splitlines()[-1][:200])
                continue
            show(size=size, **json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    runs = {"bands": bands, "pattern": pattern, "auto": auto, "command": command}
    runs["sizes"] = sizes
    parser.add_argument("run", choices=sorted(runs))
    parser.add_argument("--steps", type=int, default=4096)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--epsilon", type=float, default=2.0)
    parser.add_argument("--delta", type=float, default=1e-8)
    parser.add_argument("--mechanism", help="by default as bands chooses, or auto")
    parser.add_argument("--sampling", default="fixed-order")
    parser.add_argument("--samplings", default="fixed-order", help="of command")
    parser.add_argument("--memory-vectors", type=int, default=31)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds, of sizes")
    arguments = parser.parse_args()
    runs[arguments.run](arguments)


if __name__ == "__main__":
    main()
