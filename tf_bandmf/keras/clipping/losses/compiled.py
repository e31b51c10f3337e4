"""The compiled loss of each example.

The loss of example i is the compiled loss of a batch that consists only of example i.
It is not row i of an unreduced batch loss: Keras' reductions divide by the number of
unmasked steps or the sum of weights in the whole batch, so the loss of one example
would depend on the other examples.
"""

from typing import Any

import keras
import tensorflow as tf

from tf_bandmf.keras.clipping.independence.map_examples import map_examples
from tf_bandmf.keras.clipping.losses.rows import row_losses
from tf_bandmf.keras.clipping.tensors import batches
from tf_bandmf.keras.clipping.tensors.errors import UnsupportedModelError
from tf_bandmf.keras.compat.keras_objects import (
    CompileLoss,
    compile_loss,
    copied_loss,
    loss_parts,
)
from tf_bandmf.keras.compat.replicas import unscaled_losses


class _SilentCompileLoss(CompileLoss):
    """A compiled loss without per-output loss trackers.

    Otherwise, the trackers would be updated for each example, in a vectorized loop.
    """

    @property
    def metrics(self) -> list[Any]:
        # The base class pairs losses with metrics, so it needs one entry per loss.
        return [None] * len(loss_parts(self))


def compiled_loss(model: keras.Model) -> CompileLoss:
    """Returns a copy of a model's compiled loss without side effects.

    Args:
      model: a compiled model.

    Returns:
      The loss, which is called with (y, y_pred, sample_weight).

    Raises:
      UnsupportedModelError: if the model has no compiled loss.
    """
    source = compile_loss(model)
    if source is None:
        raise UnsupportedModelError(
            f"Model {model.name!r} has no compiled loss, and per-example gradients "
            "need one. Call `model.compile(loss=...)`."
        )
    return copied_loss(source, _SilentCompileLoss)


def per_example_losses(
    loss: CompileLoss, y: Any, y_pred: Any, sample_weight: Any
) -> tf.Tensor:
    """Computes the loss of each example as a batch of one.

    Args:
      loss: the result of `compiled_loss`.
      y: targets, nested tensors [B, ...].
      y_pred: predictions, nested tensors [B, ...].
      sample_weight: None, or nested tensors [B, ...].

    Returns:
      Losses [B].
    """
    rows = row_losses(loss, y, y_pred, sample_weight)
    if rows is not None:
        return rows
    structure = (y, y_pred, sample_weight)

    def one_example(element: list[tf.Tensor]) -> list[tf.Tensor]:
        example = batches.with_leaves(structure, [tensor[None] for tensor in element])
        return [tf.reduce_sum(tf.convert_to_tensor(loss(*example)))]

    elements = batches.tensor_leaves(structure)
    with unscaled_losses():
        (losses,) = map_examples(one_example, elements, "The loss")
    return losses
