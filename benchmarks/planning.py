"""Times the search for the number of bands and the choice of a mechanism.

    python benchmarks/planning.py bands --steps 4096 --epochs 8
    python benchmarks/planning.py pattern --steps 4096
    python benchmarks/planning.py auto --sampling fixed-order
    python benchmarks/planning.py auto --sampling balls-in-bins

`bands` searches over powers of two under cyclic Poisson sampling; `pattern` prints the
best number of bands for several epochs and epsilons (arXiv:2405.15913, Fig. 3b);
`auto` plans 60,000 examples in batches of 512 for 10 epochs. Times are without imports.
"""

from __future__ import annotations

import argparse
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    runs = {"bands": bands, "pattern": pattern, "auto": auto}
    parser.add_argument("run", choices=sorted(runs))
    parser.add_argument("--steps", type=int, default=4096)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--epsilon", type=float, default=2.0)
    parser.add_argument("--delta", type=float, default=1e-8)
    parser.add_argument("--mechanism", help="by default as tf-bandmf bands chooses")
    parser.add_argument("--sampling", default="fixed-order")
    parser.add_argument("--memory-vectors", type=int, default=31)
    arguments = parser.parse_args()
    runs[arguments.run](arguments)


if __name__ == "__main__":
    main()
