"""What training the CIFAR-10 networks of published tables costs here, without doing it.

    python benchmarks/utility/convnet_cost.py [--batch-size 512] [--steps 3]

Three blocks of 3 x 3 convolutions with 32, 64 and 128 filters, each ended by 2 x 2 max
pooling, and a dense layer: with two convolutions a block 307,498 parameters, with one
113,738. arXiv:2505.12128 (Table 2) trains a "3-Block ConvNet" and prints no layers;
arXiv:2601.22334 says 0.3 million parameters of its network. Times `fit` with clipping and
DP-SGD's noise, and without privacy, on random images; prints the processor time of an
example and the hours of a run of 10 epochs of 50,000 examples and of all mechanisms.
"""

from __future__ import annotations

import argparse
import time

import keras
import numpy as np
import tensorflow as tf
from cnn_tasks import cifar_network

import tf_bandmf
import tf_bandmf.keras

NUM_EXAMPLES, EPOCHS = 50_000, 10
# DP-SGD, BSR, BandMF, BandInvMF and BISR, without sampling; three learning rates of which
# one is trained with three seeds.
RUNS = 5 * (3 + 3)


def multiplications(model: keras.Model) -> int:
    """Of one example's forward pass, additions not counted."""
    total = 0
    for layer in model.layers:
        if layer.weights:
            positions = np.prod(layer.output.shape[1:-1], dtype=int)
            total += int(positions) * int(np.prod(layer.kernel.shape))
    return total


def seconds_of_example(
    convolutions: int, private: bool, batch_size: int, steps: int
) -> tuple[float, float]:
    """Wall and processor seconds of an example in `fit`: medians of `steps` steps."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(batch_size, 32, 32, 3)).astype(np.float32)
    y = rng.integers(0, 10, batch_size)
    model = cifar_network(convolutions)
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    data = tf.data.Dataset.from_tensors((x, y))
    if private:
        tf_bandmf.keras.make_private(model, self_check=False)
        plan = tf_bandmf.plan(
            "identity",
            epsilon=9,
            delta=1e-5,
            num_examples=batch_size,
            batch_size=batch_size,
            epochs=steps + 1,
            workload="sgd:momentum=0.9",
        )
        # Of random data.
        optimizer = tf_bandmf.keras.PrivateOptimizer(
            optimizer, plan, clipping="automatic", additional_run=True
        )
        data = plan.batches(x, y)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, jit_compile=False)
    times = StepTimes()
    model.fit(data, epochs=steps + 1, verbose=0, callbacks=[times])
    # The first step traces.
    wall, processor = np.median(times.found[1:], axis=0) / batch_size
    return float(wall), float(processor)


class StepTimes(keras.callbacks.Callback):
    """Wall and processor seconds of each step."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[float, float]] = []

    def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
        self.start = time.perf_counter(), time.process_time()

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        wall, processor = time.perf_counter(), time.process_time()
        self.found.append((wall - self.start[0], processor - self.start[1]))


def hours(seconds: float) -> float:
    """Of a run, from the seconds of an example."""
    return seconds * NUM_EXAMPLES * EPOCHS / 3600


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--steps", type=int, default=3)
    arguments = parser.parse_args()
    print(
        "convolutions  parameters  multiplications  private  wall ms  CPU ms  run h  all h"
    )
    for convolutions in (1, 2):
        model = cifar_network(convolutions)
        for private in (False, True):
            wall, processor = seconds_of_example(
                convolutions, private, arguments.batch_size, arguments.steps
            )
            run = hours(processor)
            print(
                f"{convolutions:12d}  {model.count_params():10,d}"
                f"  {multiplications(model):15,d}  {'yes' if private else 'no':>7}"
                f"  {1e3 * wall:7.2f}  {1e3 * processor:6.2f}  {run:5.2f}"
                f"  {RUNS * run:5.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
