"""Notices weights that something other than the private step has changed.

A plain model that shares layers with a private one can train them without noise; an
assignment between two steps can change them, too. After each private step, a digest of
all of the model's weights is kept, and the next step takes place only if they still
have it. The same holds for the state of the inner optimizer (moments, averages), which
decides the next weights and the scales of coordinates.

The digest covers every bit. It is FarmHash64 where weights are on the host (9 GB/s on
one core). Elsewhere it is a sum of products with numbers that depend on the place,
modulo 2^64, which XLA computes in one pass where the weights are: a weight never
travels to the host. The digest guards against mistakes, not against somebody who
searches for weights with the same digest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

import keras
import numpy as np
import tensorflow as tf

from tf_bandmf.keras.compat.averages import around_swaps, each_callback
from tf_bandmf.keras.run.secrets import of_replica, per_replica
from tf_bandmf.noise.devices import device_kind
from tf_bandmf.noise.shared import shared_function

CHANGED = (
    "The weights are not those that the last private step of this run left: something "
    "else changed them (a plain model that shares them was trained, weights were loaded or "
    "assigned, a callback wrote them, as EarlyStopping(restore_best_weights=True) does). "
    "If private data had a part in it, the guarantee is gone: go back to weights of the "
    "run. If not, say so with model.optimizer.vouch_for_weights('what changed them'), "
    "which the statement of model.optimizer.statement() will name."
)
STATE_CHANGED = (
    "The state of the inner optimizer (moments, averages) is not that which the last "
    "private step of this run left: something else changed it (a callback assigned it, it "
    "was loaded or reset). If private data had a part in it, the guarantee is gone. If "
    "not, say so with model.optimizer.vouch_for_weights('what changed it'), which the "
    "statement of model.optimizer.statement() will name."
)
# Odd numbers without pattern: 2^64 / golden ratio, and those of splitmix64.
_FACTORS = tuple(
    int(np.uint64(value).astype(np.int64))
    for value in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
# Elements of weights on the host that are copied side by side, if they have one shape.
_SMALL = 16_384
_INTEGERS = {1: tf.uint8, 2: tf.uint16, 4: tf.int32, 8: tf.int64}


class WeightsSeal:
    """The digest of a model's weights after the last private step.

    Nothing tracks it, and no file holds it: a resumed run takes the digest of weights
    that its private state file knows. Each replica has a digest of its own copies.

    Args:
      optimizer_state: gives the variables of the inner optimizer that only its steps
        change, in the same order each time.
    """

    __slots__ = ("_optimizer_state", "_states", "_weights")

    def __init__(self, optimizer_state: Callable[[], Sequence[Any]] = tuple) -> None:
        with tf.init_scope():
            # Whether there are digests, and the digests.
            self._states = per_replica(tf.zeros([3], tf.int64))
        self._optimizer_state = optimizer_state
        self._weights: tuple[Any, ...] = ()

    # In a custom loop, AutoGraph would convert the digests, which takes a second.
    @tf.autograph.experimental.do_not_convert
    def digest_if_holds(self, weights: Sequence[Any]) -> tuple[tf.Tensor, tf.Tensor]:
        """The weights' digest, int64 scalar, and whether the last step left them so.

        Args:
          weights: Keras variables, in the same order each time.
        """
        return self._compared(1, weights)

    @tf.autograph.experimental.do_not_convert
    def digest_if_state_holds(self) -> tuple[tf.Tensor, tf.Tensor]:
        """As `digest_if_holds`, for the optimizer's state."""
        return self._compared(2, self._optimizer_state())

    def _compared(
        self, entry: int, variables: Sequence[Any]
    ) -> tuple[tf.Tensor, tf.Tensor]:
        state, digest = of_replica(self._states).value(), digest_of(variables)
        parts = tf.unstack(state, 3)
        return digest, tf.equal(parts[0], 0) | tf.equal(parts[entry], digest)

    @tf.autograph.experimental.do_not_convert
    def renew(self, weights: Sequence[Any]) -> Any:
        """Takes the digests; after the step's last change of the weights."""
        self._weights = tuple(weights)
        return of_replica(self._states).assign(self._now(), read_value=False)

    def close(self, weights: Sequence[Any]) -> None:
        """Takes the digests of the weights that a run is resumed with; not in a step."""
        self._weights = tuple(weights)
        now = self._now()
        for state in self._states:
            state.assign(now)

    def _now(self) -> tf.Tensor:
        digests = digest_of(self._weights), digest_of(self._optimizer_state())
        return tf.stack([tf.constant(1, tf.int64), *digests])

    def open(self) -> None:
        """Accepts any weights at the next step; not within one."""
        for state in self._states:
            state.assign(tf.zeros([3], tf.int64))

    def through(self, change: Callable[[], Any]) -> Any:
        """Lets the library itself change weights between steps, such as by averages.

        If something else had changed them before, the next step still notices.
        """
        was_whole = (
            bool(self._weights)
            and bool(self.digest_if_holds(self._weights)[1])
            and bool(self.digest_if_state_holds()[1])
        )
        result = change()
        if was_whole and bool(self._states[0][0] == 1):
            self.close(self._weights)
        return result


