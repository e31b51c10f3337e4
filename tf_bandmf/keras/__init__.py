"""Private training in Keras 3 on TensorFlow: `make_private` and `PrivateOptimizer`.

Raises ImportError, and says what is missing, without Keras 3 on TensorFlow.
"""

from tf_bandmf.keras import _requirements  # noqa: F401  (raises first)
from tf_bandmf.keras.clipping import (
    ClippingMismatchError,
    UnsupportedModelError,
    register_per_example_layer,
)
from tf_bandmf.keras.clipping.rules import Rule, register_rule
from tf_bandmf.keras.conversion import make_private, to_plain
from tf_bandmf.keras.model import PrivateTraining
from tf_bandmf.keras.optimizer import PrivateOptimizer

__all__ = [
    "ClippingMismatchError",
    "PrivateOptimizer",
    "PrivateTraining",
    "Rule",
    "UnsupportedModelError",
    "make_private",
    "register_per_example_layer",
    "register_rule",
    "to_plain",
]
