"""Times private Keras training relative to ordinary training, in interleaved steps.

    python benchmarks/keras_steps.py --models mlp,cnn,transformer --rounds 6
    python benchmarks/keras_steps.py --models cnn --microbatch-size 64
    python benchmarks/keras_steps.py --models cnn,transformer --fit --rounds 4

A step consists of forward pass, backward pass and SGD update on a batch in memory,
without metrics. The variant "clipped" clips and sums per-example gradients without
noise. All other variants add the noise of their mechanism, and "kept" is lambda_cgd
with `keep_normals=True`. The columns `wall` and `cpu` are median times relative to the
ordinary step. The column `start` is the ratio of CPU times for the first step, which
traces and compiles (without the self-check of `fit`). The column `peak` is the memory
that the step adds to its process. `--fit` compares whole epochs of `model.fit`, with
the same sampler and accountant for every mechanism.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import platform
import subprocess
import sys
import time
from typing import Any, Callable

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import tf_bandmf
import tf_bandmf.keras
from tf_bandmf import noise
from tf_bandmf.keras.clipping.sums.clipped_sums import clipped_gradient_sums

MECHANISMS = ("identity", "lambda_cgd", "kept")
BATCH_SIZES = {"mlp": 256, "cnn": 256, "transformer": 128}
# The number of steps per measurement. These steps take some tenths of a second, so the
# resolution of the clock does not matter.
STEPS = {"mlp": 40, "cnn": 4, "transformer": 3}
VOCABULARY, LENGTH, WIDTH = 1000, 64, 128


def mlp() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((784,)),
            layers.Dense(512, "relu"),
            layers.Dense(512, "relu"),
            layers.Dense(10),
        ]
    )


def cnn() -> keras.Model:
    """Builds a convolutional network with 0.29 million parameters."""
    blocks: list[Any] = [keras.Input((32, 32, 3))]
    for filters in (32, 64, 128):
        blocks.append(layers.Conv2D(filters, 3, padding="same", activation="relu"))
        blocks.append(layers.MaxPooling2D())
    dense = [layers.Flatten(), layers.Dense(96, "relu"), layers.Dense(10)]
    return keras.Sequential(blocks + dense)


def transformer() -> keras.Model:
    """Builds a model with two transformer blocks and 0.5 million parameters."""
    inputs = keras.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(VOCABULARY, WIDTH)(inputs)
    for _ in range(2):
        h = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(4, WIDTH // 4)(h, h)
        h = layers.LayerNormalization()(x)
        x = x + layers.Dense(WIDTH)(layers.Dense(4 * WIDTH, "gelu")(h))
    return keras.Model(inputs, layers.Dense(VOCABULARY)(layers.LayerNormalization()(x)))


MODELS: dict[str, Callable[[], keras.Model]] = {
    "mlp": mlp,
    "cnn": cnn,
    "transformer": transformer,
}


def data(name: str, num_examples: int) -> tuple[Any, np.ndarray]:
    rng = np.random.default_rng(0)
    if name == "transformer":
        text = rng.integers(0, VOCABULARY, (num_examples, LENGTH + 1))
        return text[:, :-1].astype(np.int32), text[:, 1:]
    shape = (32, 32, 3) if name == "cnn" else (784,)
    x = rng.normal(size=(num_examples, *shape)).astype(np.float32)
    return x, rng.integers(0, 10, num_examples)


def compiled(name: str, optimizer: Any, private: bool, options: Any) -> keras.Model:
    keras.utils.set_random_seed(0)
    model = MODELS[name]()
    if private:
        size = options.microbatch_size
        extra = {} if size is None else {"microbatch_size": size}
        tf_bandmf.keras.make_private(model, **extra)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    metrics = ["accuracy"] if options.accuracy else []
    by_xla = getattr(options, "jit_compile", False)
    model.compile(optimizer, loss=loss, jit_compile=by_xla, weighted_metrics=metrics)
    return model


def plan_for(mechanism: str, name: str, num_examples: int, epochs: int) -> Any:
    if mechanism in ("kept", "lambda_cgd"):
        mechanism = "lambda_cgd:0.9"
    return tf_bandmf.plan(
        mechanism,
        noise_multiplier=1.0,
        delta=1e-6,
        num_examples=num_examples,
        batch_size=BATCH_SIZES[name],
        epochs=epochs,
    )


def private_optimizer(inner: Any, kind: str, plan: Any) -> Any:
    # The data are random numbers, so the joint privacy cost of the runs does not
    # matter.
    return tf_bandmf.keras.PrivateOptimizer(
        inner, plan, keep_normals=kind == "kept", additional_run=True
    )


def step_of(kind: str, name: str, options: Any) -> Callable[[], Any]:
    if kind != "ordinary":
        return private_step(kind, name, options)
    model = compiled(name, keras.optimizers.SGD(1e-3), False, options)
    x, y = map(tf.constant, data(name, BATCH_SIZES[name]))
    variables = model.trainable_variables
    model.optimizer.build(variables)

    @tf.function(autograph=False)
    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = model.compute_loss(x, y, model(x, training=True))
        gradients = tape.gradient(loss, [variable.value for variable in variables])
        model.optimizer.apply(gradients, variables)
        return loss

    return step


def private_step(kind: str, name: str, options: Any) -> Callable[[], Any]:
    """Returns a training step with the mechanism's noise (with none for "clipped")."""
    size = BATCH_SIZES[name]
    x, y = map(tf.constant, data(name, size))
    optimizer = inner = keras.optimizers.SGD(1e-3)
    if kind != "clipped":
        optimizer = private_optimizer(inner, kind, plan_for(kind, name, size, 5000))
    model = compiled(name, optimizer, True, options)
    variables = model.trainable_variables
    model.optimizer.build(variables)

    @tf.function(autograph=False)
    def step() -> tf.Tensor:
        clipped = clipped_gradient_sums(
            model, x, y, l2_norm_clip=1.0, microbatch_size=options.microbatch_size
        )
        if kind == "clipped":
            inner.apply([total / size for total in clipped.sums], variables)
        else:
            run = optimizer.run
            # Each call repeats the same step of the plan.
            number, keys = tf.constant(0, tf.int64), run.secrets.step_keys(0)
            of_step = number, tf.constant(keys), number[None], run.secrets.stored
            noisy = run.privatize(clipped.sums, None, *of_step)
            run.apply(noisy.gradients)
        return tf.reduce_mean(clipped.losses)

    return step


