"""Measures the speed of this package on a user's GPU or CPU.

    python benchmarks/accelerators/on_device.py --results a100.json

The program runs on the first GPU, or on the CPU if there is none. It writes one file,
which names versions and devices, but contains nothing about the user. The maintainers
collect such results in a table, so please send them the file.

* noise: seconds per noisy step for each mechanism, relative to independent noise; also
  seconds per step of `tf.random.stateless_normal`, and for reading and writing a
  vector;
* normals: how many of a million normals differ from the same machine's CPU results, and
  by how much; the random words must not differ;
* steps: clipped and private training steps relative to the ordinary step, and memory,
  with the benchmark's batches and with larger batches (`--scales`). Matrix products use
  float32, because a private step refuses TensorFloat-32; the ordinary step is timed
  with TensorFloat-32, too;
* epochs: private epochs of `fit`, compiled as Keras chooses, relative to ordinary
  epochs.

All ratios are ratios of median times. The variants take turns within one process.
"""

from __future__ import annotations

import argparse
import itertools
import json
import pathlib
import platform
import sys
from typing import Any, Callable

import keras
import numpy as np
import tensorflow as tf

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import keras_steps

import tf_bandmf
from tf_bandmf import noise, strategies, workloads
from tf_bandmf.noise.keys import NoiseKey
from tf_bandmf.noise.normals import source_of

_SAMPLE = 1_000_000
NUM_STEPS = 1000
INDEPENDENT = "independent (DP-SGD)"
_STEPS_PER_EPOCH = 50

set_tensor_float_32 = tf.config.experimental.enable_tensor_float_32_execution


def timed(step: Callable[[], Any], repeats: int = 1) -> Callable[[], None]:
    """Returns a function that runs `repeats` steps, then waits for the device."""

    def call() -> None:
        for _ in range(repeats):
            step()
        tf.test.experimental.sync_devices()

    return call


def noisy_step(
    num_parameters: int, strategy: strategies.Strategy, **options: Any
) -> Callable[[], tf.Tensor]:
    """Returns a step that makes noise as training does, including its ring buffer."""
    generator = noise.NoiseGenerator(strategy, num_parameters, **options)
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

    return take


def steps_of_all(num_parameters: int, bands: int) -> dict[str, Callable[[], tf.Tensor]]:
    """Returns a step function for each mechanism, which generates its noise."""
    workload = workloads.prefix_sum(NUM_STEPS)
    cgd = strategies.lambda_cgd(NUM_STEPS, 0.9)
    normalized = strategies.lambda_cgd(NUM_STEPS, 0.9, True)
    identity, bisr = strategies.identity(NUM_STEPS), strategies.bisr(workload, 4)
    banded = strategies.bsr(workload, bands)
    kept, cipher = {"keep_normals": True}, {"generator": "chacha20"}
    families: dict[str, tuple[strategies.Strategy, dict[str, Any]]] = {
        INDEPENDENT: (identity, {}),
        "lambda_cgd": (cgd, {}),
        "lambda_cgd, columns normalized": (normalized, {}),
        "lambda_cgd, normals kept": (cgd, kept),
        "bisr, 4 bands": (bisr, {}),
        "bisr, 4 bands, normals kept": (bisr, kept),
        f"banded, {bands} bands": (banded, {}),
        f"{INDEPENDENT}, ChaCha20": (identity, cipher),
        "lambda_cgd, ChaCha20": (cgd, cipher),
    }
    return {
        name: noisy_step(num_parameters, strategy, **options)
        for name, (strategy, options) in families.items()
    }


def common_step(num_parameters: int) -> Callable[[], tf.Tensor]:
    """Returns a step with independent noise from TensorFlow's own generator."""
    zeros, count = tf.zeros([num_parameters]), tf.Variable(0, dtype=tf.int64)

    @tf.function
    def take() -> tf.Tensor:
        shape = [num_parameters]
        normals = tf.random.stateless_normal(shape, [1, count.assign_add(1)])
        return (zeros + 0.5 * normals) / 256.0

    return take


def noise_ratios(num_parameters: int, repetitions: int, bands: int) -> dict[str, Any]:
    steps = steps_of_all(num_parameters, bands)
    functions = {name: timed(take) for name, take in steps.items()}
    functions["stateless_normal"] = timed(common_step(num_parameters))
    vector = tf.zeros([num_parameters])
    functions["a read and a write"] = timed(lambda: vector + 1.0)
    in_turns = keras_steps.in_turns(functions, 1, repetitions)
    seconds = {name: in_turns[name][0] for name in functions}
    base = seconds[INDEPENDENT]
    return {
        "parameters": num_parameters,
        "seconds": seconds,
        "ratio_to_independent": {name: s / base for name, s in seconds.items()},
    }


