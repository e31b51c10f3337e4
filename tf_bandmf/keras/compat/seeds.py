"""Replays the random numbers of a layer, example by example.

The fallback rule runs a layer a second time, on each example alone. A random layer must
then draw the same numbers as in the forward pass; otherwise, the gradient would belong
to a different function. Draws depend on the drawn shape, so they cannot be repeated for
one example of a batch. Instead, layers that draw run on each example alone in the
forward pass, too, with one seed per example and draw.

The body of a loop is traced once but runs many times, so the iteration number is folded
into the seed. TensorFlow passes this number as the first argument of the body function.

Tests that fail if it breaks: `tests/keras/clipping/test_options.py`, and for loops
`tests/keras/clipping/rules/test_draws_in_loops.py`.
"""

import collections
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tf_bandmf.keras.compat.graphs import BRANCH_GRAPHS, LOOP_GRAPHS
from tf_bandmf.keras.compat.patching import patched


class DrawsInFunction(RuntimeError):
    """Raised for a draw in a `tf.function`, since its single trace has one seed."""


def _inner_graphs(outer: Any) -> list[Any]:
    """Returns the loop and branch graphs that are being traced, innermost first.

    Args:
      outer: only graphs inside of this one are returned; None for all graphs that are
        being traced, including those of functions.

    Raises:
      DrawsInFunction: if a function is being traced within `outer`.
    """
    inside: list[Any] = []
    if tf.executing_eagerly():
        return inside
    graph = tf.compat.v1.get_default_graph()
    while graph is not None and graph is not outer:
        if outer is not None and not isinstance(graph, LOOP_GRAPHS + BRANCH_GRAPHS):
            raise DrawsInFunction(
                "It draws random numbers within a `tf.function`, which is traced once. "
                "Call the Python function itself, not a `tf.function` of it."
            )
        inside.append(graph)
        graph = getattr(graph, "outer_graph", None)
    return inside


def _of_this_round(seed: tf.Tensor, outer: Any) -> tf.Tensor:
    """Folds the iteration number of each loop that is being traced into a seed."""
    for graph in _inner_graphs(outer):
        if isinstance(graph, LOOP_GRAPHS):
            folded = tf.random.experimental.stateless_fold_in(
                _narrow(seed), graph.inputs[0]
            )
            seed = tf.cast(folded, seed.dtype)
    return seed


def _patched(
    replacement: Callable[..., Any],
) -> contextlib.AbstractContextManager[Any]:
    return patched(keras.random.SeedGenerator, "next", replacement)


@contextlib.contextmanager
def used_generators() -> Iterator[list[keras.random.SeedGenerator]]:
    """Collects the seed generators from which layers draw."""
    generators: list[keras.random.SeedGenerator] = []

    def noted(draw: Any, generator: Any, *args: Any, **kwargs: Any) -> Any:
        generators.append(generator)
        return draw(generator, *args, **kwargs)

    with _patched(noted):
        yield generators


@contextlib.contextmanager
def draws_noted() -> Iterator[list[keras.random.SeedGenerator]]:
    """Collects the seed generators from which layers would draw, one for each draw.

    The generators keep their state: each draw gets a seed of zeros.
    """
    generators: list[keras.random.SeedGenerator] = []

    def noted(_: Any, generator: Any, *args: Any, **kwargs: Any) -> Any:
        del args, kwargs
        generators.append(generator)
        return tf.zeros([2], generator.state.dtype)

    with _patched(noted):
        yield generators


@contextlib.contextmanager
def replayed_draws(seeds: list[tf.Tensor]) -> Iterator[None]:
    """Makes Keras' seed generators return the given seeds in this order.

    In loops, the iteration number is folded into each seed.

    Args:
      seeds: one seed of shape [2] per draw.

    Raises:
      IndexError: if there are more draws than seeds.
      DrawsInFunction: at a draw within a `tf.function` that is traced in this context.
    """
    remaining = collections.deque(seeds)
    with seeds_from(remaining.popleft, tf.compat.v1.get_default_graph()):
        yield


@contextlib.contextmanager
def seeds_from(draw: Callable[[], tf.Tensor], graph: Any = None) -> Iterator[None]:
    """Makes Keras' seed generators return the seeds of a function.

    In loops, the iteration number is folded into each seed.

    Args:
      draw: function that returns a seed of shape [2]; called once per traced draw.
      graph: if given, a `tf.function` that is traced within this graph must not draw.

    Raises:
      DrawsInFunction: if a `tf.function` that is traced within `graph` draws.
    """
    with _patched(lambda *_, **__: _of_this_round(draw(), graph)):
        yield


def _narrow(seed: tf.Tensor) -> tf.Tensor:
    """The seed as int32."""
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
