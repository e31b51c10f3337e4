"""The XLA programs of this project, as TensorFlow functions with arguments of their shapes.

Each has the number of bytes that it must write and read at least: its result, vectors that
are kept, weights and data.
"""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Iterator
from typing import Any, Callable, NamedTuple

import numpy as np
import tensorflow as tf

from tf_bandmf import matrices, noise, strategies, workloads
from tf_bandmf.analysis import gram_recursion, numbers
from tf_bandmf.noise.keys import NoiseKey
from tf_bandmf.noise.normals import BLOCK, compiled_pairs, weighted_normals
from tf_bandmf.optimize import banded, lbfgs

NUM_STEPS = 1000
SIZES = (10**6, 10**8, 10**9)
STEP_SIZES = (10**7, 10**8)
NETWORKS = ("mlp", "cnn", "transformer", "resnet", "lora")
# Batches of which no more than a small part fits a TPU's vector memory.
LARGE_BATCHES = {"cnn": 1024, "transformer": 512, "resnet": 256, "lora": 128}
GRAM_BANDS, LBFGS_STEPS = 16, 2**14


class Program(NamedTuple):
    """A function that XLA compiles.

    Attributes:
      function: of tensors.
      specs: of its arguments.
      least_bytes: None where nobody knows.
      beside: the program that its temporary memory is compared with, if not the output.
      kinds: of devices.
    """

    function: Callable[..., Any]
    specs: list[tf.TensorSpec]
    least_bytes: int | None
    beside: str | None = None
    kinds: tuple[str, ...] = ("TPU", "GPU")


def programs(wanted: str = "") -> Iterator[tuple[str, Program]]:
    """All whose name contains `wanted`; made one after the other."""
    for name, make in _makers().items():
        if wanted in name:
            yield name, make()


def _makers() -> dict[str, Callable[[], Program]]:
    makers: dict[str, Callable[[], Program]] = {}
    for size in SIZES:
        for terms in (1, 2, 4):
            name = f"normals, {terms} terms, d = {size:.0e}"
            makers[name] = lambda s=size, t=terms: _normals(s, t, 2)
        for terms in (1, 2):
            alone = f"normals alone on a GPU, {terms} terms, d = {size:.0e}"
            makers[alone] = lambda s=size, t=terms: _pairs(s, t)
    makers["normals, 16 terms, d = 1e+07"] = lambda: _normals(10**7, 16, 2)
    for terms in (1, 2, 4):
        name = f"normals of ChaCha20, {terms} terms, d = 1e+07"
        makers[name] = lambda t=terms: _normals(10**7, t, 5)
    prefix = workloads.prefix_sum(NUM_STEPS)
    families = {
        "DP-SGD": (lambda: strategies.identity(NUM_STEPS), False),
        "lambda_cgd": (lambda: strategies.lambda_cgd(NUM_STEPS, 0.9), False),
        "lambda_cgd, normals kept": (
            lambda: strategies.lambda_cgd(NUM_STEPS, 0.9),
            True,
        ),
        "bisr, 4 bands": (lambda: strategies.bisr(prefix, 4), False),
        "bisr, 16 bands": (lambda: strategies.bisr(prefix, 16), False),
        "banded, 16 bands": (lambda: strategies.bsr(prefix, 16), False),
        "blt, 3 buffers": (
            lambda: strategies.Strategy(
                "blt",
                matrices.BufferedToeplitz([0.99, 0.8, 0.3], [0.9, 0.6, 0.1], NUM_STEPS),
            ),
            False,
        ),
    }
    for size in STEP_SIZES:
        for name, (make, kept) in families.items():
            makers[f"step of {name}, d = {size:.0e}"] = lambda s=size, m=make, k=kept: (
                _step(m(), s, k)
            )
    for dtype in ("float32", "mixed_bfloat16"):
        for network, size in [(n, None) for n in NETWORKS] + [*LARGE_BATCHES.items()]:
            batch = f" of {size} examples" if size else ""
            ordinary = f"ordinary gradients{batch}, {network}, {dtype}"
            makers[ordinary] = lambda n=network, t=dtype, s=size: _gradients(
                n, t, s, None
            )
            makers[f"clipped gradients{batch}, {network}, {dtype}"] = (
                lambda n=network, t=dtype, s=size, o=ordinary: _gradients(n, t, s, o)
            )
    for n in (2**14, 2**17, 2**20):
        name = f"error of {GRAM_BANDS} bands and its gradient, n = {n}"
        makers[name] = lambda n=n: _gram(n, GRAM_BANDS)
        makers[f"{name}, in pairs of float32"] = lambda n=n: _pairs_of_float32(
            n, GRAM_BANDS
        )
    name = f"L-BFGS, {GRAM_BANDS} bands, n = {LBFGS_STEPS}"
    makers[name] = lambda: _lbfgs(LBFGS_STEPS, GRAM_BANDS)
    return makers


