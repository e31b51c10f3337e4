"""Content bound to ids: the fingerprint that a scheduled batch carries.

A batch says for which step of which plan and schedule it was drawn; its fingerprint says
that its tensors are the ones that were drawn. It covers values (bit by bit), shapes,
dtypes, structure, order of the rows, sample weights, padding, and the ids. The pipeline
computes it when it has made a batch, the training step again before it does anything.

Each row is hashed by FarmHash64, all rows and ids together once more, with a secret of
the process in front. Two contents have one fingerprint with probability about 2^-64,
independently of what is in the data. It guards against mistakes (augmentation, mixing,
repeating, reweighting after the batch was made). It is no cryptographic authentication:
whoever runs the program can compute what the program computes.

Without that secret it is the content's digest, the same in another process: a part of the
key of a step's noise.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tf_bandmf.sampling.record_identity import hash_rows
from tf_bandmf.sampling.sources import CONTENT

FINGERPRINT = "fingerprint"
# A fingerprint is made and verified in one process; another one has other secrets.
_SECRET_WORDS = np.frombuffer(secrets.token_bytes(32), np.int64)


def with_fingerprint(batch: Mapping[str, Any]) -> dict[str, Any]:
    """The batch with its fingerprint, in a graph too.

    Args:
      batch: contents (`x`, `y`, `sample_weight`, `rows`), structures of dense tensors
        whose first dimension is the example; and integers that say which batch it is.
    """
    return {**batch, FINGERPRINT: _hashed(_SECRET_WORDS, _words(batch))}


def is_as_drawn(batch: Mapping[str, Any]) -> tf.Tensor:
    """Whether the batch has the fingerprint of its contents and ids, bool scalar.

    Args:
      batch: what `with_fingerprint` returned, or something else under its keys.
    """
    return _has_fingerprint(batch, _words(batch))


def digest_if_as_drawn(batch: Mapping[str, Any]) -> tuple[tf.Tensor, tf.Tensor]:
    """The digest of contents and ids, int64 scalar, and what `is_as_drawn` returns."""
    words = _words(batch)
    return tf.reshape(_hashed(words), []), _has_fingerprint(batch, words)


def content_digest(content: Mapping[str, Any]) -> tf.Tensor:
    """The digest of contents that no schedule drew, int64 scalar.

    Args:
      content: as in `with_fingerprint`.
    """
    return tf.reshape(_hashed(_words(content)), [])


def _has_fingerprint(batch: Mapping[str, Any], words: tf.Tensor) -> tf.Tensor:
    if FINGERPRINT not in batch:
        return tf.constant(False)
    stated = tf.reshape(tf.cast(batch[FINGERPRINT], tf.int64), [-1])
    return tf.reduce_all(tf.equal(stated, _hashed(_SECRET_WORDS, words)))


def _hashed(*words: tf.Tensor) -> tf.Tensor:
    """int64, shape [1]."""
    with tf.device("/CPU:0"):
        return hash_rows(tf.expand_dims(tf.concat(words, axis=0), 0))


def _words(batch: Mapping[str, Any]) -> tf.Tensor:
    """Structure and ids, and a hash of each row of the contents; int64, shape [words]."""
    structure: list[str] = []
    words: list[tf.Tensor] = []
    # Ids in a row, which become words together: a graph takes its time for each operation.
    ids: list[tf.Tensor] = []
    # Hashing is done there.
    with tf.device("/CPU:0"):
        for name in sorted(set(batch) - {FINGERPRINT}):
            for path, leaf in _leaves(name, batch[name]):
                tensor = tf.convert_to_tensor(leaf)
                structure.append(f"{path} {tensor.dtype.name} {tensor.shape.rank}")
                if name not in CONTENT and tensor.shape.rank == 0:
                    # It has no sizes.
                    ids.append(tf.cast(tensor, tf.int64))
                    continue
                words += [tf.stack(ids)] if ids else []
                ids.clear()
                words.append(tf.shape(tensor, out_type=tf.int64))
                if name in CONTENT:
                    words.append(hash_rows(tensor))
                else:
                    words.append(tf.reshape(tf.cast(tensor, tf.int64), [-1]))
        words += [tf.stack(ids)] if ids else []
        digest = hashlib.blake2b("\n".join(structure).encode(), digest_size=8).digest()
        return tf.concat([np.frombuffer(digest, np.int64), *words], axis=0)


def _leaves(path: str, value: Any) -> list[tuple[str, Any]]:
    """The tensors of a structure and where they are; lists count as tuples."""
    if isinstance(value, Mapping):
        items = [(str(key), value[key]) for key in sorted(value)]
    elif isinstance(value, (list, tuple)):
        items = [(str(place), item) for place, item in enumerate(value)]
    else:
        return [(path, value)]
    return [leaf for name, item in items for leaf in _leaves(f"{path}/{name}", item)]
