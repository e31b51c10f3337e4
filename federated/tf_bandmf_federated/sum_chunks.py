"""Keyed digests of the chunks of a large sum."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tf_bandmf.noise.digests import digest_key, keyed_digest
from tf_bandmf.noise.shared import shared_function
from tf_bandmf_federated.large_vectors import in_threads

CHUNK_BYTES = 1 << 20
# Digested by one call: a call by itself takes as long as some chunks.
_AT_ONCE = 8


def digests_of_chunks(secret: bytes, content: np.ndarray) -> np.ndarray:
    """The keyed digest of each chunk of 2^20 bytes, the last one filled up with zeros.

    Args:
      secret: 32 bytes.
      content: uint8, shape [bytes].

    Returns:
      int32, shape [chunks, 2].
    """
    key = tf.constant(np.asarray(digest_key(secret, "")))
    size = _AT_ONCE * CHUNK_BYTES

    def of_some(start: int) -> np.ndarray:
        some = content[start : start + size]
        if some.size < size:
            some = np.pad(some, (0, size - some.size))
        # As float32, whose bits are digested.
        return _of_chunks(key, some.view(np.float32).reshape(_AT_ONCE, -1)).numpy()

    found = np.concatenate(in_threads(of_some, range(0, content.size, size)))
    return found[: -(-content.size // CHUNK_BYTES)]


@shared_function
def _of_chunks(key: tf.Tensor, chunks: tf.Tensor) -> tf.Tensor:
    return tf.stack([keyed_digest(key, chunk) for chunk in tf.unstack(chunks)])
