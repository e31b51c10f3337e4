"""Checks that Keras 3 runs on TensorFlow before anything of it is used."""

from __future__ import annotations

try:
    import keras
except ImportError as error:
    raise ImportError(
        "tf_bandmf.keras needs Keras 3: install tf-bandmf[keras]. The rest of tf_bandmf "
        "works without it."
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
