"""A wrapper whose comparison is by identity of the wrapped objects."""

from typing import Any


class Same:
    """Compares by identity; keeps the object alive, so that its `id` is not used again."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self._value is other._value

    __hash__ = None  # type: ignore[assignment]
