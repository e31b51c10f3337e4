"""A wrapper that compares objects by identity."""

from typing import Any


class Same:
    """Equal to a `Same` of the same object, which it keeps alive: no id is used twice."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self._value is other._value

    __hash__ = None  # type: ignore[assignment]
