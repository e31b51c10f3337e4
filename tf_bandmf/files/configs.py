"""Configurations with arrays on disk: JSON for the values, npz for the arrays."""

from __future__ import annotations

import base64
import json
import os
import zlib
from typing import Any

import numpy as np

_ARRAY_KEY = "__array__"
_ENCODED_KEY = "__zlib_base64__"


def canonical_bytes(config: Any) -> bytes:
    """Bytes that are equal exactly if two configurations are equal, arrays included."""
    return json.dumps(
        _plain(
            config, lambda array: [str(array.dtype), array.shape, array.tobytes().hex()]
        ),
        sort_keys=True,
        separators=(",", ":"),
        allow_nan=False,
    ).encode()


def save(path: str, config: Any) -> None:
    """Writes `path` as JSON and, if there are arrays, `path` with suffix .npz."""
    arrays: dict[str, np.ndarray] = {}

    def reference(array: np.ndarray) -> dict[str, str]:
        name = f"array_{len(arrays)}"
        arrays[name] = array
        return {_ARRAY_KEY: name}

    text = json.dumps(_plain(config, reference), indent=2, allow_nan=False)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text + "\n")
    if arrays:
        np.savez_compressed(_arrays_path(path), **arrays)  # type: ignore[arg-type]


def load(path: str) -> Any:
    """Reads what `save` wrote.

    Raises:
      FileNotFoundError: if the JSON file, or the arrays it refers to, are missing.
      ValueError: if the file is not JSON.
    """
    with open(path, encoding="utf-8") as file:
        try:
            config = json.load(file)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path} is not a JSON file: {error}.") from error
    if not os.path.exists(_arrays_path(path)):
        return _resolve(config, path, {})
    with np.load(_arrays_path(path), allow_pickle=False) as arrays:
        return _resolve(config, path, arrays)


def _arrays_path(path: str) -> str:
    return os.path.splitext(path)[0] + ".npz"


def _plain(value: Any, convert_array: Any) -> Any:
    if isinstance(value, np.ndarray):
        return convert_array(np.ascontiguousarray(value))
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {str(key): _plain(item, convert_array) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, convert_array) for item in value]
    return value


def _resolve(value: Any, path: str, arrays: Any) -> Any:
    if isinstance(value, dict):
        if set(value) == {_ARRAY_KEY}:
            if value[_ARRAY_KEY] not in arrays:
                raise FileNotFoundError(
                    f"{path} refers to arrays in {_arrays_path(path)}: keep both files "
                    f"together."
                )
            return arrays[value[_ARRAY_KEY]]
        return {key: _resolve(item, path, arrays) for key, item in value.items()}
    if isinstance(value, list):
        return [_resolve(item, path, arrays) for item in value]
    return value


def dumps(config: Any) -> str:
    """One string for a configuration with arrays, for places that take only text."""

    def encode(array: np.ndarray) -> dict[str, Any]:
        data = base64.b64encode(zlib.compress(array.tobytes())).decode()
        return {_ENCODED_KEY: data, "dtype": str(array.dtype), "shape": array.shape}

    return json.dumps(_plain(config, encode), allow_nan=False)


def loads(text: str) -> Any:
    """Reads what `dumps` wrote."""

    def decode(value: dict[str, Any]) -> Any:
        if _ENCODED_KEY not in value:
            return value
        data = zlib.decompress(base64.b64decode(value[_ENCODED_KEY]))
        return np.frombuffer(data, value["dtype"]).reshape(value["shape"])

    return json.loads(text, object_hook=decode)
