"""The training of cnn.py in C, for time: less than a fourth of that of Keras on one core.

`tests/benchmarks/test_utility_benchmark.py` shows that its weights are those of
`make_private`, `PrivateOptimizer` and `fit` with the same seeds. Needs a C compiler (GCC
or Clang).
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

HERE = pathlib.Path(__file__).parent
# Not -ffast-math: a library that is linked with it lets the process flush subnormals.
FLAGS = (
    "-O2 -ftree-vectorize -march=native -fassociative-math -fno-signed-zeros "
    "-fno-trapping-math -fno-math-errno -shared -fPIC"
).split()
# Of automatic clipping, as `PrivateOptimizer` has it.
GAMMA = 0.01
# Steps.
_KEEP_EVERY = 60

# Of chosen examples, int64, weights, clip norm, gamma (0: flat clipping) and the sum to
# be written: what adds up clipped gradients.
AddClipped = Callable[[np.ndarray, np.ndarray, float, float, np.ndarray], None]


def compiled(
    source: str, x: np.ndarray, y: np.ndarray, cache: pathlib.Path, frame: int = 0
) -> AddClipped:
    """`clipped_sum` of a C file of this folder on some examples, compiled into `cache`.

    Args:
      x: [examples, height, width, channels].
      y: labels, [examples].
      frame: zeros around each image that the C file wants.

    Raises:
      subprocess.CalledProcessError: if it does not compile.
    """
    library = cache / pathlib.Path(source).with_suffix(".so")
    read = [HERE / source, *HERE.glob("*.h"), pathlib.Path(__file__)]
    changed = max(path.stat().st_mtime for path in read)
    if not library.exists() or library.stat().st_mtime < changed:
        cache.mkdir(parents=True, exist_ok=True)
        compiler = os.environ.get("CC", "cc")
        subprocess.run(
            [compiler, *FLAGS, "-o", str(library), str(HERE / source), "-lm"],
            check=True,
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
    images = np.ascontiguousarray(
        np.pad(x, ((0, 0), (frame, frame), (frame, frame), (0, 0))), np.float32
    )
    labels = np.ascontiguousarray(y, np.int32)

    def add_clipped(
        chosen: np.ndarray, w: np.ndarray, clip: float, gamma: float, total: np.ndarray
    ) -> None:
        function(images, labels, chosen, len(chosen), w, clip, gamma, total)

    return add_clipped


def train(
    plan: tf_bandmf.Plan,
    weights: list[np.ndarray],
    num_examples: int,
    add_clipped: AddClipped,
    *,
    rate: float,
    momentum: float,
    ema_momentum: float,
    automatic: bool,
    seed: int,
    decay: float = 1.0,
    kept: pathlib.Path | None = None,
) -> dict[str, list[np.ndarray]]:
    """SGD with momentum on a plan's batches.

    Args:
      plan: with a test seed, because `seed` is known.
      weights: at the start, as `get_weights()` of the Keras model has them.
      add_clipped: of the same model and the `num_examples` examples.
      rate: the optimizer's, not per unit of clip norm.
      automatic: clip automatically, not flat.
      seed: of batches and noise, for repetition; a run that is to protect somebody
        leaves both to the operating system.
      decay: the factor by which a step shrinks the weights.
      kept: a file from which a run that was stopped goes on, with the same arguments.

    Returns:
      "last" weights and their "moving average".
    """
    w = np.concatenate([value.ravel() for value in weights]).astype(np.float32)
    velocity, total = np.zeros_like(w), np.empty_like(w)
    average, done = w.copy(), 0
    if kept is not None and kept.exists():
        w, velocity, average, (done,) = np.load(kept, allow_pickle=False).values()
    generator = NoiseGenerator(plan.strategy, w.size)
    state = generator.initial_state(NoiseKey.for_testing(seed))
    positions = np.arange(num_examples)
    secret = plan.batches(positions).secret_seed()
    if secret is not None:
        secret = seed.to_bytes(32, "little")
    gamma = GAMMA if automatic else 0.0
    for batch in plan.batches(positions, sampler_seed=secret).indices():
        noise, state = generator.next(state, tf.constant(batch.step, tf.int64))
        if batch.step < done:
            continue
        chosen = np.ascontiguousarray(batch.indices, np.int64)
        add_clipped(chosen, w, plan.l2_norm_clip, gamma, total)
        total += np.float32(plan.noise_stddev) * noise.numpy()
        velocity = momentum * velocity - rate / plan.expected_batch_size * total
        w = decay * w + velocity
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