def _normals(size: int, terms: int, key_words: int) -> Program:
    def function(keys: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        return weighted_normals(keys, weights, size)

    specs = [
        tf.TensorSpec([terms, key_words], tf.uint64),
        tf.TensorSpec([terms], tf.float32),
    ]
    return Program(function, specs, 4 * size, kinds=("GPU",))


def _pairs(size: int, terms: int) -> Program:
    """What runs on a GPU where the step itself is not one XLA program."""
    blocks = -(-size // BLOCK)
    specs = [
        tf.TensorSpec([terms, 2], tf.uint64),
        tf.TensorSpec([terms], tf.float32),
        tf.TensorSpec([], tf.uint64),
        tf.TensorSpec([terms, blocks], tf.float32),
    ]
    function = compiled_pairs(blocks, terms, 2).__wrapped__
    return Program(function, specs, 4 * size, kinds=("GPU",))


def _step(strategy: strategies.Strategy, size: int, kept: bool) -> Program:
    """Noise of a step, and what is kept of it."""
    generator = noise.NoiseGenerator(strategy, size, keep_normals=kept)
    keys = generator.step_keys(NoiseKey.for_testing(0))
    vectors = generator.memory_vectors

    def function(
        keys: tf.Tensor, buffer: tf.Tensor, step: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        row, updates = generator.row(keys, buffer, step)
        return (row, *(update.values for update in updates))

    specs = [
        tf.TensorSpec(keys.shape, tf.uint64),
        tf.TensorSpec([vectors, size], tf.float32),
        tf.TensorSpec([], tf.int64),
    ]
    # Read all that is kept; write a row, and what changes of it.
    is_buffered = isinstance(strategy.matrix, matrices.BufferedToeplitz)
    changed = vectors if is_buffered else min(vectors, 1)
    least = 4 * size * (1 + vectors + changed)
    return Program(function, specs, least, kinds=("GPU",))


def _gradients(
    network: str, dtype: str, size: int | None, ordinary: str | None
) -> Program:
    """Gradients of a batch: clipped, if `ordinary` names what they are held against."""
    import keras

    sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
    import keras_steps

    from tf_bandmf.keras import make_private
    from tf_bandmf.keras.clipping import clipped_gradient_sums

    # As private models demand, and so that both are compiled the same way.
    tf.config.experimental.enable_tensor_float_32_execution(False)
    keras.config.set_dtype_policy(dtype)
    model = keras_steps.MODELS[network]()
    if ordinary is not None:
        make_private(model)
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    size = size or keras_steps.BATCH_SIZES[network]
    data = keras_steps.data(network, size)

    def clipped(*arrays: tf.Tensor) -> Any:
        x, y = tf.nest.pack_sequence_as(data, arrays)
        return clipped_gradient_sums(model, x, y, l2_norm_clip=1.0).sums

    def plain(*arrays: tf.Tensor) -> Any:
        x, y = tf.nest.pack_sequence_as(data, arrays)
        with tf.GradientTape() as tape:
            loss = model.compute_loss(x, y, model(x, training=True))
        return tape.gradient(loss, [v.value for v in model.trainable_variables])

    specs = [
        tf.TensorSpec(np.shape(a), tf.as_dtype(np.asarray(a).dtype))
        for a in tf.nest.flatten(data)
    ]
    function = plain if ordinary is None else clipped
    return Program(function, specs, None, ordinary)


def _gram(num_steps: int, bands: int) -> Program:
    def function(rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(rows)
            error = tf.reduce_sum(gram_recursion.inverse_row_norms(rows))
        return error, tape.gradient(error, rows)

    specs = [tf.TensorSpec([num_steps, bands], tf.float64)]
    return Program(function, specs, 2 * 8 * num_steps * bands)


def _pairs_of_float32(num_steps: int, bands: int) -> Program:
    """As `_gram`, where a device has no float64: `optimized_banded(device="TPU:0")`."""
    engine = gram_recursion.engine_of(num_steps, bands)

    def function(high: tf.Tensor, low: tf.Tensor) -> Any:
        variance, kept = engine.variance(numbers.Pair(high, low), None)
        return variance, engine.gradient(
            kept, numbers.Pair(tf.ones([num_steps]), tf.zeros([num_steps]))
        )

    spec = tf.TensorSpec([num_steps, bands], tf.float32)
    least = 2 * 8 * num_steps * bands
    return Program(function, [spec, spec], least, kinds=("TPU",))


def _lbfgs(num_steps: int, bands: int) -> Program:
    """Twenty iterations of the optimizer of strategies."""
    workload = workloads.prefix_sum(num_steps)
    problem = banded.Problem(workload, bands, None, np.ones(num_steps))
    size = (bands - 1) * num_steps

    def loss(position: tf.Tensor) -> tf.Tensor:
        errors = problem.errors(problem.columns(position))
        return num_steps * tf.math.log(tf.reduce_mean(errors))

    def function(position: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        found = lbfgs.tfp_optimizer().lbfgs_minimize(
            lbfgs.value_and_gradient(loss, size), position, max_iterations=20
        )
        return found.position, found.objective_value

    return Program(function, [tf.TensorSpec([size], tf.float64)], None)
