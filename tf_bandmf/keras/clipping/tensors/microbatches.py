"""Processes a batch in groups of examples, one after the other."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tf_bandmf.keras.clipping.tensors import batches


def in_groups(
    function: Any, data: Any, size: tf.Tensor, group_size: int
) -> tuple[Any, ...]:
    """Applies a function to groups of examples, one group after the other.

    The groups are iterations of a sequential loop, so only the intermediate results of
    one group are in memory at a time.

    Args:
      function: a `tf.function` with an input signature. It maps the tensors of a group
        to a list of sums over the group, and nested results [m, ...].
      data: nested tensors [B, ...].
      size: B, scalar int32.
      group_size: examples per group, m. The last group is padded with zeros.

    Returns:
      The sums over all groups, and the results of all examples, [B, ...].
    """
    groups = tf.maximum((size + group_size - 1) // group_size, 1)
    total = groups * group_size

    def grouped(leaf: tf.Tensor) -> tf.Tensor:
        padding = [[0, total - size], *[[0, 0]] * (leaf.shape.rank - 1)]
        return batches.split_first(tf.pad(leaf, padding), groups, group_size)

    leaves = list(map(grouped, batches.tensor_leaves(data)))

    # Tracing the function gives the dtypes and shapes that the loop needs.
    sum_specs, *result_specs = function.get_concrete_function().structured_outputs
    arrays = [
        tf.TensorArray(spec.dtype, size=groups, element_shape=spec.shape)
        for spec in tf.nest.flatten(result_specs)
    ]

    def body(index: tf.Tensor, sums: Any, arrays: Any) -> Any:
        part, *results = function([leaf[index] for leaf in leaves])
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
