"""Measures the server's time and memory for a round with a large model.

    python federated/examples/large_model.py --parameters 10000000 --devices 100

All devices send the same array, so the program measures only the server's work. It
prints the CPU time and the wall time of a round in seconds, and the peak memory as a
multiple of the model's size, at 4 bytes per weight. The results are quoted in
`docs/federated-deployment.md`.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import tempfile
import time

import numpy as np

import tf_bandmf
from tf_bandmf_federated.averaging import FederatedAveraging, Replies
from tf_bandmf_federated.cohorts import Cohorts
from tf_bandmf_federated.rounds import Run

ROUNDS = 4


def peak() -> float:
    """Returns the peak memory of this process, in bytes."""
    return 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> None:
    """Runs `ROUNDS` rounds, and prints the time of a round and the peak memory."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parameters", type=int, default=10_000_000)
    parser.add_argument("--devices", type=int, default=100)
    parser.add_argument("--mechanism", default="lambda_cgd")
    options = parser.parse_args()
    plan = tf_bandmf.plan(
        options.mechanism,
        noise_multiplier=1.0,
        delta=1e-6,
        num_steps=ROUNDS,
        sampling=tf_bandmf.MinSep(1, ROUNDS),
    )
    names = [f"{number:032x}" for number in range(options.devices)]
    size = options.parameters
    held, stamps = peak(), []
    update = np.full(size, 0.5 / size**0.5, np.float32)

    def exchange(request, add):
        for name in request.names:
            add(name, [update])
        return Replies()

    engine = FederatedAveraging(
        plan, [np.ones(size, np.float32)], exchange, clients_per_round=options.devices
    )

    def after_round(state):
        stamps.append((time.process_time(), time.perf_counter()))

    with tempfile.TemporaryDirectory() as folder:
        run = Run(
            engine=engine,
            cohorts=lambda ledger: Cohorts(
                ledger, lambda number: names, plan.participation
            ),
            private_dir=folder,
            clients_per_round=options.devices,
            after_round=after_round,
        )
        asyncio.run(run.finish())
    # The differences start at the end of the first round, and so exclude the time in
    # which that round compiles the noise graph.
    processor, wall = np.median(np.diff(stamps, axis=0), axis=0)
    print(
        f"{size:,} parameters, {options.devices} devices, {options.mechanism}: "
        f"{processor:.2f} s of CPU time and {wall:.2f} s of wall time per round; peak "
        f"memory {(peak() - held) / (4 * size):.1f} times the model's size, including "
        f"the initial weights"
    )


if __name__ == "__main__":
    main()
