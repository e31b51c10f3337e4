"""Replay of a layer's random numbers, example by example.

The generic rule runs a layer a second time, alone on each example. A random layer
must then draw what it drew in the forward pass, or its gradient belongs to another
function than the loss. A draw depends on the shape that is drawn, so it cannot be
repeated for one example of a batch. Instead a layer that draws is run example by
example in the forward pass too, with one seed per example and draw.

What tells that it broke: `tests/keras/clipping/test_clipped_gradient_sums.py`.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tf_bandmf.keras.compat.patching import patched

_STATE = threading.local()


def _next(
    original: Callable[..., Any],
    generator: keras.random.SeedGenerator,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """In the place of `SeedGenerator.next`, of a thread that asks for it."""
    replay = getattr(_STATE, "replay", None)
    if replay is not None:
        return replay()
    generators = getattr(_STATE, "generators", None)
    if generators is not None:
        generators.append(generator)
    seed = original(generator, *args, **kwargs)
    draws = getattr(_STATE, "draws", None)
    if draws is not None:
        draws.append(seed)
    return seed


def _patched() -> contextlib.AbstractContextManager[Any]:
    return patched(keras.random.SeedGenerator, "next", _next)


@contextlib.contextmanager
def used_generators() -> Iterator[list[keras.random.SeedGenerator]]:
    """Collects the seed generators that are drawn from."""
    generators: list[keras.random.SeedGenerator] = []
    previous = getattr(_STATE, "generators", None)
    with _patched():
        _STATE.generators = generators
        try:
            yield generators
        finally:
            _STATE.generators = previous


@contextlib.contextmanager
def recorded_draws() -> Iterator[list[tf.Tensor]]:
    """Collects the seeds that layers draw from Keras' seed generators."""
    draws: list[tf.Tensor] = []
    previous = getattr(_STATE, "draws", None)
    with _patched():
        _STATE.draws = draws
        try:
            yield draws
        finally:
            _STATE.draws = previous


@contextlib.contextmanager
def replayed_draws(seeds: list[tf.Tensor]) -> Iterator[None]:
    """Makes Keras' seed generators return the given seeds, in this order.

    Args:
      seeds: one seed of shape [2] per draw.

    Yields:
      Nothing.

    Raises:
      RuntimeError: if there are more draws than seeds.
    """
    remaining = iter(seeds)

    def replay() -> tf.Tensor:
        try:
            return next(remaining)
        except StopIteration:
            raise RuntimeError(
                "A layer drew more random numbers when it was run again than in "
                "the forward pass; for per-example gradients a layer must make the "
                "same number of draws in every call."
            ) from None

    with seeds_from(replay):
        yield


@contextlib.contextmanager
def seeds_from(draw: Callable[[], tf.Tensor]) -> Iterator[None]:
    """Makes Keras' seed generators return what a function returns, of shape [2]."""
    previous = getattr(_STATE, "replay", None)
    with _patched():
        _STATE.replay = draw
        try:
            yield
        finally:
            _STATE.replay = previous


def per_example_seeds(seed: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """Derives one seed per example from a drawn seed.

    Args:
      seed: seed of shape [2], of an integer dtype.
      count: number of examples B.

    Returns:
      Seeds of shape [B, 2] and the dtype of `seed`.
    """
    narrow = tf.cast(tf.math.floormod(seed, tf.cast(2**31 - 1, seed.dtype)), tf.int32)
    drawn = tf.random.stateless_uniform(
        [count, 2], narrow, minval=0, maxval=2**31 - 1, dtype=tf.int32
    )
    return tf.cast(drawn, seed.dtype)
