"""What the replicas of a run share: the key, and the noisy mean of the gradients."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Callable

import tensorflow as tf

from tf_bandmf.keras.run.secrets import replica_id
from tf_bandmf.noise import NoiseGenerator
from tf_bandmf.noise.keys import NoiseKey
from tf_bandmf.noise.shared import shared_function


class NoisyMean:
    """The all-reduced mean of clipped gradients; each replica adds its shard of noise.

    Args:
      generator: of the run, with as many shards as there are replicas.
    """

    def __init__(self, generator: NoiseGenerator) -> None:
        self._generator = generator

    def __call__(
        self, flat: tf.Tensor, part: tf.Tensor, stddev: float, batch_size: float
    ) -> tf.Tensor:
        """The same noisy mean on every replica, float32, shape [num_parameters].

        Args:
          flat: sum of this replica's clipped gradients, shape [num_parameters]; what
            comes after them is ignored.
          part: this replica's shard of the noise, shape [shard_size].
          stddev: of the noise.
          batch_size: the public constant to divide by.
        """
        shards, size = self._generator.num_shards, self._generator.shard_size
        if shards == 1:
            return _on_one_replica(stddev, batch_size)(flat, part)
        # Each replica adds its shard of the noise to its own sum: the noisy sum is what
        # they exchange.
        flat = flat[: self._generator.num_parameters]
        padded = tf.pad(flat, [[0, shards * size - self._generator.num_parameters]])
        rows = tf.reshape(padded, [shards, size])
        rows = tf.tensor_scatter_nd_add(rows, [[replica_id()]], stddev * part[None])
        total = tf.reshape(rows, [-1])[: self._generator.num_parameters]
        replicas = tf.distribute.get_replica_context()
        return replicas.all_reduce(tf.distribute.ReduceOp.SUM, total) / batch_size

    def of_pieces(
        self,
        pieces: Sequence[tf.Tensor],
        noise: tf.Tensor,
        stddev: float,
        batch_size: float,
    ) -> list[tf.Tensor]:
        """The same numbers, on one replica, in the pieces that the sum is in.

        Args:
          pieces: of the sum, one after the other; what comes after `num_parameters`
            numbers is ignored.
          noise: of at least `num_parameters` numbers.
          stddev: of the noise.
          batch_size: the public constant to divide by.

        Raises:
          ValueError: if there is less noise, or less of the sum.
        """
        left, place, found = self._generator.num_parameters, 0, []
        mean = _of_a_piece(stddev, batch_size)
        for piece in pieces:
            count = min(left - place, piece.shape[0])
            if place + count > noise.shape[0]:
                raise ValueError(
                    f"Noise must be for all of the sum, found {noise.shape[0]} numbers."
                )
            found.append(mean(piece, noise, place, count))
            place += count
        if place != left:
            raise ValueError(f"The sum must have {left} numbers, found {place}.")
        return found


@functools.lru_cache(maxsize=64)
def _on_one_replica(stddev: float, batch_size: float) -> Callable[..., tf.Tensor]:
    """The noisy mean of a sum and a row of noise; compiled once for all models."""

    # XLA makes one pass of it.
    @shared_function(jit_compile=True)
    def noisy_mean(total: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
        return (total[: noise.shape[0]] + stddev * noise) / batch_size

    return noisy_mean


@functools.lru_cache(maxsize=64)
def _of_a_piece(stddev: float, batch_size: float) -> Callable[..., tf.Tensor]:
    """As `_on_one_replica`, of so many numbers with the noise from a place on."""

    @shared_function(jit_compile=True, reduce_retracing=False)
    def noisy_mean(
        total: tf.Tensor, noise: tf.Tensor, place: int, count: int
    ) -> tf.Tensor:
        own = tf.slice(noise, [place], [count])
        return (tf.slice(total, [0], [count]) + stddev * own) / batch_size

    return noisy_mean


def shared_key(strategy: tf.distribute.Strategy, key: NoiseKey) -> NoiseKey:
    """The key of the first process, in all processes of the strategy."""
    resolver = strategy.cluster_resolver
    if resolver is None or not resolver.task_type:
        return key

    def first(values: tf.Tensor) -> tf.Tensor:
        replicas = tf.distribute.get_replica_context()
        mine = values if replica_id() == 0 else tf.zeros_like(values)
        return replicas.all_reduce(tf.distribute.ReduceOp.SUM, mine)

    values = tf.constant(list(key.secret_bytes()), tf.int32)
    everywhere = tf.function(lambda: strategy.run(first, (values,)), autograph=False)
    shared = everywhere()
    return NoiseKey(
        bytes(strategy.experimental_local_results(shared)[0].numpy().tolist())
    )
