"""A round of a large model, beside the time to write and read its vector. Main stack.

    PYTHONPATH=federated python benchmarks/federated_large.py --parameters 1e8

The engine is `FederatedAveraging`, driven by `running.Run` as every engine is: ledger,
noise, clipping and adding up of updates, digests, the saved state. Measures, in turns
with the rounds, since other work on the machine slows them all: the model's float32 vector
written to a plain file, fsynced, and read again (from the page cache); the same with a
SHA-256, as a private file, which a run that survives a crash needs once per round; and the
least that adding up can cost: a dot product of each update with itself, and a sum that each
is added to, by BLAS. Processor seconds are those of all threads.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import resource
import tempfile
import time
from collections.abc import Callable

import numpy as np
from scipy.linalg import blas

import tf_bandmf
from tf_bandmf.files import private as private_files
from tf_bandmf_federated.averaging import Add, FederatedAveraging, Replies, Request
from tf_bandmf_federated.cohorts import AvailableCohorts
from tf_bandmf_federated.ledger import Ledger
from tf_bandmf_federated.rounds import ProgramState
from tf_bandmf_federated.running import Run


def write_and_read(path: str, vector: np.ndarray) -> float:
    """Seconds."""
    start = time.perf_counter()
    with open(path, "wb", buffering=0) as file:
        file.write(vector.data)
        os.fsync(file.fileno())
    np.fromfile(path, np.float32)
    seconds = time.perf_counter() - start
    os.unlink(path)
    return seconds


def save_and_load(path: str, vector: np.ndarray) -> float:
    """Seconds."""
    start = time.perf_counter()
    private_files.write(path, vector.data)
    private_files.read(path)
    seconds = time.perf_counter() - start
    os.unlink(path)
    return seconds


def bare_passes(vector: np.ndarray, clients: int) -> float:
    """Processor seconds of a dot product and a sum for each update."""
    total = np.zeros_like(vector)
    start = time.process_time()
    for _ in range(clients):
        np.dot(vector, vector)
        blas.saxpy(vector, total, a=1e-6)
    return time.process_time() - start


def peak_memory() -> int:
    """Bytes that the process had at most so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def train(
    plan: tf_bandmf.Plan,
    d: int,
    clients: int,
    folder: str,
    between: Callable[[], None],
) -> tuple[list[float], list[float]]:
    """Seconds of each round but the first, which traces, and processor seconds.

    `between` comes in between.
    """
    update = [np.full(d, 1e-6, np.float32)]
    names = [f"client {number}" for number in range(clients * plan.num_steps)]
    took: list[float] = []
    used: list[float] = []
    began = began_cpu = 0.0

    def exchange(request: Request, add: Add) -> Replies:
        for name in request.names:
            add(name, update)
        return Replies()

    engine = FederatedAveraging(
        plan, [np.zeros(d, np.float32)], exchange, clients_per_round=clients or 1
    )

    def cohorts(ledger: Ledger) -> AvailableCohorts:
        return AvailableCohorts(ledger, lambda: names, plan.participation)

    def after_round(_: ProgramState) -> None:
        nonlocal began, began_cpu
        took.append(time.perf_counter() - began)
        used.append(time.process_time() - began_cpu)
        between()
        began, began_cpu = time.perf_counter(), time.process_time()

    run = Run(
        engine=engine,
        cohorts=cohorts,
        private_dir=folder,
        clients_per_round=clients,
        after_round=after_round,
    )
    began, began_cpu = time.perf_counter(), time.process_time()
    asyncio.run(run.finish())
    return took[1:], used[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--parameters", type=float, default=1e8)
    parser.add_argument("--mechanism", default="lambda_cgd")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--folder", help="on the disk to measure")
    options = parser.parse_args()
    d = int(options.parameters)
    plan = tf_bandmf.plan(
        options.mechanism,
        noise_multiplier=1.0,
        delta=1e-6,
        num_steps=options.rounds + 1,
        participation=tf_bandmf.MinSep(options.rounds + 1, 1),
    )
    vector = np.random.default_rng(0).standard_normal(d, np.float32)
    measure: list[tuple[float, float]] = []
    passes: list[float] = []
    peaks: list[int] = []
    before = peak_memory()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:

        def between() -> None:
            peaks.append(peak_memory())
            plain = write_and_read(os.path.join(folder, "vector"), vector)
            measure.append(
                (plain, save_and_load(os.path.join(folder, "state"), vector))
            )
            passes.append(bare_passes(vector, options.clients))

        run = os.path.join(folder, "run")
        took, used = train(plan, d, options.clients, run, between)
    peak = peaks[0]  # of a round, before anything else was measured
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, {options.mechanism}, d = {d:,}, "
        f"{options.clients} clients: {np.median(took):.2f} s per round, "
        f"{np.median(used):.2f} s of processor time, {np.median(passes[:-1]):.2f} s of "
        f"it for bare passes over the updates; peak {peak / 1e9:.2f} GB, "
        f"{(peak - before) / (4.0 * d):.1f} models more than before the run"
    )
    measures = np.array(measure[:-1])
    for name, seconds in zip(("plain file", "checksummed state"), measures.T):
        ratios = np.array(took) / seconds
        each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        print(
            f"{name}: {np.median(seconds):.2f} s, ratio {np.median(ratios):.2f} ({each})"
        )


if __name__ == "__main__":
    main()
