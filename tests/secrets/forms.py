"""Searches files for secrets, in all forms in which the secrets may be encoded."""

import base64
import io
import re
import zipfile
import zlib

import numpy as np
import tensorflow as tf

from tf_bandmf.noise import standard_normals

# The minimum length of a form. Shorter forms may occur in a file by chance.
_SHORTEST = 7


def forms_of_bytes(secret):
    """Returns the forms in which a file may contain secret bytes.

    The forms are raw and reversed bytes, text encodings, and numbers.
    """
    words = np.frombuffer(secret[: len(secret) // 8 * 8], "<u8")
    forms = {secret, secret[::-1], secret[:8], secret[8:16][::-1]}
    half = secret[: max(8, len(secret) // 2)]
    forms |= {half.hex().encode(), half.hex().upper().encode()}
    for shift in range(3):
        # Within longer data, the base64 encoding of the secret depends on its offset
        # modulo 3.
        text = base64.b64encode(secret[shift:])[: 4 * ((len(secret) - shift) // 3)]
        forms |= {text, text.replace(b"+", b"-").replace(b"/", b"_")}
    forms.add(repr(half)[2:-1].encode())
    for separator in (", ", ",", " "):
        forms.add(separator.join(map(str, half)).encode())
    for word in words:
        for number in (int(word), int(word.view("<i8")), int(word.byteswap())):
            forms.add(str(number).encode())
        forms.add(f"{int(word):x}".encode())
        for number in (word.view("<f8"), *word.reshape(1).view("<f4")):
            # Leave out numbers with few digits, which may occur in a file by chance.
            if len(re.sub(r"[-+0.einfa]", "", str(number))) >= _SHORTEST:
                forms |= {repr(float(number)).encode(), str(number).encode()}
    forms |= {
        str(int.from_bytes(secret, order)).encode() for order in ("little", "big")
    }
    return {form for form in forms if len(form) >= _SHORTEST}


def forms_of_floats(row):
    """Returns the forms in which a file may contain the first entries of a vector.

    The forms are raw bytes and texts.
    """
    row = np.asarray(row, np.float32)
    forms = {row[:4].tobytes(), row[:4].astype("<f8").tobytes(), row[4:8].tobytes()}
    for pattern in ("{!r}", "{:.8g}", "{:.8e}", "{:.17g}", "{:.7f}"):
        for value in (float(row[0]), float(row[1]), float(row[2])):
            forms.add(pattern.format(value).encode())
    forms |= {str(value).encode() for value in row[:3]}
    # Leave out numbers with few digits, which may occur in a file by chance.
    return {form for form in forms if len(re.sub(rb"[-0.e+]", b"", form)) >= _SHORTEST}


def step_keys_of(state):
    """Returns the noise keys of the finished steps, from the run's key and digests."""
    keys = state._step_keys[: state.step].view(np.uint64)
    return np.asarray(
        state._noising.generator.bound_key(keys, state.points()[: state.step])
    )


def forms_of_run(model):
    """Returns the forms of all secrets of a run, by the names of the secrets."""
    state = model.optimizer.run.secrets
    forms = {"key": forms_of_bytes(state.key.secret_bytes())}
    for step, key in enumerate(step_keys_of(state)):
        forms[f"key of step {step}"] = forms_of_bytes(key.tobytes())
        normals = standard_normals(tf.constant(key), model.count_params()).numpy()
        forms[f"normals of step {step}"] = forms_of_floats(normals)
    for slot, row in enumerate(state.buffer):
        assert np.abs(row[:8]).min() > 0
        forms[f"kept vector {slot}"] = forms_of_floats(row)
    forms["seed of the sampler"] = forms_of_bytes(state.key.sampler_seed())
    return forms


def contents_of(content):
    """Returns a file's content, and all that can be decoded or decompressed from it."""
    contents = [content]
    if zipfile.is_zipfile(io.BytesIO(content)):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for name in archive.namelist():
                contents += contents_of(archive.read(name))
    for start in [
        match.start() for match in re.finditer(rb"\x78[\x01\x9c\xda]", content)
    ]:
        try:
            contents.append(zlib.decompressobj().decompress(content[start:], 1 << 24))
        except zlib.error:
            continue
    for match in re.finditer(rb"[A-Za-z0-9+/]{40,}={0,2}", content):
        text = match.group()
        try:
            decoded = base64.b64decode(text[: len(text) // 4 * 4])
        except ValueError:
            continue
        contents.append(decoded)
        try:
            contents.append(zlib.decompress(decoded))
        except zlib.error:
            continue
    return contents


def files_below(path):
    """Returns all files below a folder, or the file itself."""
    return [path] if path.is_file() else [f for f in path.rglob("*") if f.is_file()]


def found_in(content, forms):
    """Returns the names of the secrets found in a file's content."""
    everything = contents_of(content)
    return [
        name
        for name, texts in forms.items()
        if any(text in part for part in everything for text in texts)
    ]
