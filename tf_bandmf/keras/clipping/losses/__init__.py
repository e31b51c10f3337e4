"""One loss for each example, from the losses that Keras compiled."""

from tf_bandmf.keras.clipping.losses.compiled import compiled_loss, per_example_losses

__all__ = ["compiled_loss", "per_example_losses"]
