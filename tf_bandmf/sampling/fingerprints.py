"""Content bound to ids: the digest that a scheduled batch carries.

A batch says for which step of which plan and schedule it was drawn; its fingerprint says
that its tensors are the ones that were drawn. It covers values (bit by bit), shapes,
dtypes, structure, order of the rows, sample weights, padding, and the ids. The pipeline
computes it when it has made a batch, the training step again before it does anything.

Each row is hashed by FarmHash64, all rows and ids together once more. It guards against
mistakes (augmentation, mixing, repeating, reweighting after the batch was made). It is no
cryptographic authentication. The same digest is a part of the key of a step's noise.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tf_bandmf.sampling.identity import hash_rows
from tf_bandmf.sampling.sources import CONTENT

FINGERPRINT = "fingerprint"


def with_fingerprint(batch: Mapping[str, Any]) -> dict[str, Any]:
    """The batch with its fingerprint, in a graph too; see `content_digest`."""
    return {**batch, FINGERPRINT: content_digest(batch)}


def is_as_drawn(batch: Mapping[str, Any], digest: tf.Tensor | None = None) -> tf.Tensor:
    """Whether the batch has the fingerprint of its contents and ids, bool scalar.

    Args:
      batch: what `with_fingerprint` returned, or something else under its keys.
      digest: its `content_digest`, if that is there already.
    """
    if FINGERPRINT not in batch:
        return tf.constant(False)
    digest = content_digest(batch) if digest is None else digest
    return tf.reduce_all(tf.cast(batch[FINGERPRINT], tf.int64) == digest)


def content_digest(batch: Mapping[str, Any]) -> tf.Tensor:
    """A digest of structure, contents and ids, int64 scalar; the same in each process.

    Args:
      batch: contents (`x`, `y`, `sample_weight`, `rows`), structures of dense tensors
        whose first dimension is the example; and integers that say which batch it is.
    """
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
                if name not in CONTENT and tensor.shape.rank == 0:  # without sizes
                    ids.append(tf.cast(tensor, tf.int64))
                    continue
                words += [tf.stack(ids)] if ids else []
                ids.clear()
                words.append(tf.shape(tensor, out_type=tf.int64))
                is_content = name in CONTENT
                integers = hash_rows(tensor) if is_content else tf.reshape(tensor, [-1])
                words.append(tf.cast(integers, tf.int64))
        words += [tf.stack(ids)] if ids else []
        digest = hashlib.blake2b("\n".join(structure).encode(), digest_size=8).digest()
        message = tf.concat([np.frombuffer(digest, np.int64), *words], axis=0)
        return hash_rows(message[None])[0]


def _leaves(path: str, value: Any) -> list[tuple[str, Any]]:
    """The tensors of a structure and where they are; lists count as tuples."""
    if isinstance(value, Mapping):
        items = [(str(key), value[key]) for key in sorted(value)]
    elif isinstance(value, (list, tuple)):
        items = [(str(place), item) for place, item in enumerate(value)]
    else:
        return [(path, value)]
    return [leaf for name, item in items for leaf in _leaves(f"{path}/{name}", item)]
