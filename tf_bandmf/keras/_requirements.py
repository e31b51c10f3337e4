"""Raises ImportError, before anything uses Keras, unless Keras 3 runs on TensorFlow."""

from __future__ import annotations

import importlib.util
import os

try:
    import keras
except ImportError as error:
    if importlib.util.find_spec("keras") is None:
        raise ImportError(
            "tf_bandmf.keras needs Keras 3: install tf-bandmf[keras]. The rest of "
            "tf_bandmf works without it."
        ) from error
    backend = os.environ.get("KERAS_BACKEND")
    cause = (
        "Its configuration file keras.json (in ~/.keras or $KERAS_HOME) may name another "
        "backend than TensorFlow."
        if backend is None
        else f"KERAS_BACKEND is {backend!r}."
    )
    raise ImportError(
        f"Keras is installed but cannot be imported: {error}. {cause} tf_bandmf.keras "
        f"needs Keras on TensorFlow: set KERAS_BACKEND=tensorflow before importing keras."
    ) from error

if int(keras.__version__.split(".")[0]) < 3:
    raise ImportError(
        f"tf_bandmf.keras needs Keras >= 3.12, found {keras.__version__}. On TensorFlow "
        f"2.14 use the federated distribution instead."
    )
if keras.backend.backend() != "tensorflow":
    raise ImportError(
        f"tf_bandmf.keras needs Keras on TensorFlow, found the backend "
        f"{keras.backend.backend()!r}. Set KERAS_BACKEND=tensorflow before importing "
        f"keras."
    )
