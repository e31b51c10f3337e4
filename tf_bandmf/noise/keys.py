"""Keys of the noise: each run has a 256-bit secret, from which all step keys are derived.

A step's key is a keyed hash (BLAKE2b, RFC 7693) of the step's number: someone who
guesses the key of one step learns nothing about the key of another step.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import NoReturn

import numpy as np

from tf_bandmf.files.hidden import HiddenArray, HiddenBytes

_KEY_BYTES = 32
# The number of uint64 words in a step's key, for each generator. For Philox, they are a
# 64-bit key and the upper 64 bits of the 128-bit counter. For ChaCha20, they are a
# 256-bit key and the last 64 bits of the nonce.
KEY_WORDS = {"philox": 2, "chacha20": 5}
# The number of words of a step's key that are derived from the secret. The remaining
# words are 0.
_SECRET_WORDS = {"philox": 2, "chacha20": 4}
# The personalization strings of BLAKE2b, so that the generators get independent keys.
_PERSONS = {"philox": b"tf-bandmf step", "chacha20": b"tf-bandmf chacha"}


class Secret:
    """A mixin that prevents objects with secrets from being shown, pickled or copied."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(<secret>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__} is secret: do not pickle or copy it.")


class NoiseKey(Secret):
    """The secret of one run. Whoever has it can remove the noise.

    The secret does not appear in `repr`, and pickling or copying the key raises an
    error. Only a private state file should contain `secret_bytes`.

    Raises:
      ValueError: if the secret does not have 32 bytes.
    """

    __slots__ = ("_secret",)

    def __init__(self, secret: bytes) -> None:
        secret = HiddenBytes(secret)
        if len(secret) != _KEY_BYTES:
            raise ValueError(
                f"A noise key must have {_KEY_BYTES} bytes, found {len(secret)}."
            )
        self._secret = secret

    @classmethod
    def from_operating_system(cls) -> NoiseKey:
        """Returns a fresh random key. Only noise from such a key gives privacy."""
        return cls(secrets.token_bytes(_KEY_BYTES))

    @classmethod
    def for_testing(cls, seed: int) -> NoiseKey:
        """Returns a key that is derived from a seed, for tests. It gives no privacy."""
        return cls(hashlib.sha256(f"tf-bandmf test seed {seed}".encode()).digest())

    def secret_bytes(self) -> bytes:
        """Returns the 32 bytes of the run's secret."""
        return self._secret

    def derived(self, message: bytes, size: int, person: bytes) -> bytes:
        """Returns a keyed hash of a message.

        Someone who guesses one hash learns nothing about the key or another hash.

        Args:
          message: the bytes to hash.
          size: number of bytes, at most 64.
          person: name of the purpose of the hash, at most 16 bytes. Hashes for different
            purposes are independent (BLAKE2b's personalization).
        """
        digest = hashlib.blake2b(
            message, key=self._secret, digest_size=size, person=person
        )
        return HiddenBytes(digest.digest())

    def sampler_seed(self) -> bytes:
        """Returns the seed of the run's sampler: 32 bytes that are derived from the key."""
        return self.derived(b"", 32, b"tf-bandmf sample")

    def step_keys(self, num_steps: int, generator: str = "philox") -> np.ndarray:
        """Returns the keys of steps 0, ..., num_steps - 1.

        This takes about a second and 16 MB (ChaCha20: 40 MB) for 10**6 steps. The
        result is as secret as the key itself.

        Args:
          num_steps: number of steps.
          generator: "philox" or "chacha20".

        Returns:
          uint64, shape [num_steps, KEY_WORDS[generator]].
        """
        words, person = _SECRET_WORDS[generator], _PERSONS[generator]
        parts = [
            self.derived(step.to_bytes(8, "little"), 8 * words, person)
            for step in range(num_steps)
        ]
        keys = np.zeros([num_steps, KEY_WORDS[generator]], "<u8")
        keys[:, :words] = np.frombuffer(b"".join(parts), "<u8").reshape(-1, words)
        return keys.view(HiddenArray)

    def bound_normals(self, message: bytes, size: int) -> np.ndarray:
        """Returns standard normals that are a function of the key and of a message.

        The normals are computed with the Box-Muller transform from the output of
        SHAKE-256 (FIPS 202), with 53 bits for each uniform number. If the hash is a
        pseudo-random function, different messages have independent normals.

        Args:
          message: the data that the normals are bound to.
          size: number of normals.

        Returns:
          float64, shape [size]. They are secret: anyone who knows them can subtract them.
        """
        pairs = -(-size // 2)
        stream = hashlib.shake_256(b"tf-bandmf bound normals" + self._secret + message)
        words = np.frombuffer(stream.digest(16 * pairs), "<u8")
        uniform = ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
        radius = np.sqrt(-2.0 * np.log(uniform[:pairs]))
        angle = 2.0 * np.pi * uniform[pairs:]
        both = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
        return both[:size].view(HiddenArray)
