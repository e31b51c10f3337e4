"""Times one noisy step of every kind of noise, in turns in one run.

    python benchmarks/noise.py --parameters 10000000 --repetitions 7

A step adds `noise_stddev` times its noise to a gradient and divides by the batch size.
`ratio` compares with the step of independent noise (DP-SGD). `GB/s` is what the kept
vectors' memory is read with by all of what a step takes longer than the independent
one, to be compared with the bandwidth at which the maximum of as much memory is found.
Rows with ChaCha20 have noise of that stream cipher, `plan(..., generator="chacha20")`.
The row of `tf.random.stateless_normal` is a step with independent noise of TensorFlow's
own generator.
"""

from __future__ import annotations

import argparse
import platform
import time
from typing import Any, Callable

import numpy as np
import tensorflow as tf

from tf_bandmf import noise, strategies, workloads
from tf_bandmf.noise.keys import NoiseKey

NUM_STEPS = 1000
INDEPENDENT = "independent (DP-SGD)"


def noisy_step(
    strategy: strategies.Strategy,
    num_parameters: int,
    keep_normals: bool = False,
    source: str = "philox",
) -> tuple[Callable[[], tf.Tensor], tf.Variable]:
    """A step as a training step takes it: the buffer changes in place."""
    generator = noise.NoiseGenerator(
        strategy, num_parameters, keep_normals=keep_normals, generator=source
    )
    keys = tf.constant(generator.step_keys(NoiseKey.for_testing(0)))
    shape = [generator.memory_vectors, num_parameters]
    buffer = tf.Variable(tf.zeros(shape))
    gradient = tf.zeros([num_parameters])
    step = tf.Variable(50, dtype=tf.int64)

    @tf.function
    def take() -> tf.Tensor:
        row, updates = generator.row(keys, buffer, generator.checked_step(step))
        written = [step.assign_add(1)]
        with tf.control_dependencies([row]):
            written += [buffer.scatter_update(update) for update in updates]
        with tf.control_dependencies(written):
            return (gradient + 0.5 * row) / 256.0

    return take, buffer


def steps_of_all(
    num_parameters: int, bands: int
) -> dict[str, tuple[Callable[[], tf.Tensor], tf.Variable]]:
    """A step of each mechanism, and what it keeps."""
    workload = workloads.prefix_sum(NUM_STEPS)
    cgd = strategies.lambda_cgd(NUM_STEPS, 0.9)
    normalized = strategies.lambda_cgd(NUM_STEPS, 0.9, True)
    families = {
        INDEPENDENT: (strategies.identity(NUM_STEPS), False),
        "lambda_cgd": (cgd, False),
        "lambda_cgd, columns normalized": (normalized, False),
        "lambda_cgd, normals kept": (cgd, True),
        "bisr, 4 bands": (strategies.bisr(workload, 4), False),
        "bisr, 4 bands, normals kept": (strategies.bisr(workload, 4), True),
        f"banded, {bands} bands": (strategies.bsr(workload, bands), False),
    }
    steps = {
        name: noisy_step(strategy, num_parameters, kept)
        for name, (strategy, kept) in families.items()
    }
    for name in (INDEPENDENT, "lambda_cgd"):
        strategy, kept = families[name]
        steps[f"{name}, ChaCha20"] = noisy_step(
            strategy, num_parameters, kept, "chacha20"
        )
    return steps


def common_step(num_parameters: int) -> Callable[[], tf.Tensor]:
    """With independent noise of TensorFlow's own generator."""
    zeros, count = tf.zeros([num_parameters]), tf.Variable(0, dtype=tf.int64)

    @tf.function
    def take() -> tf.Tensor:
        shape = [num_parameters]
        normals = tf.random.stateless_normal(shape, [1, count.assign_add(1)])
        return (zeros + 0.5 * normals) / 256.0

    return take


def medians(
    functions: dict[str, Callable[[], Any]], repetitions: int
) -> dict[str, float]:
    """Median seconds; one repetition of all before the next, so that load is shared."""
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for function in functions.values():
        function()
    for _ in range(repetitions):
        for name, function in functions.items():
            began = time.perf_counter()
            function()
            seconds[name].append(time.perf_counter() - began)
    return {name: float(np.median(values)) for name, values in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parameters", type=int, default=10_000_000)
    parser.add_argument("--bands", type=int, default=16, help="of the ring buffer")
    parser.add_argument("--repetitions", type=int, default=7)
    options = parser.parse_args()
    d = options.parameters
    steps = steps_of_all(d, options.bands)
    key = tf.constant(NoiseKey.for_testing(0).step_keys(1)[0])
    everything = {name: take for name, (take, _) in steps.items()}
    everything["a step of tf.random.stateless_normal"] = common_step(d)
    everything["tf.random.stateless_normal"] = tf.function(
        lambda: tf.random.stateless_normal([d], [1, 2], alg="philox")
    )
    everything["standard_normals"] = tf.function(lambda: noise.standard_normals(key, d))
    # TensorFlow copies a variable that was ever written row by row: read a new one.
    plain = tf.Variable(tf.zeros([options.bands - 1, d]))
    everything["maximum of as much memory"] = tf.function(lambda: tf.reduce_max(plain))
    seconds = medians(everything, options.repetitions)

    print(f"{d:,} parameters, {platform.processor() or platform.machine()}")
    base = seconds[INDEPENDENT]
    for name, (_, kept) in steps.items():
        size = 4e-9 * int(tf.size(kept))
        extra = seconds[name] - base
        speed = f"  GB/s={size / extra:.3g}" if size and extra > 0 else ""
        print(
            f"{name:32s} seconds={seconds[name]:.4f}  ratio={seconds[name] / base:.3f}"
            f"  buffer_GB={size:.3g}{speed}"
        )
    common = seconds["a step of tf.random.stateless_normal"]
    print(
        f"{'tf.random.stateless_normal':32s} seconds={common:.4f}  "
        f"ratio={common / base:.3f}"
    )
    bandwidth = 4e-9 * int(tf.size(plain)) / seconds["maximum of as much memory"]
    print(f"{'maximum of as much memory':32s} GB/s={bandwidth:.3g}")
    ours, theirs = seconds["standard_normals"], seconds["tf.random.stateless_normal"]
    print(
        f"standard_normals alone: seconds={ours:.4f}, ratio to that of "
        f"tf.random.stateless_normal: {ours / theirs:.3f}"
    )


if __name__ == "__main__":
    main()
