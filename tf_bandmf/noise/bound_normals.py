"""A few independent normals that are bound to what they are added to, in float64."""

from __future__ import annotations

import hashlib

import numpy as np

from tf_bandmf.files.hidden import HiddenArray


def bound_normals(secret: bytes, message: bytes, size: int) -> np.ndarray:
    """Standard normals that are a function of a secret and a message.

    Of SHAKE-256 (FIPS 202), 53 bits for each uniform number, by Box and Muller. As far as
    the hash is a pseudo-random function, other messages have independent normals.

    Args:
      secret: 32 bytes.
      message: all that the normals are bound to.
      size: how many.

    Returns:
      float64, shape [size]. Secret: whoever knows them can subtract them.
    """
    pairs = -(-size // 2)
    stream = hashlib.shake_256(b"tf-bandmf bound normals" + secret + message)
    words = np.frombuffer(stream.digest(16 * pairs), "<u8")
    uniform = ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    radius = np.sqrt(-2.0 * np.log(uniform[:pairs]))
    angle = 2.0 * np.pi * uniform[pairs:]
    both = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
    return both[:size].view(HiddenArray)
