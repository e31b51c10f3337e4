"""Helpers for nested tensors with a leading batch dimension."""

import contextlib
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_bandmf.keras.compat.keras_objects import EXTRAS

# The possible outcomes for an example's gradient (see `ClippedGradients.outcomes`).
OUTCOMES = ("used", "clipped", "zero", "bad")


def to_tensors(structure: Any) -> Any:
    """Converts each array in a structure to a dense tensor; None stays None.

    Args:
      structure: nested arrays or tensors of shape [B, ...].

    Returns:
      The same structure of tensors.

    Raises:
      ValueError: if a leaf is ragged or sparse, or has no batch dimension.
    """

    def convert(leaf: Any) -> Any:
        if leaf is None:
            return None
        if isinstance(leaf, (tf.RaggedTensor, tf.SparseTensor)):
            raise ValueError(
                f"Private training needs dense tensors, not a {type(leaf).__name__}. "
                "Convert the data before training: ragged tensors by `.to_tensor()`, "
                "sparse tensors by `tf.sparse.to_dense(...)`."
            )
        tensor = keras.ops.convert_to_tensor(leaf)
        if tensor.shape.rank is None or tensor.shape.rank == 0:
            raise ValueError(
                "Every input, target and sample weight must have a leading batch "
                f"dimension, but found a tensor of shape {tensor.shape}."
            )
        return tensor

    return keras.tree.map_structure(convert, structure)


def map_tensors(function: Callable[[tf.Tensor], Any], structure: Any) -> Any:
    """Replaces each tensor of a structure by `function(tensor)`; other leaves stay."""
    return keras.tree.map_structure(
        lambda leaf: function(leaf) if tf.is_tensor(leaf) else leaf, structure
    )


def tensor_leaves(structure: Any) -> list[tf.Tensor]:
    """Returns the tensors of a structure in Keras' flattening order.

    Each tensor is followed by the tensors that Keras attached to it: logits, which
    cross-entropies read, and masks, which all losses read.
    """
    leaves = [leaf for leaf in keras.tree.flatten(structure) if tf.is_tensor(leaf)]
    return [tensor for leaf in leaves for tensor in (leaf, *attached_to(leaf).values())]


def attached_to(tensor: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns the tensors that Keras attached to a tensor, by attribute name."""
    attached = {name: getattr(tensor, name, None) for name in EXTRAS}
    return {name: value for name, value in attached.items() if value is not None}


def with_leaves(structure: Any, leaves: Iterable[tf.Tensor]) -> Any:
    """Returns a copy of a structure with its tensors replaced by `leaves`.

    The order of `leaves` is that of `tensor_leaves(structure)`.
    """
    remaining = iter(leaves)

    def replaced(leaf: tf.Tensor) -> tf.Tensor:
        tensor = next(remaining)
        for name in attached_to(leaf):
            with contextlib.suppress(AttributeError):
                setattr(tensor, name, next(remaining))
        return tensor

    return map_tensors(replaced, structure)


def single_examples(structure: Any) -> Iterator[Any]:
    """Yields the examples of a batch of known size, each as a batch of one."""
    for place in range(tensor_leaves(structure)[0].shape[0]):
        part = slice(place, place + 1)
        yield map_tensors(operator.itemgetter(part), structure)


def specs_of(structure: Any) -> tuple[tf.TensorSpec, ...]:
    """Returns the specs [None, ...] of the tensors [B, ...] in a structure."""
    return tuple(
        tf.TensorSpec([None, *leaf.shape[1:]], leaf.dtype)
        for leaf in tensor_leaves(structure)
    )


def batch_size(structure: Any) -> tuple[int | None, tf.Tensor]:
    """Returns the batch size of a structure, as a static size and as a tensor.

    Args:
      structure: nested tensors of shape [B, ...].

    Returns:
      The static size or None, and a scalar int32 tensor.

    Raises:
      ValueError: if there is no tensor, or the static sizes differ.
    """
    leaves = tensor_leaves(structure)
    if not leaves:
        raise ValueError("The batch must contain arrays or tensors, but has none.")
    sizes = {leaf.shape[0] for leaf in leaves} - {None}
    if len(sizes) > 1:
        raise ValueError(
            "All inputs, targets and sample weights must have the same batch "
            f"size, but found the sizes {sorted(sizes)}."
        )
    return (sizes.pop() if sizes else None), num_examples(leaves[0])


def num_examples(tensor: tf.Tensor) -> tf.Tensor:
    """Returns the batch size of a tensor [B, ...] of known rank."""
    # `tf.shape(tensor)[0]` would create three more operations.
    return tf.unstack(tf.shape(tensor))[0]


def reshape_examples(tensor: tf.Tensor, *shape: int) -> tf.Tensor:
    """Reshapes [B, ...] to [B, *shape]; one size in `shape` may be -1.

    B is never inferred from the other sizes. If it were, a layer that sets a wrong
    static shape could turn parts of an example into separate examples, and each part
    would be clipped on its own.
    """
    example = tuple(tensor.shape[1:])
    if len(example) == 1 and example == shape:
        return tensor
    if example == shape:
        return tf.ensure_shape(tensor, [None, *shape])
    # The batch size is passed explicitly. `ensure_shape`, followed by a reshape to
    # [-1, ...], would not be safe: TensorFlow may assume that the input of
    # `ensure_shape` already has the ensured shape. Then `ensure_shape` never raises.
    return tf.reshape(tensor, [num_examples(tensor), *shape])


def split_first(tensor: tf.Tensor, *sizes: Any) -> tf.Tensor:
    """Splits the first axis into axes of the given sizes; one size may be -1.

    For example, the sizes N and K turn [N * K, ...] into [N, K, ...].
    """
    return tf.reshape(tensor, [*sizes, *inner_sizes(tensor)])


def join_first(tensor: tf.Tensor) -> tf.Tensor:
    """Joins the first two axes: [N, K, ...] to [N * K, ...]."""
    return tf.reshape(tensor, [-1, *inner_sizes(tensor)[1:]])


def inner_sizes(tensor: tf.Tensor) -> Sequence[Any]:
    """Returns the sizes of all axes but the first: integers, or tensors if unknown."""
    # Static sizes are returned without calling `keras.ops.shape`, which would create
    # five operations to compute B, too.
    is_static = None not in tuple(tensor.shape[1:])
    return tuple(tensor.shape[1:]) if is_static else keras.ops.shape(tensor)[1:]


def elements(dimensions: Sequence[int | None]) -> int:
    """Returns the product of sizes, or -1 (for `tf.reshape`) if a size is unknown."""
    sizes = [n for n in dimensions if n is not None]
    return math.prod(sizes) if len(sizes) == len(dimensions) else -1


def terms_of(tensor: tf.Tensor) -> tf.Tensor:
    """Joins all positions in one axis: [B, ..., n] to [B, T, n]."""
    *positions, size = tensor.shape[1:]
    return reshape_examples(tensor, elements(positions), size)


def flattened(tensor: tf.Tensor) -> tf.Tensor:
    """Reshapes [B, ...] to [B, n]."""
    return reshape_examples(tensor, elements(tensor.shape[1:]))