def fit_of(kind: str, name: str, options: Any) -> Callable[[], Any]:
    """Returns a function that runs one epoch of `model.fit` per call."""
    num_examples = BATCH_SIZES[name] * options.steps_per_epoch
    x, y = data(name, num_examples)
    if kind == "ordinary":
        model = compiled(name, keras.optimizers.SGD(1e-3), False, options)
        return lambda: model.fit(x, y, batch_size=BATCH_SIZES[name], verbose=0)
    plan = plan_for(kind, name, num_examples, options.rounds + 1)
    optimizer = private_optimizer(keras.optimizers.SGD(1e-3), kind, plan)
    model = compiled(name, optimizer, True, options)
    batches = plan.batches(x, y)
    return lambda: model.fit(batches, verbose=0)


def in_turns(
    functions: dict[str, Callable[[], Any]], repeats: int, rounds: int
) -> dict[str, tuple[float, float, float]]:
    """Returns median wall and CPU times of calls, and the first call's CPU time."""
    taken: dict[str, list[tuple[float, float]]] = {kind: [] for kind in functions}
    first = {}
    # A first operation does TensorFlow's one-time work, which would otherwise slow down
    # the first variant.
    tf.function(lambda x: x @ x)(tf.ones([2, 2]))
    for kind, function in functions.items():
        used = time.process_time()
        function()
        first[kind] = time.process_time() - used
    for _ in range(rounds):
        for kind, function in functions.items():
            began, used = time.perf_counter(), time.process_time()
            for _ in range(repeats):
                function()
            ended = time.perf_counter() - began, time.process_time() - used
            taken[kind].append(ended)
    medians = {k: np.median(v, axis=0) / repeats for k, v in taken.items()}
    return {k: (*map(float, two), first[k]) for k, two in medians.items()}


def peak(kind: str, name: str, options: Any) -> None:
    """Prints how many MB of memory running a step adds to the process."""
    # This call loads XLA's compiler, which needs about 100 MB in any process, so that the
    # result does not include this memory.
    noise.standard_normals(tf.constant([0, 0], tf.uint64), 1)
    step = step_of(kind, name, options)
    before = largest_memory()
    for _ in range(3):
        step()
    print(json.dumps(largest_memory() - before))


def largest_memory() -> float:
    """Returns this process's peak memory in MB, which `getrusage` may overstate."""
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(
        float(line.split()[1]) / 1024.0 for line in lines if line.startswith("VmHWM")
    )


def measured_peak(kind: str, name: str, options: Any) -> float:
    command = [sys.executable, __file__, "--peak", kind, "--models", name]
    if options.microbatch_size is not None:
        command += ["--microbatch-size", str(options.microbatch_size)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="mlp,cnn,transformer")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--microbatch-size", type=int)
    parser.add_argument("--fit", action="store_true", help="epochs of model.fit")
    parser.add_argument("--steps-per-epoch", type=int, default=20, help="with --fit")
    parser.add_argument("--accuracy", action="store_true", help="with --fit: a metric")
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    options = parser.parse_args()
    names = options.models.split(",")
    if options.peak:
        peak(options.peak, names[0], options)
        return
    print(f"{platform.processor() or platform.machine()}, TensorFlow {tf.__version__}")
    kinds = ("ordinary", *([] if options.fit else ["clipped"]), *MECHANISMS)
    for name in names:
        make = fit_of if options.fit else step_of
        functions = {kind: make(kind, name, options) for kind in kinds}
        repeats = 1 if options.fit else STEPS.get(name, 1)
        seconds = in_turns(functions, repeats, options.rounds)
        for kind in kinds:
            ratios = [a / b for a, b in zip(seconds[kind], seconds["ordinary"])]
            line = (
                f"{name:12s} {kind:11s} seconds={seconds[kind][0]:.4f}  "
                f"wall={ratios[0]:.2f}  cpu={ratios[1]:.2f}  start={ratios[2]:.2f} "
                f"({seconds[kind][2]:.1f} s)"
            )
            if not options.fit:
                line += f"  peak={measured_peak(kind, name, options):.0f} MB"
            print(line, flush=True)


if __name__ == "__main__":
    main()
