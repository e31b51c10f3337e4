"""Replays the random numbers of a layer, example by example.

A layer without a special rule runs a second time, on each example alone, so that its
per-example gradients can be computed. A random layer must then draw the same numbers as
in the forward pass; otherwise, the gradient would belong to a different function. Drawn
numbers depend on the drawn shape, so a draw for a batch cannot be repeated for one of
its examples. Therefore, a random layer also runs on each example alone in the forward
pass, with one seed per example and draw.

The body of a loop is traced once but runs many times, so the iteration number is folded
into the seed. TensorFlow passes this number as the first argument of the body function.

Tests that fail if this breaks: `tests/keras/clipping/test_options.py`, and for loops
`tests/keras/clipping/rules/test_draws_in_loops.py`.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tf_bandmf.keras.compat.graphs import BRANCH_GRAPHS, LOOP_GRAPHS
from tf_bandmf.keras.compat.patching import patched


def _of_this_round(seed: tf.Tensor, outer: Any) -> tf.Tensor:
    """Returns a seed that also depends on the iterations of the loops being traced.

    Args:
      seed: seed of shape [2].
      outer: only loops inside this graph count. If None, all loops that are being
        traced count, including loops outside the current function.

    Raises:
      RuntimeError: if a `tf.function` is being traced within `outer`. All calls of that
        function would have the same seed.
    """
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    while graph is not None and graph is not outer:
        if isinstance(graph, LOOP_GRAPHS):
            folded = tf.random.experimental.stateless_fold_in(
                _narrow(seed), graph.inputs[0]
            )
            seed = tf.cast(folded, seed.dtype)
        elif outer is not None and not isinstance(graph, BRANCH_GRAPHS):
            raise RuntimeError(
                "The model draws random numbers in a `tf.function`, all of whose calls "
                "would draw the same numbers. Do not wrap that code in `tf.function`."
            )
        graph = getattr(graph, "outer_graph", None)
    return seed


@contextlib.contextmanager
def used_generators() -> Iterator[list[keras.random.SeedGenerator]]:
    """Provides a list to which each draw appends the seed generator that it uses."""
    generators: list[keras.random.SeedGenerator] = []

    def noted(draw: Any, generator: Any, *args: Any, **kwargs: Any) -> Any:
        generators.append(generator)
        return draw(generator, *args, **kwargs)

    with patched(keras.random.SeedGenerator, "next", noted):
        yield generators


def seeds_from(
    draw: Callable[[], tf.Tensor], graph: Any = None
) -> contextlib.AbstractContextManager[None]:
    """Returns a context in which Keras' seed generators return seeds from `draw`.

    The state of the generators does not change. In loops, the iteration number is folded
    into each seed.

    Args:
      draw: function that returns a seed of shape [2]; called once per traced draw.
      graph: if given, a draw in a `tf.function` that is traced within this graph raises
        RuntimeError.
    """

    def seed(*_: Any, **__: Any) -> tf.Tensor:
        return _of_this_round(draw(), graph)

    return patched(keras.random.SeedGenerator, "next", seed)


def _narrow(seed: tf.Tensor) -> tf.Tensor:
    """Returns the numbers of a seed modulo 2^31 - 1, as int32."""
    return tf.cast(tf.math.floormod(seed, tf.cast(2**31 - 1, seed.dtype)), tf.int32)


def per_example_seeds(seed: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """Derives one seed per example from a drawn seed.

    Args:
      seed: seed of shape [2], of an integer dtype.
      count: number of examples B.

    Returns:
      Seeds of shape [B, 2] and the dtype of `seed`.
    """
    drawn = tf.random.stateless_uniform(
        [count, 2], _narrow(seed), minval=0, maxval=2**31 - 1, dtype=tf.int32
    )
    return tf.cast(drawn, seed.dtype)
