"""Secret random bits of a sampler: 64 per example, a pure function of seed and step.

SHAKE-256 (FIPS 202) of the seed and the step's number: without the seed, which comes from
the operating system, nobody can tell which examples a step used.
"""

from __future__ import annotations

import hashlib

import numpy as np

from tf_bandmf.files.hidden import HiddenBytes

SEED_BYTES = 32
_MARK_BYTES = 16


def marked(seed: bytes) -> bytes:
    """The seed with a mark, by which a seed of this library is known from another."""
    return HiddenBytes(seed + _mark(seed))


def unmarked(seed: bytes) -> bytes:
    """The 32 secret bytes of what `marked` returned.

    Raises:
      ValueError: if there is no mark: the seed is somebody's choice, and known.
    """
    seed = HiddenBytes(seed)
    if len(seed) != SEED_BYTES + _MARK_BYTES or seed != marked(seed[:SEED_BYTES]):
        raise ValueError(
            f"A sampler's seed must be what secret_seed() of a schedule returned, "
            f"{SEED_BYTES + _MARK_BYTES} bytes, found others: a sample that somebody knows "
            f"amplifies nothing. Leave the seed out for a fresh one; for tests give "
            f"test_seed to tf_bandmf.plan."
        )
    return HiddenBytes(seed[:SEED_BYTES])


def _mark(seed: bytes) -> bytes:
    digest_size, person = _MARK_BYTES, b"tf-bandmf seed"
    return hashlib.blake2b(seed, digest_size=digest_size, person=person).digest()


def random_words(seed: bytes, step: int, count: int) -> np.ndarray:
    """Independent uniform numbers in [0, 2^64), uint64, shape [count].

    Args:
      seed: the secret, 32 bytes.
      step: which numbers; every step has its own.
      count: how many.

    Raises:
      ValueError: if the seed does not have 32 bytes.
    """
    seed = HiddenBytes(seed)
    if len(seed) != SEED_BYTES:
        raise ValueError(f"A sampler's seed has {SEED_BYTES} bytes, found {len(seed)}.")
    place = int(step).to_bytes(8, "little", signed=True)
    message = HiddenBytes(b"tf-bandmf sampler" + seed + place)
    stream = hashlib.shake_256(message).digest(8 * count)
    return np.frombuffer(stream, dtype="<u8").astype(np.uint64)
