"""Digests of chunks are those of each chunk by itself."""

import numpy as np
import pytest
import tensorflow as tf

from tf_bandmf.noise.digests import digest_key, keyed_digest
from tf_bandmf_federated.sum_chunks import CHUNK_BYTES, digests_of_chunks

SECRET = bytes(range(32))


@pytest.mark.parametrize("chunks", [0.5, 1, 8, 8.25, 17])
def test_chunks_have_the_digests_of_each_by_itself(chunks):
    size = int(chunks * CHUNK_BYTES)
    content = np.random.default_rng(0).integers(0, 256, size, np.uint8)
    key = tf.constant(np.asarray(digest_key(SECRET, "")))
    expected = []
    for start in range(0, size, CHUNK_BYTES):
        chunk = content[start : start + CHUNK_BYTES]
        chunk = np.pad(chunk, (0, CHUNK_BYTES - chunk.size))
        expected.append(keyed_digest(key, tf.constant(chunk.view(np.float32))))
    np.testing.assert_array_equal(digests_of_chunks(SECRET, content), expected)


def test_a_byte_changes_the_digest_of_its_chunk_alone():
    content = np.zeros(3 * CHUNK_BYTES, np.uint8)
    before = digests_of_chunks(SECRET, content)
    content[CHUNK_BYTES + 5] = 1
    changed = (digests_of_chunks(SECRET, content) != before).any(axis=1)
    assert changed.tolist() == [False, True, False]
