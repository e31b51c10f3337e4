"""Serializes configurations with arrays to text, or to bytes for hashing."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

_ARRAY = "__zlib_base64__"


def canonical_bytes(config: Any) -> bytes:
    """Converts a configuration to bytes for hashing.

    Different configurations have different bytes.
    """

    def named(array: np.ndarray) -> list[Any]:
        return [str(array.dtype), array.shape, array.tobytes().hex()]

    return _text(config, named, sort_keys=True, separators=(",", ":")).encode()


def dumps(config: Any, indent: int | None = None) -> str:
    """Converts a configuration, including its arrays, to JSON text."""

    def encoded(array: np.ndarray) -> dict[str, Any]:
        data = base64.b64encode(zlib.compress(array.tobytes())).decode()
        return {_ARRAY: data, "dtype": str(array.dtype), "shape": array.shape}

    return _text(config, encoded, indent=indent)


def loads(text: str) -> Any:
    """Converts JSON text from `dumps` back to a configuration."""

    def decoded(value: dict[str, Any]) -> Any:
        if _ARRAY not in value:
            return value
        data = zlib.decompress(base64.b64decode(value[_ARRAY]))
        return np.frombuffer(data, value["dtype"]).reshape(value["shape"])

    return json.loads(text, object_hook=decoded)


def _text(config: Any, of_array: Callable[[np.ndarray], Any], **options: Any) -> str:
    def plain(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return of_array(np.ascontiguousarray(value))
        return value.item()  # The value is a NumPy number.

    return json.dumps(config, default=plain, allow_nan=False, **options)
