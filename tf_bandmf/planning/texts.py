"""The texts that plans, tables and statements print, from texts.ini filled with facts."""

from __future__ import annotations

import configparser
import pathlib
from typing import Any

_TEXTS = configparser.RawConfigParser(delimiters="=")
_TEXTS.optionxform = str  # type: ignore[assignment, method-assign]  # titles have capitals
_TEXTS.read_string(pathlib.Path(__file__).with_suffix(".ini").read_text("utf-8"))


def phrase(section: str, name: str, /, **facts: Any) -> str:
    """Returns a text, filled with facts, on one line."""
    return " ".join(_TEXTS[section][name].format(**facts).split())


def phrases(section: str, /, **facts: Any) -> dict[str, str]:
    """Returns all texts of a section, by their names."""
    return {name: phrase(section, name, **facts) for name in _TEXTS[section]}
