"""An attack: rebuild the noise of a run from what was shared of it.

    python tests/secrets/rebuild_noise.py MODEL.keras ... < noisy.npy

Whoever has the models of a run has its noisy gradients: differences of weights. This looks
at every place of every file for a number that explains them: a key of the run, the key of
a step, noise itself, as bytes or text, compressed or not. A guess that is right leaves of
a noisy gradient what the data put into it; one that is not makes it larger.
"""

import hashlib
import io
import pathlib
import re
import sys

import numpy as np
import tensorflow as tf
from forms import contents_of, files_below

from tf_bandmf.noise import box_muller
from tf_bandmf.noise.philox import philox

# Entries that are compared; with 38 a wrong guess explains 0.7 of a noisy gradient's norm
# with probability below 1e-15.
ENTRIES = 38
LEFT = 0.3
_CHUNK = 1 << 15


def rebuild(paths, noisy):
    """What explains a noisy gradient: (file, kind of secret, step), or None.

    Args:
      paths: files and folders that were shared.
      noisy: the noisy gradients of the steps 0, 1, ..., shape [steps, >= ENTRIES], in
        units of the standard deviation of `Z` in them, which the plan says.
    """
    noisy = np.asarray(noisy, np.float64)[:, :ENTRIES]
    for path in paths:
        for file in files_below(pathlib.Path(path)):
            for content in _as_bytes(file.read_bytes()):
                for kind, guesses in _guesses(content):
                    step = _explained(guesses, noisy)
                    if step is not None:
                        return str(file), kind, step
    return None


def _as_bytes(content):
    """The contents, and the bytes that hexadecimal text and lists of numbers stand for."""
    contents = contents_of(content)
    for part in list(contents):
        for match in re.finditer(rb"[0-9a-fA-F]{32,}", part):
            text = match.group()
            contents.append(bytes.fromhex(text[: len(text) // 2 * 2].decode()))
        for match in re.finditer(rb"\d{15,20}(?:[,\s\[\]]+\d{15,20})+", part):
            numbers = [int(n) % 2**64 for n in re.findall(rb"\d+", match.group())]
            contents.append(np.array(numbers, "<u8").tobytes())
        numbers = re.findall(rb"-?\d+\.\d{4,}(?:e[+-]?\d+)?", part)
        if len(numbers) >= ENTRIES:
            contents.append(np.array([float(n) for n in numbers], "<f4").tobytes())
    return contents


def _windows(content, size):
    if len(content) < size:
        return np.zeros([0, size], np.uint8)
    octets = np.frombuffer(content, np.uint8)
    return np.lib.stride_tricks.sliding_window_view(octets, size)


def _guesses(content):
    """Kinds of secrets with the noise that they would make, shape [guesses, ENTRIES]."""
    for start in range(0, len(content), _CHUNK):
        part = content[start : start + _CHUNK + 8 * ENTRIES]
        for dtype in ("<f4", "<f8"):
            windows = _windows(part, np.dtype(dtype).itemsize * ENTRIES)
            with np.errstate(all="ignore"):
                values = np.ascontiguousarray(windows).view(dtype).astype(np.float64)
            sensible = np.all(np.isfinite(values) & (np.abs(values) < 1e6), axis=1)
            yield "noise", values[sensible]
        keys = np.unique(_windows(part, 16), axis=0)
        yield "key of a step", _first_normals(keys)
        keys = np.unique(_windows(part, 32), axis=0)
        if len(keys):
            hashed = [_key_of_step_0(key.tobytes()) for key in keys]
            yield "key", _first_normals(np.frombuffer(b"".join(hashed), np.uint8))


def _key_of_step_0(key):
    return hashlib.blake2b(
        bytes(8), key=key, digest_size=16, person=b"tf-bandmf step"
    ).digest()


def _first_normals(step_keys):
    """Of many step keys at once: shape [keys, ENTRIES]."""
    keys = np.ascontiguousarray(step_keys).reshape(-1, 16).view("<u8")
    if not len(keys):
        return np.zeros([0, ENTRIES])
    counters = np.arange(ENTRIES // 2, dtype=np.uint64)
    counters = tf.constant(np.broadcast_to(counters, [len(keys), len(counters)]))
    words = philox(tf.constant(keys.T[:, :, None]), counters)
    signed = [tf.bitcast(word, tf.int32) for word in words]
    cosines, sines = box_muller.box_muller(signed, tf.constant(2.0**-90))
    return tf.reshape(tf.stack([cosines, sines], axis=-1), [len(keys), -1]).numpy()


def _explained(guesses, noisy):
    """The step whose noisy gradient one of the guesses explains."""
    if not len(guesses):
        return None
    squares = np.sum(guesses**2, axis=1)[:, None] - 2.0 * guesses @ noisy.T
    left = squares / np.sum(noisy**2, axis=1) + 1.0
    places = np.argwhere(left < LEFT**2)
    return int(places[0][1]) if len(places) else None


if __name__ == "__main__":
    gradients = np.load(io.BytesIO(sys.stdin.buffer.read()))
    result = rebuild(sys.argv[1:], gradients)
    print("nothing explains the noise" if result is None else result)
    sys.exit(result is not None)
