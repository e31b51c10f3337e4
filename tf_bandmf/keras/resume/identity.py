"""What a resumed run must have: the weights that its private file knows."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import tensorflow as tf


def value_of(variable: Any) -> np.ndarray:
    """The value of a Keras variable, with or without replicas."""
    return tf.convert_to_tensor(variable.value).numpy()


def random_states(model: Any) -> list[Any]:
    """Variables of the seed generators of a model's layers."""
    weights = {id(variable) for variable in model.weights}
    return [variable for variable in model.variables if id(variable) not in weights]


def weights_digest(model: Any) -> str:
    """A digest of weights and optimizer, which decide the next step with the run's key."""
    digest = hashlib.blake2b(digest_size=32)
    for variable in [*model.weights, *model.optimizer.variables]:
        value = value_of(variable)
        digest.update(f"{value.dtype}{value.shape}".encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()
