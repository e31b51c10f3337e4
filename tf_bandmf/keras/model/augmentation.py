"""Keras' preprocessing layers and random numbers in `plan.batches(..., map=...)`."""

from __future__ import annotations

import contextlib
import inspect
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import keras
import tensorflow as tf

from tf_bandmf.keras.compat.keras_objects import adapted_layers, takes_training
from tf_bandmf.keras.compat.seeds import seeds_from
from tf_bandmf.sampling.mapped import register_dialect


def of_adapted(used: Iterable[Any]) -> tuple[str, ...]:
    """What the statement says of adapted layers, if some are among what is used."""
    layers = [one for one in used if isinstance(one, keras.layers.Layer)]
    found = [inner for layer in layers for inner in adapted_layers(layer)]
    if not found:
        return ()
    names = sorted({f"{type(layer).__name__} {layer.name!r}" for layer in found})
    return (
        f"Statistics or vocabularies of {', '.join(names)} were computed before the run: "
        f"where that was done on private data, no noise covers it.",
    )


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

    def remarks(self, function: Any) -> tuple[str, ...]:
        """Names the layers that were adapted, of a layer or those that a function uses."""
        used = [function]
        if inspect.isfunction(function):
            try:
                names = inspect.getclosurevars(function)
            except ValueError:  # of a name that has no value yet
                return ()
            used = [*names.nonlocals.values(), *names.globals.values()]
        return of_adapted(used)

    def seeded(self, seed: tf.Tensor) -> contextlib.AbstractContextManager[None]:
        """The n-th seed that is drawn is the example's, with n folded in."""
        numbers = itertools.count()
        return seeds_from(
            lambda: tf.random.experimental.stateless_fold_in(seed, next(numbers))
        )


register_dialect(KerasDialect())
