"""Seconds and memory of a federated round, beside what TFF offers. Federated stack.

    python benchmarks/federated_rounds.py                     # 20 clients, d = 1,001,000
    python benchmarks/federated_rounds.py --memory            # each in its own process
    python benchmarks/federated_rounds.py --production        # 400 bands, d = 2.4 million

A model of one dense layer; each of 20 clients trains on one batch of 10 examples. The
contenders take their rounds in turns, so that a loaded machine slows them all; `ratio` is
the median over rounds of seconds per second of TFF's tree in the same turn. `--memory`
gives peak resident memory of Python and of TFF's worker.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from typing import Any, Callable

import numpy as np
import psutil
import tensorflow as tf
import tensorflow_federated as tff

import tf_bandmf
import tf_bandmf_federated
from tf_bandmf import strategies, workloads

NUM_CLIENTS, BATCH, NUM_ROUNDS = 20, 10, 2000
# Of the paper's production runs (arXiv:2306.08153, section 6).
SEPARATION, PARTICIPATIONS = 400, 5

Round = Callable[[], None]


def model_fn(width: int, outputs: int) -> Callable[[], Any]:
    def build() -> Any:
        layer = tf.keras.layers.Dense(outputs, input_shape=(width,))
        return tff.learning.models.from_keras_model(
            tf.keras.Sequential([layer]),
            loss=tf.keras.losses.MeanSquaredError(),
            input_spec=(
                tf.TensorSpec([None, width]),
                tf.TensorSpec([None, outputs]),
            ),
        )

    return build


def client_data(width: int, outputs: int) -> list[tf.data.Dataset]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(BATCH, width)).astype(np.float32)
    y = np.zeros([BATCH, outputs], np.float32)
    dataset = tf.data.Dataset.from_tensors((x, y))
    return [dataset] * NUM_CLIENTS


def strategy_of(name: str) -> strategies.Strategy:
    workload = workloads.prefix_sum(NUM_ROUNDS)
    family, _, bands = name.partition(":")
    if family == "lambda_cgd":
        return strategies.lambda_cgd(NUM_ROUNDS, 0.95)
    if family == "bisr":
        return strategies.bisr(workload, int(bands))
    # Any banded C costs the same: its coefficients do not matter.
    return strategies.bsr(workload, int(bands))


def our_round(name: str, width: int, outputs: int, noise: str) -> Round:
    plan = tf_bandmf.plan(
        strategy_of(name),
        noise_multiplier=1.0,
        delta=1e-6,
        num_steps=NUM_ROUNDS,
        participation=tf_bandmf.MinSep(SEPARATION, PARTICIPATIONS),
    )
    process = tf_bandmf_federated.build_fed_avg(
        model_fn(width, outputs),
        plan,
        tff.learning.optimizers.build_sgdm(0.1),
        clients_per_round=NUM_CLIENTS,
        noise=noise,
    )
    clients = client_data(width, outputs)
    state = process.initialize()

    def take() -> None:
        nonlocal state
        now = process.round_number(state)
        data = [tf_bandmf_federated.tag_dataset(d, -1, 0, now) for d in clients]
        state = process.next(process.prepare(state), data).state

    return take


def tff_round(name: str, width: int, outputs: int) -> Round:
    specs = [tf.TensorSpec([width, outputs]), tf.TensorSpec([outputs])]
    aggregators = {
        "no privacy": lambda: tff.aggregators.UnweightedMeanFactory(),
        "tff dp_aggregator": lambda: tff.learning.dp_aggregator(1.0, NUM_CLIENTS),
        "tff tree": lambda: (
            tff.aggregators.DifferentiallyPrivateFactory.tree_aggregation(
                1.0, NUM_CLIENTS, 1.0, specs
            )
        ),
    }
    process = tff.learning.algorithms.build_unweighted_fed_avg(
        model_fn(width, outputs),
        tff.learning.optimizers.build_sgdm(0.1),
        model_aggregator=aggregators[name](),
    )
    data = client_data(width, outputs)
    state = process.initialize()

    def take() -> None:
        nonlocal state
        state = process.next(state, data).state

    return take


CONTENDERS = {
    "no privacy": None,
    "tff dp_aggregator": None,
    "tff tree": None,
    "lambda_cgd": "state",
    "bisr:4": "state",
    "bsr:64": "host",
}


def contender(name: str, width: int, outputs: int) -> Round:
    noise = CONTENDERS.get(name, "host")
    if noise is None:
        return tff_round(name, width, outputs)
    return our_round(name, width, outputs, noise)


def peak_gigabytes(process: psutil.Process) -> float:
    with open(f"/proc/{process.pid}/status", encoding="utf-8") as file:
        lines = dict(line.split(":", 1) for line in file)
    return int(lines["VmHWM"].split()[0]) * 1024 / 1e9


def report_memory(name: str, width: int, outputs: int) -> None:
    """Of one contender, in this process alone."""
    take = contender(name, width, outputs)
    for _ in range(3):
        take()
    workers = [
        child
        for child in psutil.Process().children(recursive=True)
        if "worker_binary" in child.name()
    ]
    result = {
        "python": peak_gigabytes(psutil.Process()),
        "worker": max(peak_gigabytes(worker) for worker in workers),
    }
    print(json.dumps(result))


def compare_seconds(width: int, outputs: int, repetitions: int) -> None:
    rounds = {name: contender(name, width, outputs) for name in CONTENDERS}
    for take in rounds.values():
        take()  # TFF compiles a computation at its first call
    seconds: dict[str, list[float]] = {name: [] for name in rounds}
    for _ in range(repetitions):
        for name, take in rounds.items():
            start = time.perf_counter()
            take()
            seconds[name].append(time.perf_counter() - start)
    tree = np.array(seconds["tff tree"])
    print(f"{'':20}{'s/round':>10}{'ratio':>8}")
    for name, values in seconds.items():
        ratio = np.median(np.array(values) / tree)
        print(f"{name:20}{np.median(values):10.3f}{ratio:8.2f}")


def compare_memory(width: int, outputs: int) -> None:
    print(f"{'GB at the peak':20}{'python':>10}{'worker':>10}")
    for name in CONTENDERS:
        command = [sys.executable, os.path.abspath(__file__), "--of", name]
        command += ["--width", str(width), "--outputs", str(outputs)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found = json.loads(done.stdout.strip().splitlines()[-1])
        print(f"{name:20}{found['python']:10.2f}{found['worker']:10.2f}", flush=True)


def production(rounds: int) -> None:
    """The paper's production shape: 2000 rounds, 400 bands, 2.4 million weights."""
    width, outputs = 1199, 2000
    plain = contender("no privacy", width, outputs)
    take = contender("bsr:400", width, outputs)
    plain()
    take()
    seconds: list[tuple[float, float]] = []
    for number in range(rounds):
        start = time.perf_counter()
        plain()
        middle = time.perf_counter()
        take()
        seconds.append((middle - start, time.perf_counter() - middle))
        if number % 10 == 9:
            done = np.median(seconds, axis=0)
            print(f"{number + 1} rounds: {done[0]:.2f} s, {done[1]:.2f} s", flush=True)
    without, ours = np.array(seconds).T
    print(
        f"bsr:400, d = {(width + 1) * outputs:,}, {rounds} rounds: median "
        f"{np.median(ours):.2f} s (largest {ours.max():.2f} s), without privacy "
        f"{np.median(without):.2f} s; Python's peak "
        f"{peak_gigabytes(psutil.Process()):.2f} GB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--width", type=int, default=1000)
    parser.add_argument("--outputs", type=int, default=1000)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--production", action="store_true")
    parser.add_argument("--rounds", type=int, default=30, help="of --production")
    parser.add_argument("--of", help=argparse.SUPPRESS)
    options = parser.parse_args()
    tf_bandmf_federated.use_local_workers()
    size = (options.width, options.outputs)
    if options.of:
        report_memory(options.of, *size)
        return
    print(f"{platform.machine()}, {os.cpu_count()} cores, TFF {tff.__version__}")
    if options.production:
        production(options.rounds)
    elif options.memory:
        compare_memory(*size)
    else:
        compare_seconds(*size, options.repetitions)


if __name__ == "__main__":
    main()
