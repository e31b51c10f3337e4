"""Measures this package on the device that TensorFlow has, for a table of its owners.

    python benchmarks/accelerators/on_device.py --results a100.json

On the first GPU, else on the CPU; `--tpu local` on the TPU of this machine. One file comes
out, with versions and names of devices and without anything of the user: please send it.

* noise: a noisy step of each mechanism, its seconds over those of independent noise, and
  that over a step of `tf.random.stateless_normal`;
* normals: how many of a million differ from those of the CPU of the same machine, and by
  how much; the random words must not;
* steps: clipped and private steps of models over the ordinary one, and memory;
* placement: operations of a private step that ran on the host although there is a device.

All ratios are of medians in turns, within one process.
"""

from __future__ import annotations

import argparse
import collections
import json
import pathlib
import platform
import sys
from typing import Any, Callable

import numpy as np
import tensorflow as tf

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import keras_steps
import noise as noise_benchmark

import tf_bandmf
from tf_bandmf import noise
from tf_bandmf.noise.keys import NoiseKey
from tf_bandmf.noise.word_sources import source_of

_SAMPLE = 1_000_000


def timed(function: Callable[[], Any]) -> Callable[[], None]:
    """The function with all that it started on devices."""

    def call() -> None:
        function()
        tf.test.experimental.sync_devices()

    return call


def noise_ratios(num_parameters: int, repetitions: int, bands: int) -> dict[str, Any]:
    steps = noise_benchmark.steps_of_all(num_parameters, bands)
    functions = {name: timed(take) for name, (take, _) in steps.items()}
    functions["stateless_normal"] = timed(noise_benchmark.common_step(num_parameters))
    seconds = noise_benchmark.medians(functions, repetitions)
    base = seconds[noise_benchmark.INDEPENDENT]
    return {
        "parameters": num_parameters,
        "seconds": seconds,
        "ratio_to_independent": {name: s / base for name, s in seconds.items()},
    }


def against_the_cpu(device: str) -> dict[str, Any]:
    """Words and normals of the device and of the CPU, from the same keys."""
    found: dict[str, Any] = {"numbers": _SAMPLE}
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
        found[generator] = {
            "different_words": int(np.sum(words[0] != words[1])),
            "different_normals": int(np.sum(normals[0] != normals[1])),
            "largest_difference": float(distance.max()),
        }
    return found


def step_ratios(name: str, rounds: int, device: str) -> dict[str, Any]:
    options = argparse.Namespace(microbatch_size=None, accuracy=False)
    kinds = ("ordinary", "clipped", *keras_steps.MECHANISMS)
    functions, memory = {}, {}
    for kind in kinds:
        step = keras_steps.step_of(kind, name, options)
        functions[kind] = timed(step)
        if "CPU" not in device:
            tf.config.experimental.reset_memory_stats(device)
            before = tf.config.experimental.get_memory_info(device)["current"]
            functions[kind]()
            peak = tf.config.experimental.get_memory_info(device)["peak"]
            memory[kind] = peak - before
    seconds = keras_steps.in_turns(functions, keras_steps.STEPS.get(name, 1), rounds)
    return {
        "seconds": {kind: seconds[kind][0] for kind in kinds},
        "ratio_to_ordinary": {
            kind: seconds[kind][0] / seconds["ordinary"][0] for kind in kinds
        },
        "bytes_above_before": memory,
    }


def placement(name: str, device: str) -> dict[str, Any]:
    """Where TensorFlow put the operations of a step of `fit`."""
    from tensorflow.python.eager import context

    size = keras_steps.BATCH_SIZES[name]
    plan = keras_steps.plan_for("lambda_cgd", name, 2 * size, 5)
    options = argparse.Namespace(microbatch_size=None, accuracy=True)
    optimizer = tf_bandmf.keras.PrivateOptimizer("sgd", plan)
    model = keras_steps.compiled(name, optimizer, True, options)
    batches = plan.batches(*keras_steps.data(name, 2 * size))
    model.fit(batches, epochs=1, verbose=0)
    batch = next(iter(batches.dataset(model.optimizer.steps_taken)))
    step = tf.function(model.train_step, autograph=False)
    context.enable_run_metadata()
    step(batch)
    metadata = context.export_run_metadata()
    context.disable_run_metadata()
    kind = tf.DeviceSpec.from_string(device).device_type
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(
        collections.Counter
    )
    for graphs in metadata.function_graphs:
        for graph in graphs.partition_graphs:
            for node in graph.node:
                counts[tf.DeviceSpec.from_string(node.device).device_type][node.op] += 1
    return {
        "operations": {
            str(kind): sum(found.values()) for kind, found in counts.items()
        },
        "on_the_host": {} if kind == "CPU" else dict(counts["CPU"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=pathlib.Path, required=True)
    parser.add_argument("--parameters", default="1000000,10000000,100000000")
    parser.add_argument("--models", default="mlp,cnn,transformer")
    parser.add_argument("--bands", type=int, default=16, help="of the ring buffer")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tpu", help="local, or the address of a TPU")
    options = parser.parse_args()
    if options.tpu:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(options.tpu)
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    devices = tf.config.list_logical_devices
    kind = next(kind for kind in ("TPU", "GPU", "CPU") if devices(kind))
    device = f"/device:{kind}:0"
    physical = tf.config.list_physical_devices(kind)
    names = [tf.config.experimental.get_device_details(p) for p in physical]
    found: dict[str, Any] = {
        "device": kind,
        "devices": [str(details.get("device_name", "")) for details in names],
        "host": platform.processor() or platform.machine(),
        "versions": {"tensorflow": tf.__version__, "tf-bandmf": tf_bandmf.__version__},
        "noise": [],
        "steps": {},
        "placement": {},
    }

    def keep(text: str) -> None:
        options.results.write_text(json.dumps(found, indent=1) + "\n")
        print(text, flush=True)

    with tf.device(device):
        for size in [int(size) for size in options.parameters.split(",") if size]:
            ratios = noise_ratios(size, options.rounds, options.bands)
            found["noise"].append(ratios)
            keep(f"noise, {size:,} parameters: {ratios['ratio_to_independent']}")
    found["normals"] = against_the_cpu(device)
    keep(f"normals: {found['normals']}")
    for name in [name for name in options.models.split(",") if name]:
        found["steps"][name] = step_ratios(name, options.rounds, device)
        keep(f"steps of {name}: {found['steps'][name]['ratio_to_ordinary']}")
        found["placement"][name] = placement(name, device)
        keep(f"placement of {name}: {found['placement'][name]}")


if __name__ == "__main__":
    main()
