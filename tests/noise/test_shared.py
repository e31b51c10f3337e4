"""A function shared by several graphs does not keep these graphs alive."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_bandmf.noise.shared import shared_function


def doubled(value: tf.Tensor) -> tf.Tensor:
    return value + value


def forgets_its_caller(function: Callable[..., Any]) -> bool:
    """Returns whether a graph that calls the function is freed after its last use."""

    @tf.function(autograph=False)
    def caller(value: tf.Tensor) -> tf.Tensor:
        tf.compat.v1.add_to_collection("a collection", value)
        return function(value)

    value = tf.constant([1.0, 2.0])
    tf.debugging.assert_equal(caller(value), 2 * value)
    graph = weakref.ref(caller.get_concrete_function(value).graph)
    del caller
    gc.collect()
    return graph() is None


def test_the_graph_of_a_caller_is_forgotten():
    assert forgets_its_caller(shared_function(doubled))
    assert forgets_its_caller(shared_function(doubled, jit_compile=True))
