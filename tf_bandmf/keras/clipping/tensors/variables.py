"""An equality that is identity."""

from typing import Any


class Same:
    """Equal to another one of the same object, which it keeps: no id is used twice."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self._value is other._value

    __hash__ = None  # type: ignore[assignment]
