"""Times federated rounds relative to tree aggregation in TensorFlow Federated (TFF).

    python benchmarks/federated_rounds.py --turns 12

The program needs TFF and the package tf_bandmf_federated. The model has 1,001,000
weights, and each of 20 clients trains on one batch. The mechanisms take turns, so other
load on the machine slows all of them equally. The printed `ratio` is a mechanism's time
divided by that of TFF's tree in the same turn, as the median over turns.
"""

from __future__ import annotations

import argparse
import time
from typing import Any, Callable

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import tf_bandmf
import tf_bandmf_federated

CLIENTS, WIDTH, ROUNDS, SEPARATION = 20, 1000, 2052, 342
# The first turns are not counted, because TFF compiles at the first call.
NOT_COUNTED = 2
OURS = ("lambda_cgd", "bisr:4", "blt")


def model_fn() -> Any:
    layer = tf.keras.layers.Dense(WIDTH, input_shape=(WIDTH,))
    return tff.learning.models.from_keras_model(
        tf.keras.Sequential([layer]),
        loss=tf.keras.losses.MeanSquaredError(),
        input_spec=(tf.TensorSpec([None, WIDTH]), tf.TensorSpec([None, WIDTH])),
    )


def rounds_of(name: str, data: tf.data.Dataset) -> Callable[[], None]:
    """Returns a function that runs one more round of training with a mechanism."""
    optimizers = [tff.learning.optimizers.build_sgdm(rate) for rate in (0.1, 1.0)]
    if name in OURS:
        takes_part = tf_bandmf.MinSep(SEPARATION, ROUNDS // SEPARATION)
        noise = {"noise_multiplier": 1.0, "delta": 1e-6}
        plan = tf_bandmf.plan(name, num_steps=ROUNDS, sampling=takes_part, **noise)
        process = tf_bandmf_federated.build_fed_avg(
            model_fn, plan, *optimizers, clients_per_round=CLIENTS
        )
    else:
        specs = [tf.TensorSpec([WIDTH, WIDTH]), tf.TensorSpec([WIDTH])]
        tree = tff.aggregators.DifferentiallyPrivateFactory.tree_aggregation
        aggregator = tree(1.0, CLIENTS, 1.0, specs) if name == "TFF's tree" else None
        process = tff.learning.algorithms.build_unweighted_fed_avg(
            model_fn, *optimizers, model_aggregator=aggregator
        )
    state = process.initialize()

    def take() -> None:
        nonlocal state
        clients = [data] * CLIENTS
        if name in OURS:
            now = process.round_number(state)
            clients = [tf_bandmf_federated.tag_dataset(data, -1, 0, now)] * CLIENTS
        state = process.next(state, clients).state

    return take


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--turns", type=int, default=12)
    turns = parser.parse_args().turns
    x = np.random.default_rng(0).normal(size=(10, WIDTH)).astype(np.float32)
    data = tf.data.Dataset.from_tensors((x, np.zeros_like(x)))
    names = ("TFF's tree", "no privacy", *OURS)
    contenders = [rounds_of(name, data) for name in names]
    seconds = np.empty([NOT_COUNTED + turns, len(names)])
    for row in seconds:
        for i, take in enumerate(contenders):
            start = time.perf_counter()
            take()
            row[i] = time.perf_counter() - start
    counted = seconds[NOT_COUNTED:]
    ratios = np.median(counted / counted[:, :1], axis=0)
    for name, median, ratio in zip(names, np.median(counted, axis=0), ratios):
        print(f"{name:12}{median:8.3f} s, ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
