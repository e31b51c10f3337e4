"""A wrapper that compares objects by identity."""

from typing import Any


class Same:
    """Compares objects by identity, and keeps them alive, so no `id` is reused."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self._value is other._value

    __hash__ = None  # type: ignore[assignment]
