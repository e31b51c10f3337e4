"""Reads texts.ini, which contains the texts that plans, tables and statements print."""

from __future__ import annotations

import configparser
import pathlib
from typing import Any

from tf_bandmf.accounting.guarantee import fill

_TEXTS = configparser.RawConfigParser(delimiters="=")
# The default `optionxform` would convert the names of texts to lower case.
_TEXTS.optionxform = str  # type: ignore[assignment, method-assign]
_TEXTS.read_string(pathlib.Path(__file__).with_suffix(".ini").read_text("utf-8"))


def phrase(section: str, name: str, /, **facts: Any) -> str:
    """Returns a text of texts.ini as one line, with `facts` in its placeholders."""
    return " ".join(fill(_TEXTS[section][name], **facts).split())


def phrases(section: str, /, **facts: Any) -> dict[str, str]:
    """Returns all texts of a section of texts.ini, with `facts` in their placeholders.

    The result is a dictionary from the names of the texts to the texts.
    """
    return {name: phrase(section, name, **facts) for name in _TEXTS[section]}
