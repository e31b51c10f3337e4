"""Processes a batch in groups of examples, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_bandmf.keras.clipping.tensors import batches

# Maps a group's data and validity [m] to sums over the group and results [m, ...].
GroupFunction = Callable[[Any, tf.Tensor], Sequence[Any]]


def in_groups(
    function: GroupFunction, data: Any, size: tf.Tensor, group_size: int
) -> tuple[Any, ...]:
    """Applies a function to groups of examples, one group after the other.

    The groups are iterations of a sequential loop, so only the intermediate results of
    one group are in memory at a time.

    Args:
      function: returns a list of sums over the group, and nested results [m, ...].
      data: nested tensors [B, ...].
      size: B, scalar int32.
      group_size: examples per group, m. The last group is padded with zeros.

    Returns:
      The sums over all groups, and the results of all examples, [B, ...].
    """
    groups = tf.maximum((size + group_size - 1) // group_size, 1)
    total = groups * group_size
    valid = tf.reshape(tf.range(total) < size, [groups, group_size])

    data = batches.pad_batch(data, total - size)
    leaves = [
        batches.split_first(leaf, groups, group_size)
        for leaf in batches.tensor_leaves(data)
    ]

    # A separate function reveals the dtypes of its results before the loop.
    @tf.function(autograph=False)
    def traced(tensors: list[tf.Tensor], counts: tf.Tensor) -> Any:
        return tuple(function(batches.with_leaves(data, tensors), counts))

    specs = [tf.TensorSpec(leaf.shape[1:], leaf.dtype) for leaf in leaves]
    concrete = traced.get_concrete_function(specs, tf.TensorSpec([group_size], tf.bool))
    sum_specs, *result_specs = concrete.structured_outputs
    arrays = [
        tf.TensorArray(spec.dtype, size=groups, element_shape=spec.shape)
        for spec in tf.nest.flatten(result_specs)
    ]

    def body(index: tf.Tensor, sums: Any, arrays: Any) -> Any:
        part, *results = traced([leaf[index] for leaf in leaves], valid[index])
        sums = [old + new for old, new in zip(sums, part, strict=True)]
        values = zip(arrays, tf.nest.flatten(results), strict=True)
        return index + 1, sums, [array.write(index, value) for array, value in values]

    zeros = [tf.zeros(spec.shape, spec.dtype) for spec in sum_specs]
    _, sums, arrays = tf.while_loop(
        lambda index, *_: index < groups,
        body,
        (tf.constant(0), zeros, arrays),
        parallel_iterations=1,
    )
    joined = [batches.join_first(array.stack())[:size] for array in arrays]
    return list(sums), *tf.nest.pack_sequence_as(result_specs, joined)
