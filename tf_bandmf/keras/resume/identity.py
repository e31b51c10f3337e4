"""What must be equal when a run is resumed: all that decides the bits of a step."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_bandmf._version import __version__
from tf_bandmf.keras.compat.keras_objects import all_layers
from tf_bandmf.keras.optimizer.private import PrivateOptimizer

# Keys of configurations whose values differ between models that are built alike.
_NAMES = (
    "name",
    "build_config",
    "inbound_nodes",
    "input_layers",
    "output_layers",
    "seed",
    "shared_object_id",
)


def value_of(variable: Any) -> np.ndarray:
    """The value of a Keras variable, with or without replicas."""
    return tf.convert_to_tensor(variable.value).numpy()


def random_states(model: Any) -> list[Any]:
    """Variables of the seed generators of a model's layers."""
    weights = {id(variable) for variable in model.weights}
    return [variable for variable in model.variables if id(variable) not in weights]


def weights_digest(model: Any) -> str:
    """A digest of all that decides the next step: weights, seeds, optimizer."""
    digest = hashlib.blake2b(digest_size=32)
    for variable in [*model.variables, *model.optimizer.variables]:
        value = value_of(variable)
        digest.update(f"{value.dtype}{value.shape}".encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()


def computation(model: Any) -> list[Any]:
    """Settings that decide what is clipped, and how it is rounded."""
    clipping = model.optimizer.clipping
    found = [
        model._microbatch_size,
        bool(model.jit_compile),
        model.optimizer.loss_scale_factor,
        clipping.automatic,
        json.dumps(clipping.groups),
        clipping.scaling,
    ]
    if model._tables != "dense":
        own = model._tables
        found.append(own if isinstance(own, str) else list(own))
    return found


def environment(model: Any) -> dict[str, Any]:
    """What decides how gradients are rounded, beside the program."""
    threads = tf.config.threading.get_intra_op_parallelism_threads()
    return {
        "tf_bandmf": __version__,
        "TensorFlow": tf.__version__,
        "Keras": keras.__version__,
        "dtype policies": sorted(
            {
                layer.dtype_policy.name
                for layer in all_layers(model)
                # These have the policy of the process that loads them, and do nothing.
                if not isinstance(layer, (keras.Model, keras.layers.InputLayer))
            }
        ),
        "replicas": model.optimizer.run.strategy.num_replicas_in_sync,
        "GPUs": sorted(
            str(tf.config.experimental.get_device_details(gpu).get("device_name"))
            for gpu in tf.config.get_visible_devices("GPU")
        ),
        "processor": platform.machine(),
        "threads": threads or os.cpu_count(),
    }


def model_digest(model: Any) -> str:
    """A digest of the loss and the layers, apart from names, which may change."""
    config = model.get_compile_config() or {}
    loss = [config.get("loss"), config.get("loss_weights")]
    layers = [[type(layer).__name__, layer.get_config()] for layer in all_layers(model)]
    text = json.dumps(_without_names([loss, layers]), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _without_names(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: _without_names(item)
            for key, item in value.items()
            if key not in _NAMES and not callable(item)
        }
    if isinstance(value, (list, tuple)):
        return [_without_names(item) for item in value]
    return value


def optimizer_digest(optimizer: PrivateOptimizer) -> str:
    """A digest of the inner optimizer's settings: 64 hexadecimal digits."""
    inner = keras.optimizers.serialize(optimizer.inner_optimizer)
    config = {key: value for key, value in inner["config"].items() if key != "name"}
    # A plain learning rate is a variable, and saved with the weights.
    if isinstance(config.get("learning_rate"), float):
        del config["learning_rate"]
    text = json.dumps([inner["class_name"], config], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