def let_average(callbacks: Any, run: Callable[[], Any]) -> None:
    """Lets `keras.callbacks.SwapEMAWeights` swap weights of the run for their averages.

    Both are functions of noisy gradients. Keras swaps by adding and subtracting, so the
    weights differ in their last bits afterwards. `run` returns the run at that time.
    """
    for callback in each_callback(callbacks):
        if not isinstance(callback, keras.callbacks.SwapEMAWeights):
            continue

        def through(swap: Callable[[], Any]) -> Any:
            found = run()
            return found.seal.through(swap) if found.has_begun else swap()

        around_swaps(callback, through)


def digest_of(weights: Sequence[Any]) -> tf.Tensor:
    """A digest of all bits of Keras variables, int64 scalar."""
    if not weights:
        return tf.constant(0, tf.int64)
    values = [tf.convert_to_tensor(weight.value) for weight in weights]
    # In a graph the device of a value is not known yet.
    if device_kind() != "CPU":
        return _device_digest(values)
    # A step has four of these, and tracing takes its time for each operation.
    with tf.device("/CPU:0"):
        constants = tf.constant([1, -1]), tf.constant("farmhash64")
    digests = []
    alike: dict[Any, list[tf.Tensor]] = {}
    for value in values:
        if _is_small(value):
            alike.setdefault((tuple(value.shape), value.dtype), []).append(value)
        else:
            digests.append(_host_digest(value, *constants))
    with tf.device("/CPU:0"):
        for same in alike.values():
            together = tf.stack(same) if len(same) > 1 else same[0]
            digests.append(_host_digest(together, *constants))
        digest = _host_digest(tf.concat(digests, axis=0), *constants)
        return tf.reshape(tf.bitcast(digest, tf.int64), [])


def _is_small(value: tf.Tensor) -> bool:
    size = value.shape.num_elements()
    return value.dtype.is_floating and size is not None and size <= _SMALL


def _host_digest(value: tf.Tensor, row: tf.Tensor, method: tf.Tensor) -> tf.Tensor:
    """Eight bytes, uint8, shape [1, 8]; `row` is the shape [1, -1]."""
    with tf.device("/CPU:0"):
        data = tf.raw_ops.Reshape(tensor=value, shape=row)
        return tf.raw_ops.Fingerprint(data=data, method=method)


@shared_function(jit_compile=True, reduce_retracing=False)
def _device_digest(values: Sequence[tf.Tensor]) -> tf.Tensor:
    """int64 scalar: a sum of the values' sums."""
    digests = tf.stack([_sum_of_products(value) for value in values])
    return _sum_of_products(digests)


def _sum_of_products(value: tf.Tensor) -> tf.Tensor:
    """Sum over the words of word times a number that is mixed from the word's place."""
    flat = tf.reshape(value, [-1])
    if flat.dtype == tf.bool:
        flat = tf.cast(flat, tf.int32)
    words = tf.cast(tf.bitcast(flat, _INTEGERS[flat.dtype.size]), tf.int64)
    place = tf.range(1, tf.size(flat, tf.int64) + 1, dtype=tf.int64)
    for factor in _FACTORS:
        place *= tf.constant(factor, tf.int64)
        place = tf.bitwise.bitwise_xor(
            place, tf.bitwise.right_shift(place, tf.constant(29, tf.int64))
        )
    odd = tf.bitwise.bitwise_or(place, tf.constant(1, tf.int64))
    return tf.reduce_sum(words * odd)
