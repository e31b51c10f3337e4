"""What the replicas of a run share: its key."""

from __future__ import annotations

import tensorflow as tf

from tf_bandmf.noise.keys import NoiseKey


def shared_key(strategy: tf.distribute.Strategy, key: NoiseKey) -> NoiseKey:
    """The key of the first process, in all processes of the strategy."""
    resolver = strategy.cluster_resolver
    if resolver is None or not resolver.task_type:
        return key

    def first(values: tf.Tensor) -> tf.Tensor:
        replicas = tf.distribute.get_replica_context()
        is_first = tf.equal(replicas.replica_id_in_sync_group, 0)
        mine = tf.where(is_first, values, tf.zeros_like(values))
        return replicas.all_reduce(tf.distribute.ReduceOp.SUM, mine)

    values = tf.constant(list(key.secret_bytes()), tf.int32)
    everywhere = tf.function(lambda: strategy.run(first, (values,)), autograph=False)
    shared = everywhere()
    return NoiseKey(
        bytes(strategy.experimental_local_results(shared)[0].numpy().tolist())
    )


def task_of(strategy: tf.distribute.Strategy) -> int:
    """The number of this process among those of the strategy."""
    resolver = strategy.cluster_resolver
    return getattr(resolver, "task_id", None) or 0
