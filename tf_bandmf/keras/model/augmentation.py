"""Keras' preprocessing layers and random numbers in `plan.batches(..., map=...)`."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tf_bandmf.keras.compat.keras_objects import takes_training
from tf_bandmf.keras.compat.seeds import seeds_from
from tf_bandmf.sampling.mapped import register_dialect


class KerasDialect:
    """Calls layers on batches of one, and lets generators of seeds follow the example's."""

    def adapt(self, function: Any) -> Callable[..., Any] | None:
        """A layer as a function of one example, or None."""
        if not isinstance(function, keras.layers.Layer):
            return None

        def call(x: Any) -> Any:
            one = tf.nest.map_structure(lambda t: t[None], x)
            if takes_training(function):
                found = function(one, training=True)
            else:
                found = function(one)
            return tf.nest.map_structure(lambda t: tf.convert_to_tensor(t)[0], found)

        return call

    def seeded(self, seed: tf.Tensor) -> contextlib.AbstractContextManager[None]:
        """The n-th seed that is drawn is the example's, with n folded in."""
        numbers = itertools.count()
        return seeds_from(
            lambda: tf.random.experimental.stateless_fold_in(seed, next(numbers))
        )


register_dialect(KerasDialect())
