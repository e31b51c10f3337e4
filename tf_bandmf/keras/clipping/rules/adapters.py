"""Per-example gradients of low-rank adapters (LoRA), in factored form.

An adapted kernel is W + s A B with a frozen W (Hu et al., 2021, arXiv:2106.09685), so that
x (W + s A B) = x W + s (x A) B: two products in a row. With g the gradient of the output,
A gets the outer products of x and s g Bᵀ, and B those of s x A and g. Nothing of the size
of W is made for single examples.
"""

from typing import Any, NamedTuple

import tensorflow as tf

from tf_bandmf.keras.compat.keras_objects import tensorflow_value


class Adapter(NamedTuple):
    """The adapter of a layer.

    Attributes:
      down: the Keras variable A, [..., r].
      up: the Keras variable B, [r, O].
      scale: s.
    """

    down: Any
    up: Any
    scale: float

    def values(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Both times s, as float32 tensors; each appears in the other's gradient."""
        down, up = (
            tf.cast(tf.convert_to_tensor(tensorflow_value(v)), tf.float32)
            for v in (self.down, self.up)
        )
        return self.scale * down, self.scale * up


def adapter_of(layer: Any, prefix: str = "lora_kernel") -> Adapter | None:
    """The adapter of a layer of Keras, or None.

    Args:
      layer: a built layer.
      prefix: of the names of the adapter's two variables.
    """
    if not getattr(layer, "lora_enabled", False):
        return None
    scale = layer.lora_alpha / layer.lora_rank
    return Adapter(getattr(layer, f"{prefix}_a"), getattr(layer, f"{prefix}_b"), scale)
