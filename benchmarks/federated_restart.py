"""Seconds to go on with an interrupted federated run. Federated stack.

    python benchmarks/federated_restart.py                  # d = 2.4 million, 64 bands
    python benchmarks/federated_restart.py --clients 1000   # of the digests

What a restart adds to a round: the ring buffer, read from the folder of the noise or made
again row by row; and the digest of the round's data, which every round of the training
program needs. Beside them one round of the same size, as the measure.
"""

from __future__ import annotations

import argparse
import collections
import os
import platform
import tempfile
import time
from typing import Callable

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import tf_bandmf
import tf_bandmf_federated
from tf_bandmf import strategies, workloads
from tf_bandmf_federated.digests import digest_of, digest_of_data

NUM_ROUNDS, SEPARATION, PARTICIPATIONS = 2000, 400, 5
RUN = 1  # the run's number
Seconds = list[float]


def make_plan(bands: int) -> tf_bandmf.Plan:
    return tf_bandmf.plan(
        strategies.bsr(workloads.prefix_sum(NUM_ROUNDS), bands),
        noise_multiplier=1.0,
        delta=1e-6,
        num_steps=NUM_ROUNDS,
        participation=tf_bandmf.MinSep(SEPARATION, PARTICIPATIONS),
    )


def timed(function: Callable[..., object], *arguments: object) -> float:
    start = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - start


def restart(plan: tf_bandmf.Plan, d: int, done: int, repetitions: int) -> None:
    """The ring buffer after `done` rounds."""
    with tempfile.TemporaryDirectory() as folder:
        host = tf_bandmf_federated.HostNoise(plan, d)
        host.keep_in(folder)
        rows = [timed(host.values, RUN, t) for t in range(done)]
        expected = host.values(RUN, done)
        size = os.path.getsize(os.path.join(folder, "noise.ring"))
        del host  # and its buffer
        read: Seconds = []
        for _ in range(repetitions):
            resumed = tf_bandmf_federated.HostNoise(plan, d)
            resumed.keep_in(folder)
            read.append(timed(resumed.values, RUN, done))
            np.testing.assert_array_equal(resumed.values(RUN, done), expected)
            del resumed
    row = float(np.median(rows[-10:]))
    print(
        f"d = {d:,}, {size / 1e9:.2f} GB: noise of a round {row:.2f} s; after "
        f"{done} rounds the next one's {np.median(read):.2f} s from the file, "
        f"{sum(rows):.1f} s made again ({row * 1500:.0f} s after 1500)"
    )


def one_round(plan: tf_bandmf.Plan, d: int, repetitions: int) -> None:
    """A round of 20 clients with one batch of 10, and what the program adds to it."""
    outputs = 2000
    width = d // outputs - 1

    def model_fn() -> tff.learning.models.VariableModel:
        layer = tf.keras.layers.Dense(outputs, input_shape=(width,))
        return tff.learning.models.from_keras_model(
            tf.keras.Sequential([layer]),
            loss=tf.keras.losses.MeanSquaredError(),
            input_spec=(tf.TensorSpec([None, width]), tf.TensorSpec([None, outputs])),
        )

    process = tf_bandmf_federated.build_fed_avg(
        model_fn,
        plan,
        tff.learning.optimizers.build_sgdm(0.1),
        clients_per_round=20,
        noise="host",
    )
    x = np.zeros([10, width], np.float32)
    y = np.zeros([10, outputs], np.float32)
    batch = tf.data.Dataset.from_tensors((x, y))
    state = process.initialize()
    seconds: dict[str, Seconds] = collections.defaultdict(list)
    for now in range(repetitions + 1):
        data = [tf_bandmf_federated.tag_dataset(batch, -1, 0, now) for _ in range(20)]
        seconds["digest of the data"].append(timed(digest_of_data, data))
        start = time.perf_counter()
        state = process.next(process.prepare(state), data).state
        seconds["round"].append(time.perf_counter() - start)
        seconds["digest of the state"].append(timed(digest_of, state))
    for name, values in seconds.items():
        print(f"{name}: {np.median(values[1:]):.2f} s")  # the first one traces


def digests(clients: int, batches: int) -> None:
    """Of many small batches."""
    x = np.zeros([4 * batches, 3], np.float32)
    data = [
        tf_bandmf_federated.tag_dataset(
            tf.data.Dataset.from_tensor_slices((x + i, x[:, :1])).batch(4), -1, 0, 0
        )
        for i in range(clients)
    ]
    digest_of_data(data[:1])  # traced
    print(f"digest of {clients} clients x {batches} batches: ", end="")
    print(f"{timed(digest_of_data, data):.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--parameters", type=int, default=2_400_000)
    parser.add_argument("--bands", type=int, default=64)
    parser.add_argument(
        "--done", type=int, default=70, help="rounds before the restart"
    )
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--batches", type=int, default=50)
    options = parser.parse_args()
    tf_bandmf_federated.use_local_workers()
    print(f"{platform.machine()}, {os.cpu_count()} cores, TFF {tff.__version__}")
    plan = make_plan(options.bands)
    digests(options.clients, options.batches)
    one_round(plan, options.parameters, options.repetitions)
    restart(plan, options.parameters, options.done, options.repetitions)


if __name__ == "__main__":
    main()