def against_the_cpu(device: str) -> dict[str, Any]:
    """Compares random words and normals of equal keys between device and CPU."""
    actual: dict[str, Any] = {"numbers": _SAMPLE}
    counters = tf.range(_SAMPLE // 4, dtype=tf.int64)
    for generator in ("philox", "chacha20"):
        keys = NoiseKey.for_testing(0).step_keys(1, generator)
        words, normals = [], []
        for place in ("/device:CPU:0", device):
            with tf.device(place):
                key = tf.constant(keys[0])
                four = tf.function(source_of(key).four, jit_compile=True)
                made = four(key, tf.cast(counters, tf.uint64))
                words.append(np.stack([word.numpy() for word in made]))
                normals.append(noise.standard_normals(key, _SAMPLE).numpy())
        distance = np.abs(normals[0].astype(np.float64) - normals[1])
        actual[generator] = {
            "different_words": int(np.sum(words[0] != words[1])),
            "different_normals": int(np.sum(normals[0] != normals[1])),
            "largest_difference": float(distance.max()),
        }
    return actual


def step_ratios(name: str, rounds: int, device: str) -> dict[str, Any]:
    options = argparse.Namespace(microbatch_size=None, accuracy=False)
    kinds = ("ordinary", "clipped", *keras_steps.MECHANISMS)
    repeats = keras_steps.STEPS.get(name, 1)
    functions, memory = {}, {}
    for kind in kinds:
        step = keras_steps.step_of(kind, name, options)
        functions[kind] = timed(step, repeats)
        if "CPU" not in device:
            tf.config.experimental.reset_memory_stats(device)
            before = tf.config.experimental.get_memory_info(device)["current"]
            functions[kind]()
            peak = tf.config.experimental.get_memory_info(device)["peak"]
            memory[kind] = peak - before
    in_turns = keras_steps.in_turns(functions, 1, rounds)
    seconds = {kind: in_turns[kind][0] / repeats for kind in kinds}
    set_tensor_float_32(True)
    ordinary = {"ordinary": functions["ordinary"]}
    rounded = keras_steps.in_turns(ordinary, 1, rounds)["ordinary"][0] / repeats
    set_tensor_float_32(False)
    seconds["ordinary, TensorFloat-32"] = rounded
    return {**compared(name, seconds), "bytes_above_before": memory}


def epoch_ratios(name: str, rounds: int) -> dict[str, Any]:
    """Times epochs of `model.fit` with Keras' default compilation settings."""
    options = argparse.Namespace(
        microbatch_size=None,
        accuracy=True,
        rounds=rounds,
        steps_per_epoch=_STEPS_PER_EPOCH,
        jit_compile="auto",
    )
    kinds = ("ordinary", "identity", "lambda_cgd")
    functions = {kind: keras_steps.fit_of(kind, name, options) for kind in kinds}
    in_turns = keras_steps.in_turns(functions, 1, rounds)
    seconds = {kind: in_turns[kind][0] / _STEPS_PER_EPOCH for kind in kinds}
    return compared(name, seconds)


def compared(name: str, seconds: dict[str, float]) -> dict[str, Any]:
    """Returns a record of the variants' times per step, with model and batch size."""
    ordinary = seconds["ordinary"]
    return {
        "model": name,
        "batch": keras_steps.BATCH_SIZES[name],
        "policy": keras.config.dtype_policy().name,
        "seconds": seconds,
        "ratio_to_ordinary": {kind: took / ordinary for kind, took in seconds.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=pathlib.Path, required=True)
    parser.add_argument("--parameters", default="1000000,10000000,100000000")
    parser.add_argument("--models", default="mlp,cnn,transformer")
    parser.add_argument("--scales", default="1,16", help="of the batches of models")
    parser.add_argument("--policies", default="float32", help="mixed_bfloat16, too")
    parser.add_argument("--bands", type=int, default=16, help="of the ring buffer")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--parts", default="noise,normals,steps,epochs")
    options = parser.parse_args()
    kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
    device = f"/device:{kind}:0"
    physical = tf.config.list_physical_devices(kind)
    names = [tf.config.experimental.get_device_details(p) for p in physical]
    actual: dict[str, Any] = {
        "device": kind,
        "devices": [str(details.get("device_name", "")) for details in names],
        "host": platform.processor() or platform.machine(),
        "versions": {"tensorflow": tf.__version__, "tf-bandmf": tf_bandmf.__version__},
        "noise": [],
        "steps": [],
        "epochs": [],
    }
    set_tensor_float_32(False)

    def keep(text: str) -> None:
        options.results.write_text(json.dumps(actual, indent=1) + "\n")
        print(text, flush=True)

    parts = listed(options.parts)
    sizes = listed(options.parameters) if "noise" in parts else []
    with tf.device(device):
        for size in map(int, sizes):
            ratios = noise_ratios(size, options.rounds, options.bands)
            actual["noise"].append(ratios)
            keep(f"noise, {size:,} parameters: {ratios['ratio_to_independent']}")
    if "normals" in parts:
        actual["normals"] = against_the_cpu(device)
        keep(f"normals: {actual['normals']}")
    usual = dict(keras_steps.BATCH_SIZES)
    for policy, name, scale in itertools.product(
        listed(options.policies), listed(options.models), listed(options.scales)
    ):
        keras.config.set_dtype_policy(policy)
        keras_steps.BATCH_SIZES[name] = int(scale) * usual[name]
        what = f"of {name} x {scale}, {policy}"
        if "epochs" in parts:
            epochs = epoch_ratios(name, options.rounds)
            actual["epochs"].append(epochs)
            keep(f"epochs {what}: {epochs['ratio_to_ordinary']}")
        if "steps" in parts:
            ratios = step_ratios(name, options.rounds, device)
            actual["steps"].append(ratios)
            keep(f"steps {what}: {ratios['ratio_to_ordinary']}")


def listed(text: str) -> list[str]:
    return [part for part in text.split(",") if part]


if __name__ == "__main__":
    main()
