"""The training of cnn.py in C, for time: less than a fourth of that of Keras on one core.

`tests/keras/test_utility_benchmark.py` shows that its weights are those of `make_private`,
`PrivateOptimizer` and `fit` with the same seeds. Needs a C compiler (GCC or Clang).
"""

from __future__ import annotations

import ctypes
import os
import pathlib
import subprocess
from collections.abc import Callable

import numpy as np
import tensorflow as tf

import tf_bandmf
from tf_bandmf.noise import NoiseGenerator
from tf_bandmf.noise.keys import NoiseKey

SOURCE = pathlib.Path(__file__).with_name("network.c")
# Not -ffast-math: a library that is linked with it lets the process flush subnormals.
FLAGS = (
    "-O2 -ftree-vectorize -march=native -fassociative-math -fno-signed-zeros "
    "-fno-trapping-math -fno-math-errno -shared -fPIC"
).split()
# Of automatic clipping, as `PrivateOptimizer` has it.
GAMMA = 0.01
# Steps.
_KEEP_EVERY = 60


def clipped_sum(cache: pathlib.Path) -> Callable[..., None]:
    """`clipped_sum` of network.c, compiled into `cache`.

    Raises:
      subprocess.CalledProcessError: if it does not compile.
    """
    library = cache / "network.so"
    changed = max(path.stat().st_mtime for path in (SOURCE, pathlib.Path(__file__)))
    if not library.exists() or library.stat().st_mtime < changed:
        cache.mkdir(parents=True, exist_ok=True)
        compiler = os.environ.get("CC", "cc")
        subprocess.run(
            [compiler, *FLAGS, "-o", str(library), str(SOURCE), "-lm"], check=True
        )
    function = ctypes.CDLL(str(library.resolve())).clipped_sum
    floats = np.ctypeslib.ndpointer(np.float32, flags="C_CONTIGUOUS")
    function.argtypes = [
        floats,
        np.ctypeslib.ndpointer(np.int32, flags="C_CONTIGUOUS"),
        np.ctypeslib.ndpointer(np.int64, flags="C_CONTIGUOUS"),
        ctypes.c_int64,
        floats,
        ctypes.c_float,
        ctypes.c_float,
        floats,
    ]
    function.restype = None
    return function


def train(
    plan: tf_bandmf.Plan,
    weights: list[np.ndarray],
    x: np.ndarray,
    y: np.ndarray,
    *,
    rate: float,
    momentum: float,
    ema_momentum: float,
    automatic: bool,
    seed: int,
    cache: pathlib.Path,
    kept: pathlib.Path | None = None,
) -> dict[str, list[np.ndarray]]:
    """SGD with momentum on a plan's batches.

    Args:
      plan: with a test seed, because `seed` is known.
      weights: at the start, as `cnn.build_model().get_weights()` has them.
      x: float32, [examples, 28, 28, 1].
      y: int32, [examples].
      rate: the optimizer's, not per unit of clip norm.
      automatic: clip automatically, not flat.
      seed: of batches and noise, for repetition; a run that is to protect somebody
        leaves both to the operating system.
      cache: where the compiled library is kept.
      kept: a file from which a run that was stopped goes on, with the same arguments.

    Returns:
      "last" weights and their "moving average".
    """
    add_clipped = clipped_sum(cache)
    images = np.pad(x[..., 0], ((0, 0), (2, 2), (2, 2))).astype(np.float32)
    labels = np.ascontiguousarray(y, np.int32)
    w = np.concatenate([value.ravel() for value in weights]).astype(np.float32)
    velocity, total = np.zeros_like(w), np.empty_like(w)
    average, done = w.copy(), 0
    if kept is not None and kept.exists():
        w, velocity, average, (done,) = np.load(kept, allow_pickle=False).values()
    generator = NoiseGenerator(plan.strategy, w.size)
    state = generator.initial_state(NoiseKey.for_testing(seed))
    positions = np.arange(len(y))
    secret = plan.batches(positions).secret_seed()
    if secret is not None:
        secret = seed.to_bytes(32, "little")
    gamma = GAMMA if automatic else 0.0
    for batch in plan.batches(positions, sampler_seed=secret).indices():
        noise, state = generator.next(state, tf.constant(batch.step, tf.int64))
        if batch.step < done:
            continue
        chosen = np.ascontiguousarray(batch.indices, np.int64)
        clip = plan.l2_norm_clip
        add_clipped(images, labels, chosen, len(chosen), w, clip, gamma, total)
        total += np.float32(plan.noise_stddev) * noise.numpy()
        velocity = momentum * velocity - rate / plan.expected_batch_size * total
        w = w + velocity
        # As Keras: the average begins with the weights after the first step.
        memory = ema_momentum if batch.step > 0 else 0.0
        average = memory * average + (1.0 - memory) * w
        if kept is not None and (batch.step + 1) % _KEEP_EVERY == 0:
            _keep(kept, w=w, velocity=velocity, average=average, done=[batch.step + 1])
    ends = np.cumsum([value.size for value in weights])[:-1]
    return {
        name: [
            part.reshape(value.shape)
            for part, value in zip(np.split(flat, ends), weights, strict=True)
        ]
        for name, flat in (("last", w), ("moving average", average))
    }


def _keep(path: pathlib.Path, **arrays: object) -> None:
    """Writes a file as a whole."""
    unfinished = path.with_suffix(".unfinished.npz")
    np.savez(unfinished, **arrays)
    unfinished.replace(path)
