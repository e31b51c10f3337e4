"""Help whose lines do not break within words that have hyphens, such as options."""

from __future__ import annotations

from collections.abc import Iterable

import click

# Looks like a hyphen, and nothing breaks a line after it.
_KEPT = "\N{NON-BREAKING HYPHEN}"


class Formatter(click.HelpFormatter):
    """click's, with whole words."""

    def write(self, string: str) -> None:
        """Writes ordinary hyphens, which can be copied."""
        super().write(string.replace(_KEPT, "-"))

    def write_text(self, text: str) -> None:
        """A paragraph."""
        super().write_text(text.replace("-", _KEPT))

    def write_dl(
        self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2
    ) -> None:
        """Two columns."""
        kept = [(first, second.replace("-", _KEPT)) for first, second in rows]
        super().write_dl(kept, col_max, col_spacing)


class Context(click.Context):
    """The context of all commands."""

    formatter_class = Formatter
