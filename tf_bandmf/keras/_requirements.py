"""Raises ImportError on import unless Keras 3 is installed and uses TensorFlow."""

from __future__ import annotations

try:
    import keras
except ImportError as error:
    raise ImportError(
        f"tf_bandmf.keras needs Keras 3 on TensorFlow, but Keras cannot be imported "
        f"({error}). Install tf-bandmf[keras], and set KERAS_BACKEND=tensorflow before "
        f"importing keras. The rest of tf_bandmf works without Keras."
    ) from error

backend, version = keras.backend.backend(), keras.__version__.split(".")
if list(map(int, version[:2])) < [3, 12] or backend != "tensorflow":
    raise ImportError(
        f"tf_bandmf.keras needs Keras >= 3.12 on TensorFlow, but found Keras "
        f"{keras.__version__} with the backend {backend!r}. Set KERAS_BACKEND=tensorflow "
        f"before importing keras. On TensorFlow 2.14, use tf-bandmf-federated instead."
    )
