"""Moments, in UTC and ISO 8601: texts that sort like the times that they name."""

from __future__ import annotations

import datetime

_FORMAT = "%Y-%m-%dT%H:%M:%SZ"


def written(moment: datetime.datetime) -> str:
    """A moment as a text."""
    return moment.astimezone(datetime.timezone.utc).strftime(_FORMAT)


def now() -> str:
    """By the clock of this machine."""
    return written(datetime.datetime.now(datetime.timezone.utc))


def parsed(text: str) -> datetime.datetime:
    """The moment of a text that `written` or `normalized` made."""
    found = datetime.datetime.strptime(text, _FORMAT)
    return found.replace(tzinfo=datetime.timezone.utc)


def normalized(name: str, value: str | datetime.date | None) -> str | None:
    """A date (midnight, UTC), or a date with a time and a zone, as a text.

    Raises:
      ValueError: for anything else.
    """
    if value is None:
        return None
    try:
        if isinstance(value, str):
            text = value.strip().replace("Z", "+00:00")
            value = datetime.datetime.fromisoformat(text)
        if not isinstance(value, datetime.datetime):
            value = datetime.datetime(value.year, value.month, value.day)
        if value.tzinfo is None:
            value = value.replace(tzinfo=datetime.timezone.utc)
        text = written(value)
        parsed(text)  # years have four digits, or texts would not sort like times
    except (ValueError, AttributeError, TypeError, OverflowError):
        raise ValueError(
            f"{name} must be a date such as 2026-01-01, found {value!r}."
        ) from None
    return text
